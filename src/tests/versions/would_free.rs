//! What a removal would free is what it then frees, to the byte.

use dedupfs::{NoProgress, Pool, WouldFree};
use dedupfs_service::{FileService, Ino, ROOT_INO};

use super::site::*;
use crate::tests::scrub::Random;

/// Bytes of chunks and of nodes that the indexes have.
fn held(pool: &Pool) -> (u64, u64, u64, u64) {
    pool.core().committer.settle().expect("settles");
    let (mut chunks, mut nodes) = ((0, 0), (0, 0));
    let core = pool.core();
    for (index, sum) in [(&core.indexes.chunks, &mut chunks), (&core.indexes.nodes, &mut nodes)] {
        let mut add = |_, cell: dedupfs_index::Cell| {
            *sum = (sum.0 + 1, sum.1 + u64::from(cell.location.len_bytes()));
            Ok(())
        };
        index.for_each(&mut add).expect("reads");
    }
    (chunks.0, chunks.1, nodes.0, nodes.1)
}

fn assert_told(before: (u64, u64, u64, u64), told: &WouldFree, after: (u64, u64, u64, u64), what: &str) {
    let freed = (before.0 - after.0, before.1 - after.1, before.2 - after.2, before.3 - after.3);
    assert_eq!((told.chunks, told.chunk_bytes, told.nodes, told.node_bytes), freed, "{what}");
}

/// Changes some files of a live tree.
fn change(pool: &Pool, live: Ino, random: &mut Random) {
    for _ in 0..random.below(6) {
        let name = format!("file-{}", random.below(30));
        let content = match random.below(4) {
            0 => bytes(random.below(8), 200_000),
            1 => bytes(random.below(20), 30_000),
            _ => format!("small {}", random.below(10)).into_bytes(),
        };
        let _absent = pool.service().unlink(live, name.as_bytes());
        file(pool, live, &name, &content);
    }
}

#[test]
fn what_would_be_freed_is_what_removal_and_reclaiming_then_free() {
    for seed in 1..=25 {
        let mut random = Random(seed);
        let device = formatted();
        let pool = open(&device);
        let live = directory(&pool, ROOT_INO, "live");
        let many = directory(&pool, live, "many");
        for number in 0..60 {
            file(&pool, many, &format!("m-{number}"), format!("{number}").as_bytes());
        }
        let mut names = Vec::new();
        for number in 0..3 + random.below(5) {
            change(&pool, live, &mut random);
            let name = format!("v{number}");
            snapshot(&pool, "live", "", &name);
            names.push(name);
        }
        reclaim(&pool);
        while !names.is_empty() {
            let count = 1 + random.below(3.min(names.len() as u64)) as usize;
            let mut set: Vec<String> = Vec::new();
            for _ in 0..count {
                set.push(names.remove(random.below(names.len() as u64) as usize));
            }
            let inos: Vec<Ino> = set.iter().map(|name| find(&pool, name)).collect();
            let told = pool.would_free(&inos, &NoProgress).expect("counts down");
            let before = held(&pool);
            set.iter().for_each(|name| forget(&pool, ROOT_INO, name));
            reclaim(&pool);
            assert_told(before, &told, held(&pool), &format!("seed {seed}, {set:?}"));
        }
        let told = pool.would_free(&[live], &NoProgress).expect("counts down");
        let before = held(&pool);
        pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
        reclaim(&pool);
        assert_told(before, &told, held(&pool), &format!("seed {seed}, the live tree"));
        assert_eq!(held(&pool), (0, 0, 0, 0));
        assert_clean(&pool);
    }
}

#[test]
fn a_name_more_elsewhere_keeps_a_file_and_parts_of_versions_are_refused() {
    let device = formatted();
    let pool = open(&device);
    let (one, other) = (directory(&pool, ROOT_INO, "one"), directory(&pool, ROOT_INO, "other"));
    let ino = file(&pool, one, "file", &bytes(1, 50_000));
    pool.service().link(ino, other, b"linked").expect("links");
    pool.service().forget(ino, 1);
    let of = |inos: &[Ino]| pool.would_free(inos, &NoProgress).expect("counts down");
    assert_eq!(of(&[one]), WouldFree::default());
    assert_eq!(of(&[one, other]).chunk_bytes, 50_000);
    assert_eq!(of(&[ROOT_INO, one, ROOT_INO]).chunk_bytes, 50_000, "each inode is counted once");
    snapshot(&pool, "one", "", "v");
    assert_eq!(of(&[one, other]), WouldFree::default());
    assert_eq!(of(&[ROOT_INO]).chunk_bytes, 50_000);
    pool.would_free(&[find(&pool, "v/file")], &NoProgress).expect_err("is a part of a version");
    pool.would_free(&[77_777], &NoProgress).expect_err("is not there");
}
