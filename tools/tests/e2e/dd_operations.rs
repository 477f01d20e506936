//! After any operation of dd, truncate and fallocate a large file has the same content as on another filesystem.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Tool;
use crate::compare::assert_same_file;
use crate::random::{Random, noise, seed};
use crate::site::Site;

const FILE_BYTES: u64 = 64 << 20;
const FILE_BYTES_MIN: u64 = 8 << 20;
const FILE_BYTES_MAX: u64 = 96 << 20;
const BATCHES: u64 = 6;
const OPERATIONS_PER_BATCH: u64 = 30;
/// Bytes of the file that supplies the written bytes.
const DONOR_BYTES: u64 = 8 << 20;

/// One change of a file.
#[derive(Debug)]
enum Operation {
    Overwrite { from: u64, offset: u64, len: u64, block: u64 },
    Append { from: u64, len: u64, block: u64 },
    Truncate { size: u64 },
    Punch { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
}

impl Operation {
    /// Chooses the next operation for a file of `size` bytes.
    fn random(random: &mut Random, size: u64) -> Self {
        let len = match random.below(4) {
            0 => random.between(1, 4096),
            1 => random.between(1, 100_000),
            _ => random.between(1, 2 << 20),
        };
        let block = *random.pick(&[4096, 7777, 65_536, 1 << 20]);
        let from = random.below(DONOR_BYTES - len);
        // Some cross the end or begin behind it.
        let offset = random.below(size + (1 << 20)) & *random.pick(&[!0, !0xfff, !0xf_ffff]);
        match random.below(10) {
            0..4 => Self::Overwrite { from, offset, len, block },
            4 | 5 => Self::Append { from, len, block },
            6 | 7 => {
                let change = random.between(1, 8 << 20) >> random.below(12);
                let size = if random.once_in(2) { size + change } else { size.saturating_sub(change) };
                Self::Truncate { size: size.clamp(FILE_BYTES_MIN, FILE_BYTES_MAX) }
            }
            8 => Self::Punch { offset, len },
            _ => Self::Zero { offset, len },
        }
    }

    /// Performs the operation with its tool.
    #[track_caller]
    fn apply(&self, donor: &Path, file: &Path) {
        let dd = |from: u64, len: u64, block: u64| {
            let operand = |name: &str, path: &Path| {
                let mut operand = std::ffi::OsString::from(name);
                operand.push(path);
                operand
            };
            Tool::new("dd")
                .args([operand("if=", donor), operand("of=", file)])
                .args([format!("bs={block}"), format!("skip={from}"), format!("count={len}")])
                .args(["iflag=skip_bytes,count_bytes,fullblock", "status=none"])
        };
        let fallocate =
            |offset: u64, len: u64| Tool::new("fallocate").args(["-o", &offset.to_string(), "-l", &len.to_string()]);
        match *self {
            Self::Overwrite { from, offset, len, block } => {
                dd(from, len, block).args([&format!("seek={offset}"), "oflag=seek_bytes", "conv=notrunc"])
            }
            Self::Append { from, len, block } => dd(from, len, block).args(["oflag=append", "conv=notrunc"]),
            Self::Truncate { size } => Tool::new("truncate").arg(format!("--size={size}")).arg(file),
            Self::Punch { offset, len } => fallocate(offset, len).arg("--punch-hole").arg(file),
            Self::Zero { offset, len } => fallocate(offset, len).arg("--zero-range").arg(file),
        }
        .ok();
    }
}

#[test]
fn random_changes_of_a_file_are_those_of_any_filesystem() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (donor, plain): (PathBuf, PathBuf) = (site.base.join("donor"), site.base.join("plain"));
    let file = site.mnt.join("file");
    fs::write(&donor, noise(1, DONOR_BYTES as usize)).unwrap();
    for path in [&plain, &file] {
        fs::write(path, noise(2, FILE_BYTES as usize)).unwrap();
    }
    let mut random = Random::new(seed(3));
    for batch in 0..BATCHES {
        let mut done = Vec::new();
        for _ in 0..OPERATIONS_PER_BATCH {
            let operation = Operation::random(&mut random, fs::metadata(&plain).unwrap().len());
            operation.apply(&donor, &plain);
            operation.apply(&donor, &file);
            let (expected, found) = (fs::metadata(&plain).unwrap().len(), fs::metadata(&file).unwrap().len());
            done.push(operation);
            assert_eq!(found, expected, "wrong length after {done:#?}");
        }
        // Through the kernel's cache, as these operations left it, and then without it.
        let compared = std::panic::catch_unwind(|| assert_same_file(&plain, &file));
        assert!(compared.is_ok(), "other content after batch {batch}: {done:#?}");
        if batch % 2 == 1 {
            site.remount();
            assert_same_file(&plain, &file);
        }
    }
    site.umount();
    site.assert_clean();
    site.mount();
    assert_same_file(&plain, &file);
}

#[test]
fn a_file_written_in_other_pieces_is_the_same_file() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    fs::write(&source, noise(4, 16 << 20)).unwrap();
    let copy = |name: &str, options: &[&str]| {
        let file = site.mnt.join(name);
        let (mut from, mut to) = (std::ffi::OsString::from("if="), std::ffi::OsString::from("of="));
        from.push(&source);
        to.push(&file);
        Tool::new("dd").args([from, to]).arg("status=none").args(options).ok();
        assert_same_file(&source, &file);
    };
    copy("blocks of a megabyte", &["bs=1M"]);
    let before = site.stats();
    copy("odd blocks", &["bs=7777"]);
    copy("direct", &["bs=1M", "oflag=direct"]);
    copy("small blocks, synced", &["bs=64K", "conv=fsync"]);
    let after = site.stats();
    assert_eq!(after.unique_chunk_bytes, before.unique_chunk_bytes, "the same bytes were cut otherwise");
    site.umount();
    site.assert_clean();
}
