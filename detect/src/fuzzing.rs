//! The decoders of this crate, for the fuzz targets.

use crate::cluster::fuzzing;
use crate::records::{Numbered, Place};
use crate::rounds;
use dedupfs_spool::Spooled;

/// Reads bytes as the file of a round, with the right sum as well, as records of spools, and as those that connections carry.
pub fn fuzz_bytes(bytes: &[u8]) {
    rounds::fuzz_file(bytes);
    for record in bytes.chunks(Place::BYTES) {
        if let Some(place) = Place::decode(record) {
            let mut again = Vec::new();
            place.encode(&mut again);
            assert_eq!(again, record);
        }
    }
    for record in bytes.chunks(Numbered::BYTES) {
        let _ = Numbered::decode(record);
    }
    fuzzing::fuzz_connection(bytes);
}
