//! A data root that fails under the export: the pool goes on, and the export is made anew where possible.

use dedupfs::Pool;
use dedupfs::export::CopyDepth;
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::device::Device;
use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};

use crate::tests::common::{content, read, write};
use crate::tests::export::site::{
    assert_recovers, exported_on_failing, force_recover, open, picture, reclaim, try_recover,
};

/// Changes names, recipes and containers, exports, and reclaims.
fn change(pool: &Pool, round: u64) {
    write(pool, &format!("new {round}"), &content(100 + round, 200_000));
    pool.service().unlink(ROOT_INO, format!("{round}").as_bytes()).expect("unlinks");
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("an export that fails is no failure of the pool");
    reclaim(pool);
    assert!(pool.core().committer.failure().is_none(), "{:?}", pool.core().committer.failure());
}

/// One wrong answer that a file of the export is missing made the pool read-only.
#[test]
fn regression_one_wrong_answer_about_a_file_of_the_export_does_not_end_the_pool() {
    for position in 0.. {
        let (_meta, data, faulty, pool) = exported_on_failing();
        let before = faulty.injected();
        faulty.add(FaultPlan::new(Fault::NotFound, position).path_contains("export/"));
        change(&pool, 0);
        change(&pool, 1);
        assert!(read(&pool, "5") == Some(content(5, 100_000)), "at {position}");
        assert_recovers(&data, pool);
        if faulty.injected() == before {
            assert!(position >= 3, "{position} files were opened");
            break;
        }
    }
}

/// Of a base for which there is no room only its own file is removed.
#[test]
fn a_base_without_room_leaves_the_export_that_counts() {
    let (_meta, data, faulty, pool) = exported_on_failing();
    let exporter = &pool.core().exporter;
    (0..2).for_each(|_| exporter.rebase().expect("writes a base"));
    faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
    let before = faulty.injected();
    exporter.rebase().expect("is tried again");
    assert!(faulty.injected() > before);
    faulty.heal();
    let check = exporter.verify(CopyDepth::Content, &mut |_| true).expect("verifies");
    assert_eq!(check.findings, Vec::<String>::new());
    let bases = data.list("export").expect("lists").into_iter().filter(|entry| entry.name.starts_with("base-"));
    assert_eq!(bases.count(), 1);
    assert_recovers(&data, pool);
}

/// The export's own files fail, once or for good: the export is made anew or rests, and everything that the last one
/// names stays.
#[test]
fn regression_an_export_that_fails_does_not_end_the_pool() {
    for lasting in [false, true] {
        let (meta, data, faulty, pool) = exported_on_failing();
        let plan = FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync, Operation::Write]).path_contains("export/");
        faulty.add(if lasting { plan.lasting() } else { plan });
        let before = faulty.injected();
        for round in 0..6 {
            change(&pool, round);
        }
        assert!(faulty.injected() > before);
        if lasting {
            let tried = faulty.injected();
            change(&pool, 6);
            assert_eq!(faulty.injected(), tried, "it does not rest");
        }
        faulty.heal();
        if !lasting {
            assert_recovers(&data, pool);
            continue;
        }
        // The export is older than it might be, which is reported, but whole: everything that it names has kept its
        // place.
        assert!(try_recover(&data.fork()).is_err());
        let kept = force_recover(&data.fork()).expect("recovers what was exported").1;
        assert_eq!(kept.rebuilt.missing, 0);
        let before = picture(&pool);
        pool.close().expect("closes");
        drop(pool);
        let pool = open(&meta, &data);
        assert!(picture(&pool) == before);
        pool.core().committer.export().expect("exports");
        assert_recovers(&data, pool);
    }
}
