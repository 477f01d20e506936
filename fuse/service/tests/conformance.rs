//! The reference model passes the suite that every service must pass, and the suite notices services that do not.

use std::sync::Arc;

use dedupfs_service::conformance::check_service;
use dedupfs_service::{
    Caller, FileService, MemoryOptions, MemoryService, NewNode, NodeContent, ROOT_INO, null_service,
};

#[test]
fn the_memory_service_conforms() {
    check_service(&|| Arc::new(MemoryService::new()));
}

#[test]
fn the_suite_notices_lost_content() {
    let outcome = std::panic::catch_unwind(|| check_service(&|| Arc::new(null_service())));
    assert!(outcome.is_err(), "a service that forgets content passed");
}

#[test]
fn the_suite_notices_a_limit() {
    let options = MemoryOptions { file_bytes_max: 100_000, ..MemoryOptions::default() };
    let outcome = std::panic::catch_unwind(|| check_service(&|| Arc::new(<MemoryService>::with_options(options))));
    assert!(outcome.is_err(), "a service that cannot hold 5 MB passed");
}

#[test]
fn forgotten_inodes_are_freed() {
    let service = MemoryService::new();
    let caller = Caller::default();
    for number in 0..50 {
        let name = format!("{number}");
        let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
        let made = service.make(caller, node, NodeContent::Regular).unwrap();
        service.unlink(ROOT_INO, name.as_bytes()).unwrap();
        service.forget(made.ino, 1);
    }
    assert_eq!(service.inode_count(), 1, "only the root is left");
}
