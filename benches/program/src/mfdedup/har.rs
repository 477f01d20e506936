//! History-aware rewriting (Fu et al., ATC 2014): containers of which the last version used little are *sparse*, and their chunks are stored
//! again with the next version.

use std::collections::{HashMap, HashSet};

/// Returns the sparse containers. `used` has the bytes that the last version uses of each container, `container_bytes` is the room of one.
///
/// Sparse is less than the share `utilization`. Those that take more than `limit_bytes` together, emptiest first, are left alone: they would
/// be rewritten later.
pub fn sparse(used: &HashMap<u32, u64>, container_bytes: u64, utilization: f64, limit_bytes: u64) -> HashSet<u32> {
    let is_sparse = |bytes: u64| (bytes as f64) < utilization * container_bytes as f64;
    let mut candidates: Vec<(u64, u32)> =
        used.iter().filter(|(_, bytes)| is_sparse(**bytes)).map(|(container, bytes)| (*bytes, *container)).collect();
    candidates.sort_unstable();
    let mut sum = 0;
    let within = candidates.into_iter().take_while(|(bytes, _)| {
        sum += bytes;
        sum <= limit_bytes
    });
    within.map(|(_, container)| container).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_below_half_are_sparse_and_the_emptiest_come_first() {
        let used = HashMap::from([(1, 100), (2, 50), (3, 49), (4, 30), (5, 20)]);
        assert_eq!(sparse(&used, 100, 0.5, 1000), HashSet::from([3, 4, 5]));
        // 20 + 30 are within 98, 49 more are not.
        assert_eq!(sparse(&used, 100, 0.5, 98), HashSet::from([4, 5]));
        assert_eq!(sparse(&used, 100, 0.5, 19), HashSet::new());
    }
}
