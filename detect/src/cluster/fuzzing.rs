//! The decoders of connections, for the fuzz targets.

use super::frames::{Failure, Messages};
use super::join;

pub(crate) fn fuzz_connection(bytes: &[u8]) {
    join::fuzz_hello(bytes);
    if let Some(failure) = Failure::decode(bytes) {
        assert!(failure.encode().len() <= Failure::BYTES_MAX);
    }
    let mut messages = Messages::new(1, 0);
    for part in bytes.chunks(7) {
        if !messages.take(part) {
            break;
        }
    }
}
