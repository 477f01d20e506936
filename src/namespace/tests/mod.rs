//! Tests of the namespace: rules, a model, faults, crashes, damage.

mod checksums;
mod crash;
mod damage;
mod faults;
mod layers;
mod model;
mod posix;
mod reference;
mod repair;
mod versions;

use dedupfs_service::{FileKind, InodeFlags, ROOT_INO, RenameFlags, Timestamp};
use dedupfs_store::device::faulty::FaultyDevice;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint};

use super::verified::VerifiedFile;
use super::*;

const CACHE_BYTES: u64 = 4 << 20;

fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 7 }
}

fn new(kind: FileKind, now: i64) -> NewInode {
    NewInode {
        kind,
        mode: 0o644,
        uid: 10,
        gid: 20,
        rdev: 0,
        symlink_target: (kind == FileKind::Symlink).then(|| b"target".to_vec()),
        xattrs: Vec::new(),
        flags: InodeFlags::default(),
        now: at(now),
    }
}

fn file(now: i64) -> NewInode {
    new(FileKind::Regular, now)
}

fn directory(now: i64) -> NewInode {
    new(FileKind::Directory, now)
}

fn chunk(number: u8) -> Root {
    let fingerprint = Fingerprint([number.max(1); 32]);
    Root::Chunk(Child { fingerprint, len_bytes: 100, hint: ContainerId(5) })
}

/// Keeps the times of an inode that gets new content.
fn kept(inode: &Inode) -> (Timestamp, Timestamp) {
    (inode.mtime, inode.ctime)
}

fn disk() -> MemoryDevice {
    let disk = MemoryDevice::new();
    Namespace::create(&disk, at(1), 0, 0).unwrap();
    disk
}

fn open(disk: &MemoryDevice) -> Namespace {
    open_on(disk).unwrap()
}

/// Opens the namespace as opening a pool does.
fn open_on(device: &dyn Device) -> Result<Namespace> {
    let namespace = Namespace::open(device, CACHE_BYTES, &|_| Ok(()))?;
    namespace.begin_writing()?;
    Ok(namespace)
}

fn fresh() -> Namespace {
    open(&disk())
}

fn faulty(disk: &MemoryDevice) -> (FaultyDevice, Namespace) {
    let device = FaultyDevice::over_memory(disk);
    let namespace = open_on(&device).unwrap();
    (device, namespace)
}

impl Namespace {
    /// Freezes and commits.
    fn save(&self) -> Result<Committed> {
        self.freeze();
        self.commit(CommitInput::default())
    }

    fn get(&self, ino: Ino) -> Inode {
        self.inode(ino).unwrap().unwrap()
    }

    /// Returns everything that a directory shows, read in pages.
    fn list(&self, directory: Ino, page: usize) -> Vec<DirItem> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let items = self.read_directory(directory, after, page).unwrap();
            all.extend(items.iter().cloned());
            match items.last() {
                Some(last) if items.len() == page => after = last.cookie,
                _ => return all,
            }
        }
    }

    fn list_names(&self, directory: Ino) -> Vec<Vec<u8>> {
        let mut names: Vec<_> = self.list(directory, 3).into_iter().map(|item| item.name).collect();
        names.sort();
        names
    }

    fn rows(&self) -> Vec<(u64, Vec<LogOp>)> {
        let mut rows = Vec::new();
        self.log_after(0, &mut |row, ops| {
            rows.push((row, ops));
            Ok(())
        })
        .unwrap();
        rows
    }

    /// The findings of a check of the last commit, which is the same with many ranges and with one, with and without files.
    fn findings(&self) -> Vec<String> {
        let scratch = tempfile::tempdir().unwrap();
        let (admits, refuses) = (|_| Ok(()), |_| Err("no".to_owned()));
        let place = Scratch { directory: scratch.path(), admits: &admits };
        let nowhere = scratch.path().join("nowhere");
        let [one, many, kept, refused, missing] = [
            (u64::MAX, Some(place)),
            (200, None),
            (200, Some(place)),
            (200, Some(Scratch { admits: &refuses, ..place })),
            (200, Some(Scratch { directory: &nowhere, ..place })),
        ]
        .map(|(memory_bytes, place)| {
            let mut checked = self.check(memory_bytes, place, &|| false).unwrap();
            checked.findings.sort();
            checked
        });
        assert_eq!((one.readings, kept.readings, &kept.failure), (1, 1, &None));
        let has_ranges = many.readings > 1;
        assert_eq!([refused.readings, missing.readings], [many.readings; 2]);
        assert_eq!([refused.failure.is_some(), missing.failure.is_some()], [has_ranges; 2]);
        for other in [many, kept, refused, missing] {
            assert_eq!(other.findings, one.findings);
        }
        one.findings
    }

    fn assert_sound(&self) {
        assert_eq!(self.findings(), Vec::<String>::new());
    }
}

const NONE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, ..NONE };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..NONE };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..NONE };

/// Names the kind of an error, for comparison.
fn class(error: &EngineError) -> &'static str {
    match error {
        EngineError::NotFound => "NotFound",
        EngineError::Exists => "Exists",
        EngineError::NotDirectory => "NotDirectory",
        EngineError::IsDirectory => "IsDirectory",
        EngineError::NotEmpty => "NotEmpty",
        EngineError::NotPermitted => "NotPermitted",
        EngineError::NoAttribute => "NoAttribute",
        EngineError::NameTooLong => "NameTooLong",
        EngineError::AttributeNameTooLong => "AttributeNameTooLong",
        EngineError::AttributeTooLong => "AttributeTooLong",
        EngineError::TooManyLinks => "TooManyLinks",
        EngineError::NoSpace => "NoSpace",
        EngineError::Invalid(_) => "Invalid",
        EngineError::Store(StoreError::Corrupt { .. }) => "Corrupt",
        EngineError::Store(_) => "Store",
        _ => "Other",
    }
}

#[track_caller]
fn fails<T: std::fmt::Debug>(expected: &str, result: Result<T>) {
    match result {
        Ok(value) => panic!("{value:?} instead of {expected}"),
        Err(error) => assert_eq!(class(&error), expected, "{error}"),
    }
}

/// Gives an inode a link count, bypassing all rules.
fn force_links(namespace: &Namespace, ino: Ino, nlink: u32) {
    let (_lock, mut draft) = namespace.begin().unwrap();
    draft.inode(ino).unwrap().nlink = nlink;
    draft.apply();
}
