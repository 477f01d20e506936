//! The records of spools and messages. `docs/format.md` (Beside a pool) has their bytes.

use dedupfs_spool::{Spooled, take};

use crate::{Ask, Record, Verdict};

/// An ask with its number in the order of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) ask: Ask,
    pub(crate) number: u64,
}

/// A record with its disk, and with the number of its ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) disk: u32,
    pub(crate) record: Record,
}

impl Spooled for Numbered {
    const BYTES: usize = 56;

    fn encode(&self, into: &mut Vec<u8>) {
        into.reserve(Self::BYTES);
        into.extend_from_slice(&self.ask.fingerprint);
        into.extend_from_slice(&self.ask.len_bytes.to_le_bytes());
        into.extend_from_slice(&self.ask.disk.to_le_bytes());
        into.extend_from_slice(&self.ask.at.to_le_bytes());
        into.extend_from_slice(&self.number.to_le_bytes());
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let fingerprint = take(&mut from)?;
        let len_bytes = u32::from_le_bytes(take(&mut from)?);
        let disk = u32::from_le_bytes(take(&mut from)?);
        let at = u64::from_le_bytes(take(&mut from)?);
        let number = u64::from_le_bytes(take(&mut from)?);
        from.is_empty().then_some(Self { ask: Ask { fingerprint, len_bytes, disk, at }, number })
    }
}

impl Spooled for Place {
    const BYTES: usize = 80;

    fn encode(&self, into: &mut Vec<u8>) {
        into.reserve(Self::BYTES);
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.disk.to_le_bytes());
        into.extend_from_slice(&self.record.len_bytes.to_le_bytes());
        into.extend_from_slice(&self.record.at.to_le_bytes());
        into.extend_from_slice(&self.record.fingerprint);
        let (kind, proof) = match self.record.verdict {
            Verdict::Repeated => (0, [0; 20]),
            Verdict::Known(proof) => (1, proof),
            Verdict::New(proof) => (2, proof),
        };
        into.push(kind);
        into.extend_from_slice(&proof);
        into.extend_from_slice(&[0; 3]);
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let number = u64::from_le_bytes(take(&mut from)?);
        let disk = u32::from_le_bytes(take(&mut from)?);
        let len_bytes = u32::from_le_bytes(take(&mut from)?);
        let at = u64::from_le_bytes(take(&mut from)?);
        let fingerprint = take(&mut from)?;
        let [kind] = take(&mut from)?;
        let proof: [u8; 20] = take(&mut from)?;
        let verdict = match kind {
            0 if proof == [0; 20] => Verdict::Repeated,
            1 => Verdict::Known(proof),
            2 => Verdict::New(proof),
            _ => return None,
        };
        (from == [0; 3]).then_some(Self { number, disk, record: Record { at, len_bytes, fingerprint, verdict } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            fingerprint: [u8; 32], len_bytes: u32, disk: u32, at: u64, number: u64, proof: [u8; 20], kind in 0..3
        ) {
            let mut bytes = Vec::new();
            let asked = Numbered { ask: Ask { fingerprint, len_bytes, disk, at }, number };
            asked.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), Numbered::BYTES);
            prop_assert_eq!(Numbered::decode(&bytes), Some(asked));
            let verdict = match kind { 0 => Verdict::Repeated, 1 => Verdict::Known(proof), _ => Verdict::New(proof) };
            let place = Place { number, disk, record: Record { at, len_bytes, fingerprint, verdict } };
            bytes.clear();
            place.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), Place::BYTES);
            prop_assert_eq!(Place::decode(&bytes), Some(place));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Numbered::decode(&bytes), Place::decode(&bytes));
        }
    }
}
