//! Reports of room: by df, in statistics, in notices and errors.

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::stats::Level;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, SpaceLimits};
use dedupfs_service::FileService;

use crate::tests::common::{self, content};
use crate::tests::space::site::{MIB, Site, handle_of, options, remove, write_at};

#[test]
fn df_tells_what_can_be_written() {
    let site = Site::one(96 * MIB);
    let pool = site.open();
    let available = || pool.service().statistics().expect("tells").blocks_available * 4096;
    let promised = available();
    assert!(promised > 70 * MIB, "only {promised} bytes of 96 MiB");
    let mut written = 0;
    let (ino, handle) = handle_of(&*pool.service(), 1, "file").expect("creates");
    while write_at(&pool, ino, handle, written, &content(written, 1 << 20)).is_ok() {
        written += MIB;
    }
    pool.service().fsync(ino, handle).expect("syncs");
    assert!(written.abs_diff(promised) < 8 * MIB, "df promised {promised} bytes, {written} were written");
    let left = available();
    assert!(left < 4 * MIB, "df shows {left} bytes on a full disk");
    let levels: Vec<Level> = pool.stats().expect("tells").roots.iter().map(|root| root.level).collect();
    assert!(levels.iter().all(|level| *level > Level::Enough), "{levels:?}");
    let statistics = pool.service().statistics().expect("tells");
    let used = (statistics.blocks - statistics.blocks_free) * 4096;
    assert!(used.abs_diff(site.data.used_bytes()) < MIB, "df shows {used} used");
    pool.service().release(ino, handle);
    pool.service().forget(ino, 1);
    remove(&*pool.service(), "file");
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    let after = available();
    assert!(after + 2 * MIB > promised, "of {promised} bytes {after} came back");
}

/// A read-only pool shows the figures of its disk: its changes are kept in memory, which has a limit of its own.
#[test]
fn regression_a_pool_that_is_only_read_shows_the_disk_and_not_the_memory() {
    let site = Site::one(4096 * MIB);
    let pool = site.open();
    common::write(&pool, "file", &content(1, 1 << 20));
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open_with(&PoolOptions { read_only: true, ..options() }).expect("opens");
    let roots = pool.stats().expect("tells").roots;
    let free_bytes = site.data.capacity_bytes() - site.data.used_bytes();
    for root in &roots {
        assert_eq!((root.free_bytes, root.total_bytes), (free_bytes, 4096 * MIB), "{root:?}");
        assert!(root.usable_bytes > 3000 * MIB && root.level == Level::Enough, "{root:?}");
    }
    let statistics = pool.service().statistics().expect("tells");
    assert!(statistics.blocks_available * 4096 > 3000 * MIB, "{statistics:?}");
    pool.close().expect("closes");
}

/// Other programs took the whole disk, with the reserve: the error says how much must be freed, and on which root.
#[test]
fn regression_reclaiming_without_a_byte_left_says_what_must_be_freed() {
    let site = Site::one(256 * MIB);
    let pool = site.open();
    for number in 0..8 {
        common::write(&pool, &format!("file {number}"), &content(number, 1 << 20));
    }
    pool.sync().expect("syncs");
    (0..7).for_each(|number| remove(&*pool.service(), &format!("file {number}")));
    let capacity = site.data.capacity_bytes();
    site.data.set_capacity(site.data.used_bytes());
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    if let Err(error) = pool.reclaim(&ReclaimOptions::default(), &NoProgress) {
        assert!(error.is_no_space(), "{error}");
        let said = error.to_string();
        assert!(said.contains("0.0 MiB left") && said.contains("free ") && said.contains("MiB there"), "{said}");
    }
    assert!(pool.notice().is_some_and(|notice| notice.contains("can be written: the disk of")), "{:?}", pool.notice());
    site.data.set_capacity(capacity);
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    assert!(common::read(&pool, "file 7").expect("reads") == content(7, 1 << 20));
    assert_eq!(
        pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks").findings,
        Vec::<String>::new()
    );
}

/// A limit below the reserve is reported with advice, and not as thousands of percent.
#[test]
fn regression_a_limit_that_lets_nothing_in_is_told_at_the_mount() {
    let site = Site::two(1024 * MIB, 256 * MIB);
    let pool = site.open();
    common::write(&pool, "file", &content(1, 4 << 20));
    pool.close().expect("closes");
    drop(pool);
    let notice = |limits: SpaceLimits| {
        let pool = site.open_with(&PoolOptions { limits, ..options() }).expect("opens");
        let notice = pool.notice();
        pool.close().expect("closes");
        notice
    };
    assert_eq!(notice(SpaceLimits::default()), None);
    let small = notice(SpaceLimits { data_bytes: Some(MIB), meta_bytes: Some(MIB) }).expect("is told");
    for words in ["nothing can be written: data_limit is 1.0 MiB", "meta_limit is 1.0 MiB", "raise it to more than"] {
        assert!(small.contains(words), "{small}");
    }
    let reached = notice(SpaceLimits { data_bytes: Some(6 * MIB), meta_bytes: None }).expect("is told");
    assert!(reached.contains("data_limit is 6.0 MiB") && reached.contains("raise the limit, or delete"), "{reached}");
}
