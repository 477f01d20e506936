//! Damage that checksums do not show.

use dedupfs_store::codec::checksum;

/// Changes a byte in the payload of every region and makes the checksums fit, as if memory had gone bad after the
/// chunks were named and before they were written.
pub fn falsify(bytes: &mut [u8]) {
    let number = |bytes: &[u8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut at = 0;
    while at + 64 <= bytes.len() {
        if &bytes[at..at + 4] != b"DDFS" || bytes[at + 4] != 2 {
            at += 64;
            continue;
        }
        let (meta, payload) = (number(bytes, at + 32) as usize, number(bytes, at + 36) as usize);
        bytes[at + 64 + meta + payload / 2] ^= 0xff;
        let body = checksum(&bytes[at + 64..at + 64 + meta + payload]);
        bytes[at + 48..at + 56].copy_from_slice(&body.to_le_bytes());
        let header = checksum(&bytes[at..at + 56]);
        bytes[at + 56..at + 64].copy_from_slice(&header.to_le_bytes());
        at += (64 + meta + payload).next_multiple_of(64);
    }
}
