//! The notes of a rebuild, for the fuzz targets.

use super::state::State;

/// Decodes notes. Decoded notes must encode to the same bytes.
pub fn notes(bytes: &[u8]) {
    if let Ok(state) = State::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
}
