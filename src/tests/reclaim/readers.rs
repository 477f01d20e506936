//! Readers of chunks that reclaiming has moved: recipes name containers that are gone.

use dedupfs::reclaim::{FORWARDING_FILE, ReclaimOptions};
use dedupfs::{NoProgress, Pool};
use dedupfs_content::{ForwardingNote, StreamId};
use dedupfs_service::{FileService, ROOT_INO};

use super::site::{Site, remove};
use super::{PIECE_BYTES, assert_sound};
use crate::tests::common;
use crate::tests::common::content;

/// Small files, of one chunk each.
const SMALL_FILES: u64 = 60;

fn small(number: u64) -> (String, Vec<u8>) {
    (format!("small {number}"), content(1000 + number, 600))
}

/// Writes files that share their containers with garbage, and reclaims perfectly. Returns the content of `kept`.
fn moved(pool: &Pool) -> Vec<u8> {
    let all: Vec<Vec<u8>> = (0..40).map(|piece| content(piece + 1, PIECE_BYTES)).collect();
    for (number, pieces) in all.chunks(4).enumerate() {
        common::write(pool, &format!("garbage {number}"), &pieces.concat());
        for file in (0..SMALL_FILES).filter(|file| file % 10 == number as u64) {
            let (name, bytes) = small(file);
            common::write(pool, &name, &bytes);
        }
    }
    let kept: Vec<&[u8]> = all.iter().step_by(3).rev().map(Vec::as_slice).collect();
    common::write(pool, "kept", &kept.concat());
    pool.sync().expect("syncs");
    (0..10).for_each(|number| remove(&*pool.service(), &format!("garbage {number}")));
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(report.chunks_moved > 100, "{report:?}");
    kept.concat()
}

/// Reads everything, and compares it. Returns the lookups of chunks and those of nodes that readers made.
fn read_all(pool: &Pool, kept: &[u8]) -> (u64, u64) {
    assert_eq!(common::read(pool, "kept").as_deref(), Some(kept));
    for (name, bytes) in (0..SMALL_FILES).map(small) {
        assert!(common::read(pool, &name) == Some(bytes), "{name}");
    }
    let stats = pool.stats().expect("tells");
    (stats.data_containers.lookups, stats.recipe_containers.lookups)
}

#[test]
fn readers_of_moved_chunks_are_led_by_notes_and_present_hints() {
    let site = Site::new();
    let pool = site.open();
    let kept = moved(&pool);
    let containers = pool.stats().expect("tells").data_containers.containers;
    drop(pool);
    for _ in 0..2 {
        let pool = site.open();
        let (chunks, nodes) = read_all(&pool, &kept);
        // A small file's hint is in its inode. The first reader of a container whose table is not in memory asks the index.
        assert!(chunks <= containers && nodes <= 2, "{chunks} of {containers}, {nodes}");
        assert_sound(&pool);
    }
}

#[test]
fn without_notes_the_index_leads_to_everything() {
    let site = Site::new();
    let pool = site.open();
    let kept = moved(&pool);
    drop(pool);
    let notes = site.device().read_file(FORWARDING_FILE, 1 << 20).expect("is there");
    for spoiled in [None, Some(&notes[..notes.len() - 1]), Some(&[0; 100])] {
        site.device().remove(FORWARDING_FILE).expect("removes");
        if let Some(bytes) = spoiled {
            site.device().replace_file("", FORWARDING_FILE, bytes).expect("writes");
        }
        let pool = site.open();
        // How many are looked up one by one, and not ahead of the reader, is a matter of time.
        assert!(pool.core().stores.data.forwarding_notes().is_empty());
        read_all(&pool, &kept);
        assert_sound(&pool);
        drop(pool);
        site.device().replace_file("", FORWARDING_FILE, &notes).expect("writes");
    }
}

#[test]
fn notes_lead_through_several_moves() {
    let site = Site::new();
    let pool = site.open();
    let kept = moved(&pool);
    // Each time garbage lies beside what moved before, and it moves again.
    for round in 0..5_u64 {
        let service = pool.service();
        for file in (0..SMALL_FILES).filter(|file| file % 5 == round) {
            remove(&*service, &small(file).0);
        }
        pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
        for (name, bytes) in (0..SMALL_FILES).map(small) {
            match service.lookup(ROOT_INO, name.as_bytes()) {
                Ok(found) => {
                    service.forget(found.ino, 1);
                    assert_eq!(common::read(&pool, &name), Some(bytes));
                }
                Err(error) => assert_eq!(error, dedupfs_service::Errno::ENOENT),
            }
        }
        assert_eq!(common::read(&pool, "kept").as_deref(), Some(&*kept));
    }
    assert_sound(&pool);
}

/// Found by review: a copy that a comparing backup had found bad, and replaced, was believed again.
#[test]
fn regression_what_a_note_leads_to_must_fit_its_fingerprint() {
    let site = Site::new();
    let pool = site.open();
    let kept = moved(&pool);
    let core = pool.core();
    // The wrong copies go into a container of their own.
    core.stores.data.seal_all();
    let mut right = Vec::new();
    for (name, bytes) in (0..SMALL_FILES).map(small) {
        let found = pool.service().lookup(ROOT_INO, name.as_bytes()).expect("is there");
        pool.service().forget(found.ino, 1);
        let root = core.namespace.inode(found.ino).expect("reads").expect("is there").root;
        let child = *root.reference().expect("has content").child();
        let wrong = vec![1; bytes.len()];
        let data = &core.stores.data;
        right.push((
            child.fingerprint,
            core.indexes.chunks.get(&child.fingerprint).expect("reads").expect("is there").location,
        ));
        let container = data.append(StreamId(1 << 41), &[(child.fingerprint, &wrong)]).expect("appends")[0];
        data.add_forwarding_notes(ForwardingNote::new(child.hint, &[container].into()));
    }
    // What is appended counts as the present copy, once it is durable.
    pool.sync().expect("syncs");
    core.committer.settle().expect("settles");
    right.iter().for_each(|(fingerprint, location)| core.indexes.chunks.stage(fingerprint, *location));
    let before = pool.stats().expect("tells").data_containers.lookups;
    let (chunks, _) = read_all(&pool, &kept);
    assert!(
        chunks - before >= SMALL_FILES - 10,
        "{chunks}: the notes were followed, and what they led to was not believed"
    );
}
