//! Requests of one file while another request of it is at the disk. A request that has to wait announces it first, so
//! that another thread can receive the kernel's requests meanwhile; and decisions made while it waited apply to it.
//!
//! No times are measured. The file is held for as long as a test wants.

mod bounds;
mod counting;
#[path = "../../../tests/blocked/gate.rs"]
mod gate;
mod site;

use std::time::Duration;

use dedupfs::Service;
use dedupfs_service::{
    AttributeChanges, Errno, FileService, Handle, InodeFlags, OpenOptions, Result, SeekTarget, TimeChange, WriteFlags,
};

use site::{CALLER, File, Met, READ_WRITE, SIZE_BYTES, Site, beside};

/// Mode flags of fallocate(2).
const PUNCH_HOLE_KEEP_SIZE: i32 = 0x03;

/// A request of the held file, which has a neighbour with a lower number and one with a higher.
type Request = fn(&Service, &Files) -> Result<()>;

/// Three files, all open to read and write.
struct Files {
    lower: File,
    held: File,
    higher: File,
    /// A second handle of the held file. The request that releases it closes it.
    second: Handle,
}

fn nothing<T>(result: Result<T>) -> Result<()> {
    result.map(drop)
}

fn truncate(service: &Service, files: &Files) -> Result<()> {
    let changes = AttributeChanges { size_bytes: Some(5), ..AttributeChanges::default() };
    nothing(service.set_attributes(CALLER, files.held.ino, changes))
}

fn truncate_by_opening(service: &Service, files: &Files) -> Result<()> {
    let how = OpenOptions { truncate: true, ..READ_WRITE };
    let opened = service.open(CALLER, files.held.ino, how)?;
    service.release(files.held.ino, opened.handle);
    Ok(())
}

fn write(service: &Service, files: &Files) -> Result<()> {
    nothing(service.write(CALLER, files.held.ino, files.held.handle, 7, b"written", WriteFlags::default()))
}

fn punch(service: &Service, files: &Files) -> Result<()> {
    service.allocate(files.held.ino, files.held.handle, 0, 100_000, PUNCH_HOLE_KEEP_SIZE)
}

fn extend(service: &Service, files: &Files) -> Result<()> {
    service.allocate(files.held.ino, files.held.handle, 0, 2 * SIZE_BYTES as u64, 0)
}

fn copy_from_lower(service: &Service, files: &Files) -> Result<()> {
    nothing(service.copy_range(CALLER, files.lower.place(0), files.held.place(0), 1 << 40))
}

fn copy_from_higher(service: &Service, files: &Files) -> Result<()> {
    nothing(service.copy_range(CALLER, files.higher.place(0), files.held.place(0), 1 << 40))
}

fn copy_within(service: &Service, files: &Files) -> Result<()> {
    nothing(service.copy_range(CALLER, files.held.place(0), files.held.place(SIZE_BYTES / 2), 1000))
}

/// Requests that change the content.
const CHANGES: [(&str, Request); 8] = [
    ("write", write),
    ("truncate", truncate),
    ("open with O_TRUNC", truncate_by_opening),
    ("punch a hole", punch),
    ("fallocate", extend),
    ("copy from a file of a lower number", copy_from_lower),
    ("copy from a file of a higher number", copy_from_higher),
    ("copy within the file", copy_within),
];

/// Other requests that need the file.
const OTHERS: [(&str, Request); 10] = [
    ("read", |service, files| service.read(files.held.ino, files.held.handle, 0, 100, &mut Vec::new())),
    ("flush", |service, files| service.flush(files.held.ino, files.held.handle)),
    ("fsync", |service, files| service.fsync(files.held.ino, files.held.handle)),
    ("release", |service, files| {
        service.release(files.held.ino, files.second);
        Ok(())
    }),
    ("seek", |service, files| nothing(service.seek(files.held.ino, files.held.handle, 0, SeekTarget::Hole))),
    ("copy to a file of a lower number", |service, files| {
        nothing(service.copy_range(CALLER, files.held.place(0), files.lower.place(0), 1 << 40))
    }),
    ("copy to a file of a higher number", |service, files| {
        nothing(service.copy_range(CALLER, files.held.place(0), files.higher.place(0), 1 << 40))
    }),
    ("set mtime", |service, files| {
        let changes = AttributeChanges { mtime: Some(TimeChange::Now), ..AttributeChanges::default() };
        nothing(service.set_attributes(CALLER, files.held.ino, changes))
    }),
    // As a full disk does to get room.
    ("publish all files, with patience", |service, _| {
        service.publish_all(None, Some(Duration::from_secs(600))).map_err(|error| crate::service::errno(&error))
    }),
    ("set flags", |service, files| service.set_flags(CALLER, files.held.ino, InodeFlags::default())),
];

fn files(service: &Service) -> Files {
    let [lower, held, higher] = ["lower", "held", "higher"].map(|name| File::open(service, name));
    assert!(lower.ino < held.ino && held.ino < higher.ino);
    let second = service.open(CALLER, held.ino, READ_WRITE).expect("opens").handle;
    Files { lower, held, higher, second }
}

#[test]
fn whoever_waits_for_a_file_says_so_first() {
    let site = Site::new();
    for (what, request) in CHANGES.into_iter().chain(OTHERS) {
        let pool = site.open();
        let service = pool.service();
        let files = files(&service);
        std::thread::scope(|scope| {
            let held = site.hold(scope, &service, files.held);
            let asked = beside(scope, || request(&service, &files));
            assert_eq!(asked.met(what), Met::Announcement, "{what}");
            held.let_go();
            assert_eq!(asked.outcome(), Ok(()), "{what}");
        });
        site.check(pool);
    }
}

/// The thread on which all requests depend asks whether a request will take long.
#[test]
fn nobody_waits_to_learn_whether_a_request_takes_long() {
    let site = Site::new();
    let pool = site.open();
    let service = pool.service();
    let files = files(&service);
    let File { ino, handle } = files.held;
    std::thread::scope(|scope| {
        let held = site.hold(scope, &service, files.held);
        assert!(!held.closed.goes_on("read", || service.read_is_quick(ino, handle, 0, 1)));
        assert!(!held.closed.goes_on("flush", || service.flush_is_quick(ino, handle)));
        assert!(!held.closed.goes_on("change", || service.change_is_quick(ino)));
        held.let_go();
    });
    site.check(pool);
}

/// A flag that was set while a request waited for the file also applies to that request.
#[test]
fn regression_what_waited_for_a_file_changes_nothing_behind_a_flag() {
    let immutable = InodeFlags { immutable: true, ..InodeFlags::default() };
    let site = Site::new();
    for (what, request) in CHANGES {
        let pool = site.open();
        let service = pool.service();
        let files = files(&service);
        std::thread::scope(|scope| {
            let held = site.hold(scope, &service, files.held);
            let asked = beside(scope, || request(&service, &files));
            assert_eq!(asked.met(what), Met::Announcement, "{what}");
            let flagged = beside(scope, || service.set_flags(CALLER, files.held.ino, immutable));
            let is_set_before = flagged.met("set flags") == Met::End;
            held.let_go();
            assert_eq!(flagged.outcome(), Ok(()));
            let outcome = asked.outcome();
            assert!(!is_set_before || outcome == Err(Errno::EPERM), "{what}: {outcome:?} behind the flag");
        });
        assert_eq!(write(&service, &files), Err(Errno::EPERM));
        service.set_flags(CALLER, files.held.ino, InodeFlags::default()).expect("clears the flag");
        site.check(pool);
    }
}
