//! The bound of memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use dedupfs_service::ROOT_INO;

use super::*;
use crate::tests::versions::site::{directory, fill, find, formatted, open, snapshot};

/// Found by review: its tables grew with the tree, whatever `--memory` was.
#[test]
fn regression_a_count_that_takes_too_much_memory_is_refused() {
    let pool = open(&formatted());
    fill(&pool, directory(&pool, ROOT_INO, "live"));
    snapshot(&pool, "live", "", "v1");
    pool.service().remove_tree(ROOT_INO, b"live").unwrap();
    let core = pool.core();
    core.committer.settle().unwrap();
    let root = core.namespace.inode(find(&pool, "v1")).unwrap().unwrap().root.reference().unwrap();
    let never = || false;
    let count = |memory_bytes_max| {
        let mut count_down = CountDown { memory_bytes_max, ..CountDown::new(core, &never) };
        count_down.drop_reference(&root)?;
        count_down.end_set()?;
        // The memory of the set is free again.
        count_down.check_memory(0)?;
        Ok(count_down.nodes().count())
    };
    let all = count(u64::MAX).unwrap();
    assert!(all > 10, "{all} nodes");
    assert_eq!(count(1 << 20).unwrap(), all);
    assert!(matches!(count(200), Err(EngineError::CountTooLarge { max_mib: 0 })));
    // Memory that a caller has for the count is a part of it.
    let count_down = CountDown { memory_bytes_max: 1000, ..CountDown::new(core, &never) };
    count_down.check_memory(1001).unwrap_err();
}
