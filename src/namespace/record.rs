//! The envelope of every value in the namespace's tables: version, body, checksum.
//!
//! ```text
//! version u8 | body | checksum u32 (over version and body, mixed with the key)
//! ```
//!
//! The embedded store checks its pages only during a full repair, so each value carries its own checksum (invariant
//! I-5). Mixing in the key reveals values that ended up under another key. Cost: 5 bytes a value.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter, checksum, checksum_seeded};

/// Version of every record this release writes.
pub(super) const RECORD_VERSION: u8 = 1;
/// Bytes of the checksum at a record's end.
const CHECKSUM_BYTES: usize = 4;

fn record_checksum(key: &[u8], sealed: &[u8]) -> u32 {
    let mixed = checksum_seeded(sealed, checksum(key));
    (mixed ^ (mixed >> 32)) as u32
}

/// Encodes a record: `fill` writes the body.
pub(super) fn seal(key: &[u8], fill: impl FnOnce(&mut ByteWriter)) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u8(RECORD_VERSION);
    fill(&mut writer);
    let mut bytes = writer.into_vec();
    let sum = record_checksum(key, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks a record and decodes its body with `read`, which must consume all of it. `what` names the record in errors.
pub(super) fn open<'a, T>(
    what: impl Fn() -> String,
    key: &[u8],
    bytes: &'a [u8],
    read: impl FnOnce(&mut ByteReader<'a>) -> Result<T>,
) -> Result<T> {
    let Some((sealed, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(StoreError::corrupt(what(), format!("at least {CHECKSUM_BYTES} bytes"), bytes.len()).into());
    };
    let (expected, found) = (u32::from_le_bytes(*sum), record_checksum(key, sealed));
    if expected != found {
        return Err(StoreError::corrupt(what(), format!("checksum {expected:08x}"), format!("{found:08x}")).into());
    }
    let Some((&version, body)) = sealed.split_first() else {
        return Err(StoreError::corrupt(what(), "a version", "nothing").into());
    };
    if version != RECORD_VERSION {
        return Err(StoreError::Unsupported {
            what: what(),
            found: format!("record version {version}"),
            advice: "use the release that wrote this pool, or a newer one".into(),
        }
        .into());
    }
    let mut reader = ByteReader::new(body, "namespace record");
    let value = read(&mut reader).map_err(|error| with_context(error, &what))?;
    reader.finish().map_err(|error| with_context(error.into(), &what))?;
    Ok(value)
}

/// Replaces the generic name of a record in an error by its own name.
fn with_context(error: dedupfs_base::EngineError, what: &impl Fn() -> String) -> dedupfs_base::EngineError {
    match error {
        dedupfs_base::EngineError::Store(StoreError::Corrupt { expected, found, .. }) => {
            StoreError::Corrupt { what: what(), expected, found }.into()
        }
        other => other,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    fn decode(key: &[u8], bytes: &[u8]) -> Result<u32> {
        open(|| "record under test".to_owned(), key, bytes, |reader| Ok(reader.u32()?))
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_other_key_is_found() {
        let good = seal(b"key", |writer| writer.u32(0xdead_beef));
        assert_eq!(decode(b"key", &good).unwrap(), 0xdead_beef);
        assert!(decode(b"kez", &good).is_err());
        for len in 0..good.len() {
            assert!(decode(b"key", &good[..len]).is_err());
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(b"key", &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn surplus_bytes_and_unknown_versions_are_refused() {
        let long = seal(b"key", |writer| {
            writer.u32(1);
            writer.u8(0);
        });
        assert!(decode(b"key", &long).unwrap_err().to_string().contains("record under test"));
        let mut newer = vec![RECORD_VERSION + 1, 0, 0, 0, 0];
        let sum = record_checksum(b"key", &newer);
        newer.extend(sum.to_le_bytes());
        assert!(decode(b"key", &newer).unwrap_err().to_string().contains("version 2"));
    }
}
