//! The record of a series: the rules by which its versions are kept, and the scope of their deduplication; byte map in `docs/format.md`.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use serde::{Deserialize, Serialize};

use super::retention::Rules;

/// Name of the attribute that holds the record. It begins with [`RECORD_PREFIX`](dedupfs_namespace::RECORD_PREFIX).
pub(crate) const SERIES_RECORD: &[u8] = b"dedupfs.series";
/// Attribute that shows the rules to clients. It is not listed, so that copies do not try to set it, and `dedupfs series` alone
/// changes it.
pub(crate) const SERIES_ATTRIBUTE: &[u8] = b"user.dedupfs.series";

const RECORD: &str = "record of a series";
const VERSION: u8 = 1;
/// The version of a record with a scope.
const SCOPED_VERSION: u8 = 2;
/// The scope of that name.
const NEIGHBOUR: u8 = 1;
/// Longest rules in a record, in bytes; later releases may have more of them.
const RULES_BYTES_MAX: usize = 1024;

/// The content with which that of a new version is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All of the pool's.
    #[default]
    Pool,
    /// The former version's, and what was stored lately. The index on the disk is asked for the former version's chunks alone. Content that skipped a version is stored a
    /// second time, until reclaiming takes the first copy away.
    Neighbour,
}

/// The record of a directory whose versions form a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeriesRecord {
    /// The rules that `dedupfs prune` uses if none are given.
    pub rules: Rules,
    /// The content with which that of new versions is compared.
    pub scope: Scope,
}

impl From<Rules> for SeriesRecord {
    fn from(rules: Rules) -> Self {
        Self { rules, scope: Scope::Pool }
    }
}

impl SeriesRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let rules = self.rules.encode();
        let mut writer = ByteWriter::new();
        // Older releases know records without a scope.
        writer.u8(if self.scope == Scope::Pool { VERSION } else { SCOPED_VERSION });
        writer.u16(rules.len() as u16); // at most 36
        writer.bytes(&rules);
        if self.scope == Scope::Neighbour {
            writer.u8(NEIGHBOUR);
        }
        writer.into_vec()
    }

    /// Reads a record that [`encode`](Self::encode) wrote. Equal records have equal bytes.
    ///
    /// # Errors
    /// `Unsupported` if a newer release wrote it; `Corrupt` if it is no record.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, RECORD);
        let is_scoped = match reader.u8()? {
            0 => return Err(reader.corrupt("a version", 0).into()),
            VERSION => false,
            SCOPED_VERSION => true,
            version => return Err(StoreError::newer(RECORD, format!("version {version}")).into()),
        };
        let len = usize::from(reader.u16()?);
        if len > RULES_BYTES_MAX {
            return Err(reader.corrupt("rules of at most 1024 bytes", len).into());
        }
        let rules = Rules::decode(reader.bytes(len)?)?;
        let scope = match is_scoped.then(|| reader.u8()).transpose()? {
            None => Scope::Pool,
            Some(NEIGHBOUR) => Scope::Neighbour,
            Some(scope) => return Err(reader.corrupt("scope 1", scope).into()),
        };
        reader.finish()?;
        Ok(Self { rules, scope })
    }
}

#[cfg(test)]
#[expect(clippy::expect_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::super::retention::Count;
    use super::*;

    #[test]
    fn the_bytes_of_version_1_stay() {
        let rules = Rules { keep_last: Some(Count::new(3)), ..Rules::default() };
        let record = SeriesRecord::from(rules);
        let bytes = [1, 7, 0, 1, 1, 0, 3, 0, 0, 0];
        assert_eq!(record.encode(), bytes);
        assert_eq!(SeriesRecord::decode(&bytes).expect("is a record"), record);
        let none = SeriesRecord::default();
        assert_eq!(SeriesRecord::decode(&none.encode()).expect("is a record"), none);
    }

    #[test]
    fn the_bytes_of_version_2_stay() {
        let record = SeriesRecord { scope: Scope::Neighbour, ..SeriesRecord::default() };
        let bytes = [&[2], &SeriesRecord::default().encode()[1..], &[1]].concat();
        assert_eq!(record.encode(), bytes);
        assert_eq!(SeriesRecord::decode(&bytes).expect("is a record"), record);
        let unknown = [&bytes[..bytes.len() - 1], &[2]].concat();
        SeriesRecord::decode(&unknown).expect_err("is no scope");
        SeriesRecord::decode(&bytes[..bytes.len() - 1]).expect_err("is cut off");
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let sound = SeriesRecord::default().encode();
        for len in 0..sound.len() {
            SeriesRecord::decode(&sound[..len]).expect_err("is cut off");
        }
        for (at, byte) in [(0, 0), (0, 2), (1, 4), (2, 255), (3, 9)] {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            SeriesRecord::decode(&bytes).expect_err("is damaged");
        }
        SeriesRecord::decode(&[&sound[..], &[0]].concat()).expect_err("is too long");
        let newer = SeriesRecord::decode(&[9, 0, 0]).expect_err("is of a newer release");
        assert!(newer.to_string().contains("version 9"), "{newer}");
    }
}
