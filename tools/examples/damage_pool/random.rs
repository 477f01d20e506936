//! Random numbers from a seed.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than the limit, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn choose<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Writes another value of the same width: an end of the range, a neighbour, one bit or anything.
    pub(crate) fn other(&mut self, bytes: &mut [u8]) {
        let before = bytes.to_vec();
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let value = u64::from_le_bytes(word);
        while bytes == before {
            let other = match self.below(8) {
                0 => 0,
                1 => u64::MAX,
                2 => value.wrapping_add(1),
                3 => value.wrapping_sub(1),
                4 => value ^ 1 << self.below(bytes.len() * 8),
                5 => 1 << self.below(bytes.len() * 8),
                6 => value.wrapping_mul(2),
                _ => self.next(),
            };
            bytes.copy_from_slice(&other.to_le_bytes()[..bytes.len()]);
        }
    }
}
