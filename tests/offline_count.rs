//! The independent counter of `examples/offline_count.rs`: its own rules, and its agreement with the engine's chunkers
//! and fingerprints. A later difference to `dedupfs-stats` is then the engine's and not the counter's.

#[path = "../examples/offline_count.rs"]
#[expect(dead_code, reason = "the example's main and command line are not called here")]
mod offline_count;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use dedupfs_content::Fingerprinter;
use dedupfs_content::chunker;
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};
use offline_count::{Chunking, Counts, count};

fn random_bytes(mut state: u64, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Makes the same count with the engine's parts; `files` are distinct inodes.
fn count_with_engine(files: &[PathBuf], kind: ChunkerKind, average_bytes: u32) -> Counts {
    let chunker = chunker(kind, average_bytes);
    let fingerprinter = Fingerprinter::new(FingerprintAlgorithm::Blake3);
    let mut counts = Counts { files: files.len() as u64, ..Counts::default() };
    let mut distinct = HashMap::new();
    for file in files {
        let data = fs::read(file).unwrap();
        counts.total_bytes += data.len() as u64;
        let (mut lens, mut start, mut fingerprints) = (Vec::new(), 0, Vec::new());
        while let Some(len) = chunker.next_cut(&data[start..], true) {
            lens.push(u32::try_from(len).unwrap());
            start += len;
        }
        fingerprinter.batch(&data, &lens, &mut fingerprints);
        for (fingerprint, len) in fingerprints.iter().zip(&lens) {
            if fingerprint.is_zero() {
                counts.zero_bytes += u64::from(*len);
            } else {
                counts.chunks += 1;
                distinct.insert(*fingerprint, *len);
            }
        }
    }
    counts.distinct_chunks = distinct.len() as u64;
    counts.distinct_chunk_bytes = distinct.values().map(|len| u64::from(*len)).sum();
    counts
}

fn write(directory: &Path, name: &str, data: &[u8]) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, data).unwrap();
    path
}

#[test]
fn agrees_with_the_engine_to_the_byte() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("below")).unwrap();
    let content = random_bytes(1, 3 << 20);
    let mut edited = content.clone();
    edited.splice(1 << 20..1 << 20, random_bytes(2, 777));
    let mut with_zeros = random_bytes(3, 100_000);
    with_zeros.resize(1_000_000, 0);
    with_zeros.extend(random_bytes(4, 5));
    let files = [
        write(directory.path(), "content", &content),
        write(directory.path(), "below/copy", &content),
        write(directory.path(), "below/edited", &edited),
        write(directory.path(), "with_zeros", &with_zeros),
        write(directory.path(), "small", b"small"),
        write(directory.path(), "zeros", &[0; 10_000]),
        write(directory.path(), "empty", b""),
    ];
    fs::hard_link(&files[0], directory.path().join("below/other_name")).unwrap();
    symlink(&files[0], directory.path().join("link")).unwrap();
    for average in [4 * 1024, 10_000, 64 * 1024] {
        for (chunking, kind) in
            [(Chunking::MinCdc(average), ChunkerKind::MinCdc), (Chunking::FastCdc(average), ChunkerKind::FastCdc)]
        {
            let found = count(&[directory.path().to_owned()], chunking).unwrap();
            assert_eq!(found, count_with_engine(&files, kind, average as u32), "{chunking:?}");
            assert!(found.zero_bytes >= 10_000 && found.distinct_chunk_bytes < found.total_bytes / 2, "{found:?}");
        }
    }
}

#[test]
fn every_name_of_an_inode_counts_once_however_it_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "file", &[7; 5_000]);
    let other = directory.path().join("other");
    fs::hard_link(&file, &other).unwrap();
    let expected = Counts {
        files: 1,
        total_bytes: 5_000,
        chunks: 2,
        distinct_chunks: 2,
        distinct_chunk_bytes: 5_000,
        zero_bytes: 0,
    };
    let paths = [file, other, directory.path().to_owned()];
    assert_eq!(count(&paths, Chunking::MinCdc(8 * 1024)).unwrap(), expected);
}

#[test]
fn an_absent_path_is_an_error_that_names_it() {
    let error = count(&["/nonexistent/of/offline_count".into()], Chunking::FastCdc(8 * 1024)).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/of/offline_count"));
}
