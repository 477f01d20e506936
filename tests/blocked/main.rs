//! No request waits for another request's disk: while one request hangs in a device, all others complete, on a real
//! mount with one thread that receives requests.
//!
//! No times are measured. The device hangs for as long as a test wants, so a request that waits for it does not return.

mod gate;
mod site;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::NoProgress;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs_store::device::observed::Call;

use site::{LARGE_BYTES, Site, content, large};

fn is_of(call_path: &str, part: &str) -> bool {
    call_path.starts_with(part)
}

fn syncs_content(call: &Call<'_>) -> bool {
    matches!(call, Call::Sync { path } if is_of(path, "containers/"))
}

fn syncs_namespace(call: &Call<'_>) -> bool {
    matches!(call, Call::Sync { path } if *path == "namespace.redb")
}

fn syncs_checksums(call: &Call<'_>) -> bool {
    matches!(call, Call::Sync { path } if is_of(path, "namespace.sums"))
}

fn writes_namespace(call: &Call<'_>) -> bool {
    matches!(call, Call::Write { path, .. } if *path == "namespace.redb")
}

fn reads_content(call: &Call<'_>) -> bool {
    call.read().is_some_and(|(path, ..)| is_of(path, "containers/"))
}

fn reads_recipes(call: &Call<'_>) -> bool {
    call.read().is_some_and(|(path, ..)| is_of(path, "recipes/"))
}

fn reads_namespace(call: &Call<'_>) -> bool {
    matches!(call, Call::Read { path, .. } if *path == "namespace.redb")
}

fn writes_content(call: &Call<'_>) -> bool {
    matches!(call, Call::Write { path, .. } if is_of(path, "containers/"))
}

/// An fsync hangs in each of the steps of a commit.
#[test]
fn others_go_on_while_an_fsync_hangs() {
    let site = Site::new();
    for (number, hangs) in [syncs_content, writes_namespace, syncs_checksums, syncs_namespace].into_iter().enumerate() {
        let closed = site.gate.close(1, hangs);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = fs::File::create(site.path(format!("synced-{number}"))).expect("creates");
                file.write_all(&content(number as u64 + 500, 100_000)).expect("writes");
                file.sync_all().expect("syncs");
            });
            closed.wait();
            site.others_go_on(&closed);
            drop(closed);
        });
    }
    site.check();
}

/// More fsyncs hang than there are threads for slow calls.
#[test]
fn others_go_on_while_many_fsyncs_hang() {
    const CLIENTS: usize = 40;
    let site = Site::new();
    let closed = site.gate.close(1, syncs_content);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let path = site.path(format!("client-{client}"));
            scope.spawn(move || {
                let mut file = fs::File::create(path).expect("creates");
                file.write_all(&content(client as u64 + 700, 50_000)).expect("writes");
                file.sync_all().expect("syncs");
            });
        }
        closed.wait();
        site.others_go_on(&closed);
        drop(closed);
    });
    site.check();
}

/// A reader waits for content, and a client that opens a file to append waits for its recipe.
#[test]
fn others_go_on_while_a_read_hangs() {
    let site = Site::new();
    let closed = site.gate.close(1, reads_content);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Reads from a container that no other client needs: another reader of the same bytes would wait for them.
            let (mut read, half) = (vec![0; 1 << 20], LARGE_BYTES / 2);
            let file = fs::File::open(site.path("large-0")).expect("opens");
            file.read_exact_at(&mut read, half as u64).expect("reads");
            assert!(read == large(0)[half..half + read.len()]);
        });
        closed.wait();
        site.others_go_on(&closed);
        let file = site.path("synced");
        closed.goes_on("an fsync", || {
            let mut file = fs::File::create(file).expect("creates");
            file.write_all(b"bytes").expect("writes");
            file.sync_all().expect("syncs");
        });
        drop(closed);
    });
    let closed = site.gate.close(1, reads_recipes);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The recipe lies in a region of its own; the table of the only container of recipes is in memory by now.
            let file = fs::OpenOptions::new().write(true).open(site.path("large-2")).expect("opens");
            file.write_all_at(b"tail", LARGE_BYTES as u64).expect("appends");
        });
        closed.wait();
        site.others_go_on(&closed);
        drop(closed);
    });
    site.check();
}

/// A lookup waits for a page of the namespace.
#[test]
fn others_go_on_while_a_lookup_hangs() {
    let site = Site::new();
    // The last directories: no other client looks there. The kernel lets no client change a directory while it looks a
    // name up in it.
    let directories = (site::DIRECTORIES - 4)..site::DIRECTORIES;
    for directory in directories.clone() {
        assert!(fs::metadata(site.path(format!("{directory}"))).expect("is there").is_dir());
    }
    let closed = site.gate.close(1, reads_namespace);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for directory in directories {
                assert!(fs::symlink_metadata(site.path(format!("{directory}/50"))).expect("is there").is_file());
            }
        });
        closed.wait();
        site.others_go_on(&closed);
        drop(closed);
    });
    site.check();
}

/// Writers have used up the bytes in flight, because no write ends: only writers wait.
#[test]
fn readers_go_on_while_writers_wait_for_room() {
    const WRITERS: u64 = 4;
    const PIECES: u64 = 100;
    let site = Site::new();
    let closed = site.gate.close(usize::MAX, writes_content);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (path, written) = (site.path(format!("much-{writer}")), &written);
            scope.spawn(move || {
                let mut file = fs::File::create(path).expect("creates");
                for piece in 0..PIECES {
                    file.write_all(&content(writer << 32 | piece, 1 << 20)).expect("writes");
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        closed.wait();
        // Waits until no writer gets any further.
        let mut before = u64::MAX;
        while written.load(Ordering::Relaxed) != before {
            before = written.load(Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        assert!(before < WRITERS * PIECES, "nobody waits: this test proves nothing");
        site.others_read(&closed);
        closed.goes_on("mkdir", || fs::create_dir(site.path("made")).expect("makes a directory"));
        drop(closed);
    });
    site.check();
}

/// Reclaiming waits for the disk, once while it reads chunks to copy and once while it syncs the copies.
#[test]
fn others_go_on_while_reclaiming_hangs() {
    for hangs in [reads_content, syncs_content] {
        let mut site = Site::new();
        // Makes containers that are half garbage: one process writes two files at once, and one of them is removed.
        let file = |name: &str| fs::File::create(site.path(name)).expect("creates");
        let (mut kept, mut gone) = (file("kept"), file("gone"));
        for piece in 0..24 {
            kept.write_all(&content(2000 + piece, 1 << 20)).expect("writes");
            gone.write_all(&content(3000 + piece, 1 << 20)).expect("writes");
        }
        drop((kept, gone));
        fs::remove_file(site.path("gone")).expect("unlinks");
        site.remount();
        let pool = site.pool.as_ref().expect("is open");
        std::thread::scope(|scope| {
            let closed = site.gate.close(1, hangs);
            let reclaiming = scope.spawn(|| {
                let options = ReclaimOptions::below(90);
                pool.reclaim(&options, &NoProgress).expect("reclaims")
            });
            closed.wait();
            site.others_go_on(&closed);
            drop(closed);
            assert!(reclaiming.join().expect("ends").containers_freed > 0);
        });
        let mut kept = Vec::new();
        fs::File::open(site.path("kept")).expect("opens").read_to_end(&mut kept).expect("reads");
        let expected: Vec<u8> = (0..24).flat_map(|piece| content(2000 + piece, 1 << 20)).collect();
        assert!(kept == expected);
        site.check();
    }
}
