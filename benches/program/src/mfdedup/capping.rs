//! Capping (Lillibridge et al., FAST 2013): a segment of a version refers to at most so many old containers; the chunks that it shares with
//! others are stored again.

use std::collections::{HashMap, HashSet};

/// Returns the containers that a segment may refer to: the `cap` of which it uses most. `used` has the bytes that it uses of each.
pub fn kept(used: &HashMap<u32, u64>, cap: usize) -> HashSet<u32> {
    let mut by_use: Vec<(u64, u32)> = used.iter().map(|(container, bytes)| (*bytes, *container)).collect();
    by_use.sort_unstable_by(|one, other| other.cmp(one));
    by_use.into_iter().take(cap).map(|(_, container)| container).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_keeps_the_containers_of_which_it_uses_most() {
        let used = HashMap::from([(1, 10), (2, 40), (3, 20), (4, 40)]);
        assert_eq!(kept(&used, 3), HashSet::from([2, 3, 4]));
        assert_eq!(kept(&used, 9).len(), 4);
        // Of equals the newer one.
        assert_eq!(kept(&used, 1), HashSet::from([4]));
    }
}
