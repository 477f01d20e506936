//! The engine passes the suite that every service must pass; then the pool is sound, and so is its committed state.

use std::cell::RefCell;
use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions, Pool, format_on};
use dedupfs_service::conformance::check_service;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), &OpenOptions::default(), &NoProgress).expect("opens")
}

#[test]
fn the_engine_conforms() {
    let pools = RefCell::new(Vec::new());
    check_service(&|| {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let pool = open(&device);
        let service = pool.service();
        pools.borrow_mut().push((device, pool));
        service
    });
    for (device, pool) in pools.into_inner() {
        pool.close().expect("closes");
        drop(pool);
        let pool = open(&device);
        let report = pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
        pool.close().expect("closes");
    }
}
