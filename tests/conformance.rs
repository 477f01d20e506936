//! The engine passes the suite that every service must pass, on disks in memory.

use std::sync::{Arc, Mutex};

use dedupfs::pool::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_fuse::conformance::check_service;
use dedupfs_fuse::service::FileService;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

#[test]
fn the_engine_conforms() {
    // A pool serves as long as somebody holds it.
    let pools = Mutex::new(Vec::new());
    check_service(&|| {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let options = PoolOptions { memory_bytes: 128 << 20, ..PoolOptions::default() };
        let pool = Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens");
        let service: Arc<dyn FileService> = pool.service();
        let mut pools = pools.lock().expect("nobody panicked");
        if let Some(last) = pools.pop() {
            let last: Arc<Pool> = last;
            last.close().expect("closes");
        }
        pools.push(pool);
        service
    });
}
