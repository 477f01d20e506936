//! A namespace that cannot be exported any more, as a part of it is damaged.

use std::io;
use std::time::{Duration, Instant};

use dedupfs_base::EngineError;
use dedupfs_store::StoreError;

use crate::tests::common::{content, read, write};
use crate::tests::export::site::{formatted, open};

/// Whoever reads the damaged part is told. Backups go on, and the last export stays.
#[test]
fn damage_that_ends_the_export_does_not_end_the_pool_and_another_failure_does() {
    let damage: EngineError = StoreError::corrupt("namespace", "a record", "noise").into();
    let failure: EngineError = StoreError::from_io("write", "export", io::Error::other("refused")).into();
    for is_in_background in [true, false] {
        let (meta, data) = formatted();
        let pool = open(&meta, &data);
        write(&pool, "before", &content(1, 10_000));
        pool.sync().expect("syncs");
        let (committer, exporter) = (&pool.core().committer, &pool.core().exporter);
        committer.export().expect("exports");
        let export = || {
            if is_in_background {
                exporter.request();
                while exporter.state.lock().requested {
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                committer.export().expect_err("is told");
            }
        };
        exporter.working.lock().failed = Some(damage.clone());
        export();
        // Time in which the thread that exports would have failed.
        std::thread::sleep(Duration::from_millis(100));
        assert!(committer.failure().is_none(), "{:?}", committer.failure());
        write(&pool, "behind", &content(2, 10_000));
        pool.sync().expect("goes on");
        exporter.working.lock().failed = Some(failure.clone());
        export();
        let begun = Instant::now();
        while committer.failure().is_none() {
            assert!(begun.elapsed().as_secs() < 10, "the pool goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(read(&pool, "behind") == Some(content(2, 10_000)));
    }
}
