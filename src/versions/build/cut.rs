//! Where nodes end: by the hash of the last key, so that changed attributes move no cut, and a new name moves at most
//! the cuts around it.

use dedupfs_store::codec::checksum_seeded;

/// Rows of a node: minimum, mean, maximum.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutRule {
    min: usize,
    mean: usize,
    max: usize,
    /// Distinguishes the levels: a key that ends a leaf ends a list of leaves no more often than others.
    seed: u64,
}

impl CutRule {
    /// The rule for leaves. Chosen by the benchmark of leaf sizes (`docs/figures.md`).
    pub(super) const LEAF: Self = Self { min: 4, mean: 10, max: 32, seed: 1 };
    /// The rule for lists.
    pub(super) const LIST: Self = Self { min: 8, mean: 24, max: 96, seed: 2 };

    /// Whether a node of `rows` ends behind the row with this key. `height` is 0 for leaves.
    pub(super) fn ends_behind(&self, height: usize, rows: usize, key: &[u8]) -> bool {
        let threshold = u64::MAX / (self.mean - self.min + 1) as u64;
        rows >= self.max || (rows >= self.min && checksum_seeded(key, self.seed + height as u64) < threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_mean_number_of_rows_and_keep_the_bounds() {
        for rule in [CutRule::LEAF, CutRule::LIST] {
            let (mut rows, mut nodes) = (0, Vec::new());
            for number in 0..200_000_u32 {
                rows += 1;
                if rule.ends_behind(0, rows, format!("file-{number}").as_bytes()) {
                    nodes.push(rows);
                    rows = 0;
                }
            }
            assert!(nodes.iter().all(|rows| (rule.min..=rule.max).contains(rows)));
            let mean = nodes.iter().sum::<usize>() as f64 / nodes.len() as f64;
            assert!((mean - rule.mean as f64).abs() < rule.mean as f64 / 10.0, "{rule:?}: {mean}");
        }
    }
}
