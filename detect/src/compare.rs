//! Verdicts about the asks of one partition, or of a part of it that fits into memory.

use crate::{Answer, Chunk, Error, Numbered, Place, Record, Result, Verdict};
use dedupfs_spool::{Blocks, Spool};

/// Puts asks in the order of comparing: equal chunks stand together, the first place in front.
pub(crate) fn sort(asks: &mut [Numbered]) {
    asks.sort_unstable_by(|one, other| {
        let rest = |asked: &Numbered| (asked.ask.len_bytes, asked.ask.disk, asked.ask.at);
        // Nearly all of them differ in these, and a number is compared faster than bytes.
        let by_first = first_bits(&one.ask.fingerprint).cmp(&first_bits(&other.ask.fingerprint));
        let by_all = || one.ask.fingerprint.cmp(&other.ask.fingerprint).then_with(|| rest(one).cmp(&rest(other)));
        by_first.then_with(by_all)
    });
}

fn is_same_chunk(one: &Numbered, other: &Numbered) -> bool {
    one.ask.fingerprint == other.ask.fingerprint && one.ask.len_bytes == other.ask.len_bytes
}

/// Fills a batch with the different chunks at the front of sorted asks. Returns the number of asks that it covers.
pub(crate) fn gather(asks: &[Numbered], chunks_max: usize, chunks: &mut Vec<Chunk>) -> usize {
    chunks.clear();
    let mut covered = 0;
    for same in asks.chunk_by(is_same_chunk) {
        if chunks.len() == chunks_max {
            break;
        }
        if let Some(first) = same.first() {
            chunks.push(Chunk { fingerprint: first.ask.fingerprint, len_bytes: first.ask.len_bytes });
        }
        covered += same.len();
    }
    covered
}

/// Gives each of sorted asks its verdict, by the answers about their different chunks.
///
/// # Errors
/// There are not as many answers as chunks; or `emit` fails.
pub(crate) fn decide(asks: &[Numbered], answers: &[Answer], emit: &mut dyn FnMut(Place) -> Result<()>) -> Result<()> {
    let mut answers = answers.iter();
    let unequal = || Error::Pool("it gave another number of answers than it was asked for".into());
    for same in asks.chunk_by(is_same_chunk) {
        let answer = answers.next().ok_or_else(unequal)?;
        for (place, asked) in same.iter().enumerate() {
            let verdict = match (answer.is_known, place) {
                (true, _) => Verdict::Known(answer.proof),
                (false, 0) => Verdict::New(answer.proof),
                (false, _) => Verdict::Repeated,
            };
            let ask = asked.ask;
            let record = Record { at: ask.at, len_bytes: ask.len_bytes, fingerprint: ask.fingerprint, verdict };
            emit(Place { number: asked.number, disk: ask.disk, record })?;
        }
    }
    if answers.next().is_some() { Err(unequal()) } else { Ok(()) }
}

/// The part of the fingerprints that holds one with these first bits, of so many equal ranges; and its place in that range.
pub(crate) fn share(first: u64, parts: usize) -> (usize, u64) {
    let scaled = u128::from(first) * parts as u128;
    ((scaled >> 64) as usize, scaled as u64)
}

/// The first 64 bits of a fingerprint.
pub(crate) fn first_bits(fingerprint: &[u8; 32]) -> u64 {
    fingerprint.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first))
}

/// The parts of a partition that fit into memory, put in order.
pub(crate) struct Parts {
    blocks: Blocks,
    left: u64,
}

impl Parts {
    pub(crate) fn of(spool: &Spool<Numbered>, partition: usize) -> Self {
        Self { blocks: spool.blocks(partition), left: spool.records(partition) }
    }

    /// Gives the next part, sorted. False if there is none.
    ///
    /// # Errors
    /// Those of the spool.
    pub(crate) fn next_into(
        &mut self,
        spool: &Spool<Numbered>,
        at_once: usize,
        asks: &mut Vec<Numbered>,
    ) -> Result<bool> {
        asks.clear();
        // A block is never larger than the memory of a part.
        asks.reserve_exact(usize::try_from(self.left).unwrap_or(usize::MAX).min(at_once));
        while asks.len() + spool.records_of_a_block() <= at_once && spool.next_into(&mut self.blocks, asks)? {}
        self.left = self.left.saturating_sub(asks.len() as u64);
        sort(asks);
        Ok(!asks.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ask;

    fn asked(byte: u8, len_bytes: u32, disk: u32, at: u64) -> Numbered {
        Numbered { ask: Ask { fingerprint: [byte; 32], len_bytes, disk, at }, number: at }
    }

    #[test]
    fn the_first_place_of_a_new_chunk_is_new_and_the_others_repeat_it() {
        let mut asks = [asked(9, 5, 1, 0), asked(9, 5, 0, 8), asked(3, 5, 0, 0), asked(9, 6, 0, 20), asked(3, 5, 2, 2)];
        sort(&mut asks);
        let mut chunks = Vec::new();
        assert_eq!(gather(&asks, 10, &mut chunks), 5);
        let asked_for: Vec<_> = chunks.iter().map(|chunk| (chunk.fingerprint[0], chunk.len_bytes)).collect();
        assert_eq!(asked_for, [(3, 5), (9, 5), (9, 6)]);
        let answer = |is_known, byte| Answer { is_known, proof: [byte; 20] };
        let mut verdicts = Vec::new();
        decide(&asks, &[answer(true, 1), answer(false, 2), answer(false, 3)], &mut |place| {
            verdicts.push((place.disk, place.record.at, place.record.verdict));
            Ok(())
        })
        .unwrap();
        let known = Verdict::Known([1; 20]);
        let (new, other) = (Verdict::New([2; 20]), Verdict::New([3; 20]));
        assert_eq!(verdicts, [(0, 0, known), (2, 2, known), (0, 8, new), (1, 0, Verdict::Repeated), (0, 20, other)]);
    }

    #[test]
    fn a_batch_never_parts_equal_chunks() {
        let asks = [asked(1, 5, 0, 0), asked(1, 5, 0, 1), asked(2, 5, 0, 2), asked(2, 5, 0, 3), asked(3, 5, 0, 4)];
        let mut chunks = Vec::new();
        assert_eq!((gather(&asks, 1, &mut chunks), chunks.len()), (2, 1));
        assert_eq!((gather(&asks, 2, &mut chunks), chunks.len()), (4, 2));
        assert_eq!((gather(&asks[5..], 2, &mut chunks), chunks.len()), (0, 0));
    }

    #[test]
    fn too_few_and_too_many_answers_are_refused() {
        let asks = [asked(1, 5, 0, 0), asked(2, 5, 0, 2)];
        let answer = Answer { is_known: true, proof: [0; 20] };
        for answers in [0, 1, 3] {
            assert!(decide(&asks, &vec![answer; answers], &mut |_| Ok(())).is_err());
        }
    }

    #[test]
    fn partitions_are_ranges_of_fingerprints_in_order() {
        let of = |first: u8, parts| share(first_bits(&[first; 32]), parts).0;
        assert_eq!((of(0, 1), of(255, 1), of(0, 3), of(255, 3), of(255, 4096)), (0, 0, 0, 2, 4095));
        assert!((0..255).all(|first| of(first, 7) <= of(first + 1, 7)));
        // The place in a range parts it again, evenly.
        let inner = |first: u8| share(share(first_bits(&[first; 32]), 2).1, 4).0;
        assert_eq!([0, 127, 128, 160, 192, 255].map(inner), [0, 3, 0, 1, 2, 3]);
    }
}
