//! What cannot be mounted is refused: with the documented exit code, a message that says what to do, and no change.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use dedupfs_store::codec::checksum;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};

use crate::command::{DEDUPFS, GC, Ran, STATS, Tool};
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// What a mount and what fsck exit with.
const NOT_A_POOL: (i32, i32) = (3, 8);
const DAMAGED: (i32, i32) = (6, 4);
const IN_USE: (i32, i32) = (4, 8);
const USAGE: i32 = 2;
const FUSE_UNAVAILABLE: i32 = 7;
const MOUNTPOINT: i32 = 8;

const CONTENT_BYTES: usize = 300_000;

/// A pool with a file in it, and its data in a directory of its own.
fn filled() -> Site {
    let data = OsStr::new("--data");
    let site = Site::with(|base| base.join("pool"), &[]);
    drop(site);
    let directory = tempfile::tempdir().unwrap();
    let _ = (data, directory);
    unreachable!()
}

/// Everything in a directory but what a process may write that only looks.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let all = crate::files::walk(root).into_iter();
    all.filter(|path| !["lock", "dedupfs.log"].iter().any(|name| path.ends_with(name)))
        .map(|path| {
            let bytes = fs::read(root.join(&path)).unwrap();
            (path, (bytes.len() as u64, checksum(&bytes)))
        })
        .collect()
}
