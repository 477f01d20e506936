//! A binary fuse filter with four places for each key (Graf and Lemire, "Binary fuse filters", 2022): for a set that never changes it
//! takes some 10% more than the bits that its rate of false answers needs, where a Bloom filter takes 44%.
//!
//! Each key has four slots in neighbouring segments. Construction gives the slots numbers whose XOR is the key's own number. A key that is
//! not in the set has another number with a probability of 1 - 2^-bits. The XOR of the lowest bits of slots is that of the lowest bits of
//! the number: so slots are stored with 16 bits, and as few of them are loaded as memory allows.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

/// Places of a key.
const ARITY: u32 = 4;
/// Seeds that are tried. One suffices nearly always.
const SEEDS_MAX: u16 = 100;
/// Binary logarithm of the slots of the longest segment.
const SEGMENT_EXPONENT_MAX: u32 = 18;

/// The form of a filter: how its keys are distributed over slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Form {
    seed: u16,
    segment: u32,
    /// Slots in which the first place of a key can be: whole segments.
    first_slots: u32,
}

fn mixed(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

impl Form {
    /// The form for so many keys. `seed` distinguishes attempts.
    pub(crate) fn new(keys: u32, seed: u16) -> Self {
        let count = f64::from(keys.max(2));
        let exponent = (count.ln() / 2.91_f64.ln() - 0.5).floor().max(0.0) as u32;
        let segment = 1_u32 << exponent.min(SEGMENT_EXPONENT_MAX);
        let factor = (0.77 + 0.305 * 600_000_f64.ln() / count.ln()).max(1.075);
        let segments = ((count * factor).ceil() as u32).div_ceil(segment).max(ARITY) - (ARITY - 1);
        Self { seed, segment, first_slots: segments.saturating_mul(segment) }
    }

    /// The form as a file has it: segments of first places, the binary logarithm of a segment, and the seed. `None`: it cannot be.
    pub(crate) fn stored(segments: u32, exponent: u16, seed: u16) -> Option<Self> {
        let segment = 1_u32.checked_shl(u32::from(exponent)).filter(|_| u32::from(exponent) <= SEGMENT_EXPONENT_MAX)?;
        let first_slots = segments.checked_mul(segment).filter(|slots| *slots > 0)?;
        first_slots.checked_add((ARITY - 1) * segment)?;
        Some(Self { seed, segment, first_slots })
    }

    /// As [`stored`](Self::stored) takes it.
    pub(crate) fn to_store(self) -> (u32, u16, u16) {
        (self.first_slots / self.segment, self.segment.ilog2() as u16, self.seed)
    }

    /// Number of slots.
    pub(crate) fn slots(self) -> u32 {
        self.first_slots + (ARITY - 1) * self.segment
    }

    fn hash(self, key: u64) -> u64 {
        mixed(key.wrapping_add(u64::from(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn places(self, hash: u64) -> [u32; ARITY as usize] {
        let first = ((u128::from(hash) * u128::from(self.first_slots)) >> u64::BITS) as u32;
        let mut number = 0;
        [0; ARITY as usize].map(|_: u32| {
            let within = (hash & ((1 << 54) - 1)) >> (54 - 18 * number);
            let place = (first + number * self.segment) ^ (within as u32 & (self.segment - 1));
            number += 1;
            place
        })
    }

    /// The slots' numbers for a set of keys, each once; `None` if they cannot be distributed in this form.
    fn assigned(self, keys: &[u64]) -> Option<Vec<u16>> {
        let slots = self.slots() as usize;
        // Of each slot the number of keys in it, and the XOR of their hashes.
        let (mut counts, mut hashes) = (vec![0_u32; slots], vec![0_u64; slots]);
        for &key in keys {
            let hash = self.hash(key);
            for place in self.places(hash) {
                *counts.get_mut(place as usize)? += 1;
                *hashes.get_mut(place as usize)? ^= hash;
            }
        }
        let mut alone: Vec<u32> =
            (0_u32..).zip(&counts).filter(|(_, count)| **count == 1).map(|(slot, _)| slot).collect();
        let mut peeled = Vec::with_capacity(keys.len());
        while let Some(slot) = alone.pop() {
            if counts.get(slot as usize) != Some(&1) {
                continue;
            }
            let hash = *hashes.get(slot as usize)?;
            peeled.push((slot, hash));
            for place in self.places(hash) {
                let count = counts.get_mut(place as usize)?;
                *count -= 1;
                *hashes.get_mut(place as usize)? ^= hash;
                if *count == 1 {
                    alone.push(place);
                }
            }
        }
        if peeled.len() != keys.len() {
            return None;
        }
        let mut numbers = vec![0_u16; slots];
        for (slot, hash) in peeled.into_iter().rev() {
            let mut number = number_of(hash);
            for place in self.places(hash).into_iter().filter(|place| *place != slot) {
                number ^= numbers.get(place as usize)?;
            }
            *numbers.get_mut(slot as usize)? = number;
        }
        Some(numbers)
    }

    /// Whether the set may have a key, given its slots.
    pub(crate) fn may_have(self, key: u64, slots: &Packed) -> bool {
        let hash = self.hash(key);
        let mut found = u32::from(number_of(hash));
        for place in self.places(hash) {
            found ^= slots.at(place);
        }
        found & ((1 << slots.bits) - 1) == 0
    }
}

/// The lowest bits of each slot of a filter, one slot behind the other. Without any bits the filter says "perhaps" to everything.
#[derive(Default, Debug)]
pub(crate) struct Packed {
    bits: u32,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn new(slots: impl ExactSizeIterator<Item = u16>, bits: u32) -> Self {
        let mut packed = Self { bits, bytes: vec![0; Self::bytes_of(slots.len() as u64, bits) as usize] };
        for (number, slot) in (0_u64..).zip(slots) {
            let first_bit = number * u64::from(bits);
            if let Some(place) = packed.bytes.get_mut((first_bit / 8) as usize..).and_then(<[u8]>::first_chunk_mut) {
                let lowest = u32::from(slot) & ((1 << bits) - 1);
                *place = (u32::from_le_bytes(*place) | lowest << (first_bit % 8)).to_le_bytes();
            }
        }
        packed
    }

    /// The bytes of so many slots. Four bytes are read at once, also those of the last slot.
    pub(crate) fn bytes_of(slots: u64, bits: u32) -> u64 {
        if bits == 0 { 0 } else { (slots * u64::from(bits)).div_ceil(8) + u64::from(u32::BITS / 8 - 1) }
    }

    /// The first `slots` slots with fewer bits.
    pub(crate) fn coarser(&self, slots: u32, bits: u32) -> Self {
        Self::new((0..slots).map(|slot| self.at(slot) as u16), bits)
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.capacity() as u64
    }

    /// A slot: its lowest bits are right.
    fn at(&self, slot: u32) -> u32 {
        let first_bit = u64::from(slot) * u64::from(self.bits);
        let bytes = self.bytes.get((first_bit / 8) as usize..).and_then(<[u8]>::first_chunk).copied();
        u32::from_le_bytes(bytes.unwrap_or_default()) >> (first_bit % 8)
    }
}

fn number_of(hash: u64) -> u16 {
    (hash ^ (hash >> 32)) as u16
}

/// Makes the filter of these keys, each once. `None`: no seed fits, which is as good as impossible.
pub(crate) fn build(keys: &[u64]) -> Option<(Form, Vec<u16>)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let form = Form::new(keys.len() as u32, seed);
        Some((form, form.assigned(keys)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(from: u64, count: u64) -> Vec<u64> {
        (from..from + count).map(|number| mixed(number + 1)).collect()
    }

    /// Whether each key is there, and the share of others that seem to be there.
    fn false_share(count: u64, bits: u32) -> f64 {
        let inside = keys(0, count);
        let (form, numbers) = build(&inside).expect("can be built");
        assert_eq!(numbers.len(), form.slots() as usize);
        let whole = Packed::new(numbers.iter().copied(), 16);
        let packed = Packed::new(numbers.into_iter(), bits);
        assert_eq!(packed.memory_bytes(), Packed::bytes_of(u64::from(form.slots()), bits));
        assert_eq!(whole.coarser(form.slots(), bits).bytes, packed.bytes);
        let has = |key: &u64| form.may_have(*key, &packed);
        assert!(inside.iter().all(has), "{count} keys, {bits} bits");
        let others = keys(1 << 40, 100_000);
        others.iter().filter(|key| has(key)).count() as f64 / others.len() as f64
    }

    #[test]
    fn it_has_all_keys_and_few_others() {
        for count in [0, 1, 2, 3, 7, 100, 5000, 200_000] {
            for bits in [0, 1, 2, 5, 8, 13, 16] {
                let (found, expected) = (false_share(count, bits), 0.5_f64.powi(bits as i32));
                // Of a handful of keys, slots repeat.
                let margin = if count < 100 { 100.0 } else { 1.1 };
                assert!(found <= expected * margin + 0.001, "{count} keys, {bits} bits: {found}");
            }
        }
    }

    /// A form is stored, not computed again: logarithms may differ in their last bit.
    #[test]
    fn forms_are_stored_and_senseless_ones_refused() {
        for keys in [0, 1, 5, 300, 1 << 18, u32::MAX >> 4] {
            let form = Form::new(keys, 7);
            let (segments, exponent, seed) = form.to_store();
            assert_eq!(Form::stored(segments, exponent, seed), Some(form));
        }
        for (segments, exponent) in [(0, 3), (1, 19), (1, 40), (1 << 20, 12), ((1 << 14) - 1, 18)] {
            assert_eq!(Form::stored(segments, exponent, 0), None, "{segments} of 2^{exponent}");
        }
    }

    #[test]
    fn it_takes_little_more_than_its_bits() {
        for (keys, most) in [(1 << 16, 1.16), (1 << 18, 1.11), (1 << 20, 1.09)] {
            let factor = f64::from(Form::new(keys, 0).slots()) / f64::from(keys);
            assert!((1.0..most).contains(&factor), "{factor} slots for each of {keys} keys");
        }
    }
}
