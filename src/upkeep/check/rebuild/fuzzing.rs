//! The notes of a rebuild, for the fuzz targets.

use super::state::Notes;

/// Decodes notes. Decoded notes must encode to the same bytes.
pub fn notes(bytes: &[u8]) {
    if let Ok(state) = Notes::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
}
