//! The hash seeds of the standard library's maps, decided by the world's seed.
//!
//! The order of a map shows in the order in which the engine does things. So it must be the same each time a seed runs,
//! and another one for each seed.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

use crate::dice::Dice;

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Decides the hash seeds of maps that the calling thread makes. To be called before it makes one.
pub fn decide(seed: u64) {
    SEED.set(seed);
}

/// Takes the place of the system's function of this name, which the standard library asks for the hash seeds of a thread.
///
/// # Safety
/// `buffer` is valid for writes of `len` bytes, as for getrandom(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, _: c_uint) -> isize {
    let mut dice = Dice::new(SEED.get());
    for at in 0..len {
        // SAFETY: `at` is below `len`, and the caller answers for these bytes.
        unsafe { buffer.cast::<u8>().add(at).write(dice.word() as u8) };
    }
    len.cast_signed()
}
