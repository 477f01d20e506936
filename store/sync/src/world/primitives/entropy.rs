//! Random bytes.

use crate::world::state;

/// Fills the bytes with random ones; the world's seed decides them.
///
/// # Errors
/// None.
pub fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    bytes.fill_with(|| (state::random(u64::MAX) >> 8) as u8);
    Ok(())
}
