//! Where nodes end: by the hash of the last key, so that changed attributes move no cut, and a new name moves at most
//! the cuts around it.

use dedupfs_store::codec::checksum_seeded;

/// Rows of a node: minimum, mean, maximum.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutRule {
    pub(super) min: usize,
    pub(super) mean: usize,
    pub(super) max: usize,
    /// Distinguishes the levels: a key that ends a leaf ends a list of leaves no more often than others.
    pub(super) seed: u64,
}

/// The rules of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutRules {
    pub(super) leaf: CutRule,
    pub(super) list: CutRule,
}

impl CutRules {
    /// Those of all trees. The module `sizes_tests` compares them with others.
    pub(super) const CHOSEN: Self = Self {
        leaf: CutRule { min: 4, mean: 10, max: 32, seed: 1 },
        list: CutRule { min: 8, mean: 24, max: 96, seed: 2 },
    };
}

impl CutRule {
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
        for rule in [CutRules::CHOSEN.leaf, CutRules::CHOSEN.list] {
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
