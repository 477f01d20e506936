//! The asks of a machine, checked.

use crate::{ASKS_OF_A_CALL, Ask, CHUNK_BYTES_MAX, Disks, Error, Result};

/// Takes asks from disks, and checks that their order and sizes are as promised.
#[derive(Default)]
pub(crate) struct Reading {
    end: Option<(u32, u64)>,
    /// Asks until now.
    pub(crate) asks: u64,
    /// Bytes of their chunks.
    pub(crate) bytes: u64,
}

impl Reading {
    /// Replaces `asks` by the next ones. False if there are no more.
    ///
    /// # Errors
    /// Those of the disks; or they break a promise of [`Disks::next`].
    pub(crate) fn next(&mut self, disks: &mut dyn Disks, asks: &mut Vec<Ask>) -> Result<bool> {
        asks.clear();
        let is_more = disks.next(asks)?;
        if asks.len() > ASKS_OF_A_CALL {
            return Err(Error::Broken(format!("{} asks came at once, {ASKS_OF_A_CALL} are allowed", asks.len())));
        }
        for ask in &*asks {
            let broken = |why: &str| Error::Disk { disk: ask.disk, why: format!("its chunk at {} {why}", ask.at) };
            if ask.len_bytes == 0 || ask.len_bytes > CHUNK_BYTES_MAX {
                return Err(broken("is empty or too long for a chunk"));
            }
            if self.end.is_some_and(|end| (ask.disk, ask.at) < end) {
                return Err(broken("came behind later ones"));
            }
            let end = ask.at.checked_add(u64::from(ask.len_bytes)).ok_or_else(|| broken("ends beyond all disks"))?;
            self.end = Some((ask.disk, end));
            self.asks += 1;
            self.bytes += u64::from(ask.len_bytes);
        }
        Ok(is_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given(Vec<Ask>);

    impl Disks for Given {
        fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
            asks.append(&mut self.0);
            Ok(false)
        }

        fn read(&mut self, disk: u32, _: u64, _: &mut [u8]) -> Result<()> {
            Err(Error::Disk { disk, why: "it has no bytes".into() })
        }

        fn fingerprint(&self, _: &[u8]) -> [u8; 32] {
            [0; 32]
        }
    }

    fn outcome(asks: &[(u32, u64, u32)]) -> Result<bool> {
        let asks =
            asks.iter().map(|(disk, at, len)| Ask { fingerprint: [0; 32], len_bytes: *len, disk: *disk, at: *at });
        Reading::default().next(&mut Given(asks.collect()), &mut Vec::new())
    }

    #[test]
    fn asks_that_ascend_are_taken_and_others_refused() {
        assert!(!outcome(&[]).unwrap());
        assert!(!outcome(&[(0, 0, 5), (0, 5, 5), (0, 90, 1), (2, 0, 3)]).unwrap());
        for wrong in [
            &[(0, 0, 5), (0, 4, 5)][..],
            &[(1, 0, 5), (0, 4, 5)],
            &[(0, 0, 0)],
            &[(0, 0, CHUNK_BYTES_MAX + 1)],
            &[(0, u64::MAX, 1)],
        ] {
            assert!(matches!(outcome(wrong), Err(Error::Disk { .. })), "{wrong:?}");
        }
        let many: Vec<_> = (0..=ASKS_OF_A_CALL as u64).map(|at| (0, at, 1)).collect();
        assert!(outcome(&many).is_err());
    }
}
