//! Chooses the damage to try: byte by byte where each byte has its own meaning, the rest in strides.

use dedupfs_store::device::Device;

use crate::damage::{BLOCK_BYTES, Case, Damage, SECTOR_BYTES, Way};
use crate::image::{Image, Root};

/// Number of cases to try for each file.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Every byte of this many at a file's start is damaged.
    pub head_bytes: u64,
    /// Approximate number of flips behind the head.
    pub flips: u64,
    /// Approximate number of cases of each other kind.
    pub others: u64,
}

/// The depth in continuous integration.
pub const SAMPLE: Depth = Depth { head_bytes: 96, flips: 30, others: 8 };
/// Every byte.
pub const EVERYTHING: Depth = Depth { head_bytes: u64::MAX, flips: u64::MAX, others: u64::MAX };

/// Random numbers from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

/// Returns positions at multiples of `unit`: about `wanted` of them, evenly spread, from a random beginning.
fn strides(len_bytes: u64, unit: u64, wanted: u64, dice: &mut Dice) -> impl Iterator<Item = u64> + use<> {
    let units = len_bytes.div_ceil(unit);
    let step = (units / wanted.max(1)).max(1);
    (dice.below(step)..units).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(move |at| at * unit)
}

/// Returns the cases of one image.
pub fn cases(image: &Image, depth: Depth, seed: u64) -> Vec<Case> {
    let mut dice = Dice(seed);
    let mut cases = Vec::new();
    for (root, path, len_bytes) in image.disks.files() {
        let mut add = |damage: Damage, dice: &mut Dice| {
            let way = match dice.below(8) {
                0 => Way::Rebuild,
                1 => Way::RebuildThoroughly,
                2 | 3 => Way::ReadOnly,
                _ => Way::Write,
            };
            cases.push(Case { image: image.name, root, path: path.clone(), damage, way });
        };
        // The lock's content means nothing, and a pool in memory has no lock.
        for offset in 0..len_bytes.min(depth.head_bytes) {
            let mask = 1 + dice.below(255) as u8;
            add(Damage::Flip { offset, mask }, &mut dice);
        }
        if len_bytes > depth.head_bytes {
            let head = depth.head_bytes;
            for offset in strides(len_bytes - head, 1, depth.flips, &mut dice) {
                add(Damage::Flip { offset: head + offset, mask: 1 << dice.below(8) }, &mut dice);
            }
        }
        for offset in strides(len_bytes, SECTOR_BYTES, depth.others, &mut dice) {
            add(Damage::ZeroSector { offset }, &mut dice);
        }
        let blocks = len_bytes / BLOCK_BYTES;
        for first in strides(blocks * BLOCK_BYTES, BLOCK_BYTES, depth.others, &mut dice) {
            let second = (first + BLOCK_BYTES * (1 + dice.below(blocks.max(2) - 1))) % (blocks * BLOCK_BYTES);
            if blocks > 1 {
                add(Damage::SwapBlocks { first, second }, &mut dice);
            }
        }
        if image.older.root(root).exists(&path).expect("asks") {
            let old_bytes = image.older_bytes(root, &path).len() as u64;
            for offset in strides(len_bytes.min(old_bytes), BLOCK_BYTES, depth.others, &mut dice) {
                add(Damage::OldBlock { offset }, &mut dice);
            }
            add(Damage::OldFile, &mut dice);
        }
        for offset in strides(len_bytes, 1, depth.others, &mut dice) {
            add(Damage::Truncate { len_bytes: offset }, &mut dice);
        }
        for len_bytes in [1, SECTOR_BYTES, BLOCK_BYTES, 100_001] {
            add(Damage::Extend { len_bytes }, &mut dice);
        }
        for damage in [Damage::Truncate { len_bytes: 0 }, Damage::Remove, Damage::OtherPool] {
            // A namespace does not say which pool it is of: no disk does this, and a root is restored as a whole
            // (docs/format.md).
            if damage == Damage::OtherPool && path == "namespace.redb" {
                continue;
            }
            for way in [Way::Write, Way::ReadOnly, Way::Rebuild, Way::RebuildThoroughly] {
                cases.push(Case { image: image.name, root, path: path.clone(), damage, way });
            }
        }
    }
    cases
}

/// Whether the damage hits one place of one slot and may cost no more than that slot.
pub fn is_local(case: &Case) -> bool {
    let in_containers = case.path.starts_with("containers/");
    in_containers && matches!(case.damage, Damage::Flip { .. } | Damage::ZeroSector { .. })
}

/// Whether the file can be made anew from the rest.
pub fn is_derived(case: &Case) -> bool {
    case.root == Root::Meta && case.path.starts_with("index/")
}
