//! Other processes: the seed says which are gone.

use crate::world::state;

/// Whether no process has this number any more.
#[must_use]
pub fn is_gone(_: i32) -> bool {
    state::in_world() && state::random(4) == 0
}
