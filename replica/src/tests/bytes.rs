//! Damaged and hostile bytes.

use dedupfs::export::ExportPosition;
use dedupfs_store::{ContainerId, ContainerKind, PoolId};

use crate::commit::{Commit, CommitKind, commit_key, number_of};
use crate::format::Format;
use crate::note;
use crate::place::Replica;
use crate::stored::{ContentHash, Stored};
use crate::stream::Stream;

use super::site::Site;

const POOL: PoolId = PoolId([7; 16]);

fn stored() -> Stored {
    let (id, kind) = (ContainerId(0x1234_5678_9abc), ContainerKind::Recipe);
    Stored { id, kind, used_bytes: 4096, reign: 3, hash: ContentHash([0xab; 16]) }
}

fn commit(replica: &Replica) -> Commit {
    let position =
        ExportPosition { lineage: [3; 16], epoch: 4, generation: 5, log_bytes: 9, row: 8, ..Default::default() };
    let stream = |bytes: &[u8]| Stream::upload_bytes(replica, 7, bytes).expect("uploads");
    Commit {
        kind: CommitKind::Delta,
        number: 7,
        previous: [1; 32],
        base: 6,
        reign: 3,
        run: [2; 16],
        position,
        log_from: 2,
        written_secs: 10,
        superblock: Vec::new(),
        export_base: Stream::default(),
        export_log: stream(b"changes"),
        named: stream(&Stored::encode_all([stored()].iter())),
        retired: Stream::default(),
    }
}

#[test]
fn every_flipped_byte_and_every_truncation_is_an_error() {
    let site = Site::new();
    let commit = commit(&site.replica().expect("opens"));
    let bytes = commit.encode(&POOL);
    assert_eq!(Commit::decode(&POOL, 7, &bytes).expect("decodes"), commit);
    assert!(Commit::decode(&POOL, 8, &bytes).is_err(), "another number");
    assert!(Commit::decode(&PoolId([8; 16]), 7, &bytes).is_err(), "another pool");
    let format = Format { pool: POOL, replica: [1; 16], key: Some([2; 16]), created_secs: 3 };
    assert_eq!(Format::decode(&format.encode()).expect("decodes"), format);
    for (bytes, decodes) in [
        (bytes, &(|bytes: &[u8]| Commit::decode(&POOL, 7, bytes).is_ok()) as &dyn Fn(&[u8]) -> bool),
        (format.encode(), &|bytes| Format::decode(bytes).is_ok_and(|found| found.pool == POOL)),
    ] {
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(!decodes(&damaged), "byte {at} of {}", bytes.len());
            assert!(!decodes(&bytes[..at]), "cut at {at} of {}", bytes.len());
        }
    }
}

/// Sound checksums prove nothing about bytes of somebody with the key.
#[test]
fn commits_whose_parts_do_not_fit_are_refused() {
    let site = Site::new();
    let good = commit(&site.replica().expect("opens"));
    let refused = |change: &dyn Fn(&mut Commit)| {
        let mut commit = good.clone();
        change(&mut commit);
        Commit::decode(&POOL, 7, &commit.encode(&POOL)).is_err()
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|commit| commit.base = 7));
    assert!(refused(&|commit| commit.base = 0));
    assert!(refused(&|commit| commit.kind = CommitKind::Base));
    assert!(refused(&|commit| commit.kind = CommitKind::Fence));
    assert!(refused(&|commit| commit.log_from = 3));
    assert!(refused(&|commit| commit.log_from = 10));
    assert!(refused(&|commit| commit.reign = 8));
    assert!(refused(&|commit| commit.superblock = vec![1]));
    assert!(refused(&|commit| commit.export_log.len_bytes = 1 << 40));
}

#[test]
fn names_of_objects_are_stable() {
    let key = stored().key().expect("is a key");
    assert_eq!(key.as_str(), "r/bc/0000123456789abc-abababababababababababababababab");
    let commit = commit_key(0x1f).expect("is a key");
    assert_eq!((commit.as_str(), number_of(&commit)), ("log/000000000000001f", Some(31)));
    assert_eq!(ContentHash([0x5c; 16]).piece_key().expect("is a key").as_str(), format!("n/5c/{}", "5c".repeat(16)));
    let (one, other) = (ContentHash::of(&[1; 32], 0, b"x"), ContentHash::of(&[1; 32], 1, b"x"));
    assert_ne!(one, other);
    assert_ne!(one, ContentHash::of(&[2; 32], 0, b"x"));
}

#[test]
fn damaged_notes_are_none() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let pool = site.pool_id();
    for (name, bytes) in site.notes() {
        for at in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let is_read = match name.as_str() {
                "commit" => note::decode_note("note", &pool, &damaged).is_ok(),
                _ => note::decode_run("note", &pool, &damaged).is_ok(),
            };
            assert!(!is_read, "byte {at} of {name}");
        }
    }
}
