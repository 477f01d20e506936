//! Choices that do not depend on the order of tasks: each client, each plan has dice of its own.

/// Splitmix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6a09_e667_f3bc_c909)
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in 0..`bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound.max(1)
    }

    /// A number of up to this many bits; each length is as likely.
    pub fn of_bits(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.below(1 << bits)
    }

    /// True once in this many times, on average.
    pub fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

/// Makes content of this many different pieces, so that the same data is written often. Some of it compresses, and piece 0
/// is zeros.
pub fn content(dice: &mut Dice, pieces: u64, len_bytes: u64) -> Vec<u8> {
    let len = usize::try_from(len_bytes).expect("files are small");
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let number = dice.below(pieces);
        let mut piece = Dice::new(number);
        let piece_len = 1 + piece.below(9000) as usize;
        let start = bytes.len();
        if number == 0 {
            bytes.resize(start + 9000, 0);
        }
        while number != 0 && bytes.len() < start + piece_len {
            let word = if piece.one_in(4) { number } else { piece.word() };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}
