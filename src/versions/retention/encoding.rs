//! Rules as bytes, for the record of a series; byte map in `docs/format.md`. The record around them has the checksum.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter};

use super::{Count, Percent, RelativeTo, Rules, Span};

/// Version of the rules that this release writes.
const VERSION: u8 = 1;
/// Name of the bytes in errors.
const NAME: &str = "retention rules";

/// Fields that are present; of the counts the lowest bits, in the order of [`Rules::counts`].
const HAS_WITHIN: u8 = 1 << 6;
const HAS_FREE_UNTIL: u8 = 1 << 7;
/// Choices.
const RELATIVE_TO_NOW: u8 = 1 << 0;
const KEEP_NONE: u8 = 1 << 1;

impl Rules {
    /// Returns the rules as bytes, at most 36.
    pub fn encode(&self) -> Vec<u8> {
        let counts = self.counts().into_iter().enumerate();
        let present = counts.fold(0, |bits, (bit, count)| bits | u8::from(count.is_some()) << bit)
            | if self.keep_within.is_some() { HAS_WITHIN } else { 0 }
            | if self.free_until.is_some() { HAS_FREE_UNTIL } else { 0 };
        let choices = if self.relative_to == RelativeTo::Now { RELATIVE_TO_NOW } else { 0 }
            | if self.keep_none { KEEP_NONE } else { 0 };
        let mut writer = ByteWriter::new();
        writer.u8(VERSION);
        writer.u8(present);
        writer.u8(choices);
        self.counts().into_iter().flatten().for_each(|count| writer.u32(count.get()));
        self.keep_within.map(Span::parts).into_iter().flatten().for_each(|part| writer.u16(part));
        self.free_until.into_iter().for_each(|share| writer.u8(share.get()));
        writer.into_vec()
    }

    /// Reads rules that [`encode`](Self::encode) wrote. Equal rules have equal bytes.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if a newer release wrote them, [`StoreError::Corrupt`] if they are no rules.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = ByteReader::new(bytes, NAME);
        match reader.u8()? {
            0 => return Err(reader.corrupt("a version", 0)),
            VERSION => {}
            version => return Err(StoreError::newer(NAME, format!("version {version}"))),
        }
        let (present, choices) = (reader.u8()?, reader.u8()?);
        if choices & !(RELATIVE_TO_NOW | KEEP_NONE) != 0 {
            return Err(reader.corrupt("known choices", format!("{choices:#04x}")));
        }
        let mut count = |bit: u8| -> Result<Option<Count>, StoreError> {
            if present & 1 << bit == 0 { Ok(None) } else { Ok(Some(Count::new(reader.u32()?))) }
        };
        let rules = Self {
            keep_last: count(0)?,
            keep_hourly: count(1)?,
            keep_daily: count(2)?,
            keep_weekly: count(3)?,
            keep_monthly: count(4)?,
            keep_yearly: count(5)?,
            keep_within: if present & HAS_WITHIN == 0 { None } else { Some(read_span(&mut reader)?) },
            free_until: if present & HAS_FREE_UNTIL == 0 { None } else { Some(read_percent(&mut reader)?) },
            relative_to: if choices & RELATIVE_TO_NOW == 0 { RelativeTo::Newest } else { RelativeTo::Now },
            keep_none: choices & KEEP_NONE != 0,
        };
        reader.finish()?;
        Ok(rules)
    }
}

fn read_span(reader: &mut ByteReader<'_>) -> Result<Span, StoreError> {
    let parts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
    Span::new(parts).ok_or_else(|| reader.corrupt("a span of at most 9999 of each unit", format!("{parts:?}")))
}

fn read_percent(reader: &mut ByteReader<'_>) -> Result<Percent, StoreError> {
    let number = reader.u8()?;
    Percent::new(number).ok_or_else(|| reader.corrupt("a share of 1% to 100%", format!("{number}%")))
}
