//! The record of a version: the facts that its tree does not hold.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter};

const RECORD: &str = "record of a version";
const VERSION: u8 = 1;
const INCOMPLETE: u8 = 1;
const DATED: u8 = 2;
/// Longest text in a record, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VersionRecord {
    /// Time of completion, in seconds since 1970.
    pub(crate) completed_secs: i64,
    /// Milliseconds that making it took.
    pub(crate) duration_ms: u64,
    /// Regular files.
    pub(crate) files: u64,
    /// Entries, the uppermost one not included.
    pub(crate) entries: u64,
    /// Lengths of its files.
    pub(crate) logical_bytes: u64,
    /// Bytes of chunks and nodes that were stored for it.
    pub(crate) new_bytes: u64,
    /// Problems that were told while it was made.
    pub(crate) problems: u64,
    /// Whether it lacks files.
    pub(crate) is_incomplete: bool,
    /// Whether the time of completion was given: it is that of the backup that became this version.
    pub(crate) is_dated: bool,
    /// It cannot be removed before this time, in seconds since 1970; 0: it is not locked.
    pub(crate) locked_until_secs: i64,
    /// The directory that it was made of.
    pub(crate) source: Vec<u8>,
    /// The host on which it was made.
    pub(crate) host: Vec<u8>,
}

impl VersionRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u8(VERSION);
        writer.u8(if self.is_incomplete { INCOMPLETE } else { 0 } | if self.is_dated { DATED } else { 0 });
        writer.i64(self.completed_secs);
        writer.i64(self.locked_until_secs);
        [self.duration_ms, self.files, self.entries, self.logical_bytes, self.new_bytes, self.problems]
            .into_iter()
            .for_each(|number| writer.u64(number));
        for text in [&self.source, &self.host] {
            let text = text.get(..TEXT_BYTES_MAX).unwrap_or(text);
            writer.u16(text.len() as u16); // at most TEXT_BYTES_MAX
            writer.bytes(text);
        }
        writer.into_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, RECORD);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(StoreError::newer(RECORD, format!("version {version}")).into());
        }
        let flags = reader.u8()?;
        if flags > INCOMPLETE | DATED {
            return Err(StoreError::newer(RECORD, format!("flags {flags:#x}")).into());
        }
        let (completed_secs, locked_until_secs) = (reader.i64()?, reader.i64()?);
        let mut numbers = [0; 6];
        for number in &mut numbers {
            *number = reader.u64()?;
        }
        let [duration_ms, files, entries, logical_bytes, new_bytes, problems] = numbers;
        let mut text = || {
            let len = usize::from(reader.u16()?);
            if len > TEXT_BYTES_MAX {
                return Err(reader.corrupt(format!("a text of at most {TEXT_BYTES_MAX} bytes"), len));
            }
            Ok(reader.bytes(len)?.to_vec())
        };
        let (source, host) = (text()?, text()?);
        reader.finish()?;
        Ok(Self {
            completed_secs,
            duration_ms,
            files,
            entries,
            logical_bytes,
            new_bytes,
            problems,
            is_incomplete: flags & INCOMPLETE != 0,
            is_dated: flags & DATED != 0,
            locked_until_secs,
            source,
            host,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_round_trips_and_every_cut_is_refused() {
        let record = VersionRecord {
            completed_secs: -5,
            duration_ms: 1,
            files: 2,
            entries: 3,
            logical_bytes: 4,
            new_bytes: 5,
            problems: 6,
            is_incomplete: true,
            is_dated: true,
            locked_until_secs: 7,
            source: b"/srv".to_vec(),
            host: b"web1".to_vec(),
        };
        let bytes = record.encode();
        assert_eq!(VersionRecord::decode(&bytes).unwrap(), record);
        (0..bytes.len()).for_each(|len| assert!(VersionRecord::decode(&bytes[..len]).is_err()));
        assert!(VersionRecord::decode(&[&bytes[..], &[0]].concat()).is_err());
        let long = VersionRecord { source: vec![b'x'; 70_000], ..record };
        assert_eq!(VersionRecord::decode(&long.encode()).unwrap().source.len(), TEXT_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn accepted_bytes_encode_equally(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(record) = VersionRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
