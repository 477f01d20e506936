//! The export is held, and notes of it outlive a commit that fails.

use dedupfs_store::ContainerId;

use crate::tests::common::{content, write};
use crate::tests::export::site::{formatted, open};

#[test]
fn a_held_export_is_replaced_by_another_base_and_by_nothing_else() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let core = pool.core();
    let change = |name: &str| {
        write(&pool, name, &content(1, 100_000));
        pool.sync().expect("syncs");
        core.committer.export().expect("exports");
    };
    change("before");
    core.exporter.rebase().expect("writes a base");
    let held = core.exporter.hold();
    assert!(!held.is_replaced());
    change("behind");
    assert!(!held.is_replaced(), "a group was appended");
    core.exporter.rebase().expect("writes a base");
    assert!(held.is_replaced());
}

/// The next commit must store them: else the slots of these containers stay taken until the next mount.
#[test]
fn containers_that_left_are_given_to_the_commit_behind_one_that_failed() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let exporter = &pool.core().exporter;
    exporter.not_left(vec![ContainerId(1), ContainerId(2)]);
    assert_eq!(exporter.position().left, [ContainerId(1), ContainerId(2)]);
    assert_eq!(exporter.position().left, []);
}

/// Else the notes of changes behind the held export would be trimmed under the one that still reads it.
#[test]
fn the_first_of_two_holds_that_ends_leaves_the_other() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let core = pool.core();
    let change = |name: &str| {
        write(&pool, name, &content(1, 100_000));
        pool.sync().expect("syncs");
        core.committer.export().expect("exports");
    };
    change("before");
    let (first, second) = (core.exporter.hold(), core.exporter.hold());
    let row = second.row();
    change("behind");
    drop(first);
    assert_eq!(core.exporter.position().trim_through, row);
    drop(second);
    assert!(core.exporter.position().trim_through > row);
}
