//! Scrubs beside writers and reclaiming, with damage in between: nothing readable is lost, and counts equal marks.

use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, Pool};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::container::Compression;

use crate::tests::common::{CALLER, content, read};
use crate::tests::scrub::{Random, check, formatted, open, reclaim, scrub};

const WRITERS: u64 = 3;
const ROUNDS: u64 = 60;

/// Writes as [`crate::tests::common::write`] does, as another process.
fn write(pool: &Pool, pid: u32, name: &str, data: &[u8]) {
    use dedupfs_service::{Caller, NewNode, OpenOptions, WriteFlags};
    let service = pool.service();
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
    let caller = Caller { pid, ..CALLER };
    let (attributes, opened) = service.create(caller, node, how).expect("creates");
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        let at = (number << 20) as u64;
        service.write(caller, attributes.ino, opened.handle, at, piece, WriteFlags::default()).expect("writes");
    }
    service.flush(attributes.ino, opened.handle).expect("checkpoints");
    service.release(attributes.ino, opened.handle);
    service.forget(attributes.ino, 1);
}

/// Quarantines random copies that are sound. The steps are those for real damage, and everything still readable is
/// right.
fn quarantine_something(pool: &Pool, random: &mut Random) {
    use dedupfs::scrub::BadCopy;
    let core = pool.core();
    let (store, kind) = match random.below(2) {
        0 => (&core.stores.data, dedupfs_store::ContainerKind::Data),
        _ => (&core.stores.recipes, dedupfs_store::ContainerKind::Recipe),
    };
    let records = store.closed_in_disk_order();
    if records.is_empty() {
        return;
    }
    let record = records[random.below(records.len() as u64) as usize];
    let Ok(Some(table)) = store.table(record.id) else { return };
    let from = random.below(table.entries.len().max(1) as u64) as usize;
    let bad: Vec<BadCopy> = table.entries[from.min(table.entries.len())..]
        .iter()
        .take(1 + random.below(20) as usize)
        .map(|entry| BadCopy { kind, container: record.id, fingerprint: entry.fingerprint })
        .collect();
    core.quarantine(&bad).expect("quarantines");
}

#[test]
fn writers_and_reclaiming_beside_scrubs_and_quarantine_keep_counts_right() {
    let device = formatted(Compression::Zstd(1));
    let pool = open(&device);
    let contents: Vec<Vec<u8>> = (0..5).map(|number| content(number, (1 << 20) + 300_000 * number as usize)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, contents, done) = (&*pool, &contents, &done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = Random(writer * 7919 + 1);
                    for round in 0..ROUNDS {
                        let data = &contents[random.below(contents.len() as u64) as usize];
                        let data = &data[..1 + random.below(data.len() as u64) as usize];
                        write(pool, writer as u32 + 1, &format!("{writer} {round}"), data);
                        if round % 3 == 2 {
                            let name = format!("{writer} {}", round - 1);
                            pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                pool.reclaim(&ReclaimOptions::below(80), &NoProgress).expect("reclaims");
            }
        });
        scope.spawn(move || {
            let mut random = Random(5);
            while !done.load(Ordering::Acquire) {
                quarantine_something(pool, &mut random);
                let options = ScrubOptions { restart: true, ..ScrubOptions::default() };
                let report = pool.scrub(&options, &NoProgress).expect("scrubs");
                // Nothing was ever really damaged.
                assert_eq!((report.bad_chunks, report.bad_nodes, report.damage_count), (0, 0, 0), "{report:?}");
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("writes to the end"));
        done.store(true, Ordering::Release);
    });
    // Writes everything again, which heals all losses.
    for (number, data) in contents.iter().enumerate() {
        write(&pool, 9, &format!("whole {number}"), data);
    }
    pool.sync().expect("syncs");
    let lost = scrub(&pool);
    // Segments with other ends come again only with their files; the chunks are all there.
    let needed: Vec<String> = crate::tests::scrub::affected(&lost);
    for writer in 0..WRITERS {
        for round in 0..ROUNDS {
            let name = format!("{writer} {round}");
            match pool.service().lookup(ROOT_INO, name.as_bytes()) {
                // Otherwise the inode would stay when its name goes.
                Ok(attributes) => pool.service().forget(attributes.ino, 1),
                Err(_) => continue,
            }
            match read(&pool, &name) {
                Some(data) => {
                    assert!(contents.iter().any(|content| content.starts_with(&data)), "{name}: wrong bytes");
                    assert!(!needed.contains(&name), "{name} is named and can be read");
                }
                None => assert!(needed.contains(&name), "{name} cannot be read and is not named"),
            }
        }
    }
    let found = check(&pool);
    let wrong: Vec<_> = found.findings.iter().filter(|finding| !finding.contains(" lost and ")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for name in &needed {
        pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
    }
    reclaim(&pool);
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    pool.close().expect("closes");
}
