//! Reproducible chance: SplitMix64 (Steele, Lea, Flood 2014).

/// A generator.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns one of `0..limit`.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns one of `from..to`.
    pub const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Returns true once in `times`.
    pub const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of these.
    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len() as u64) as usize]
    }
}

/// Returns the seed of a test with random operations or moments: `DEDUPFS_E2E_SEED`, for a long search, or the usual
/// one.
pub fn seed(usual: u64) -> u64 {
    match std::env::var("DEDUPFS_E2E_SEED") {
        Ok(given) => usual ^ given.parse::<u64>().expect("DEDUPFS_E2E_SEED is no number").rotate_left(32),
        Err(_) => usual,
    }
}

/// Returns bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns bytes that look a little like text, the same for the same seed.
pub fn prose(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 32);
    while bytes.len() < len {
        let word = random.next();
        bytes.extend_from_slice(b"the line of ");
        bytes.extend_from_slice(&word.to_le_bytes());
        bytes.push(b'\n');
    }
    bytes.truncate(len);
    bytes
}
