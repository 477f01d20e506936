//! The requirements on every [`FileService`], as checks that panic when one is not met.
//!
//! A service's tests call [`check_service`] with a function that makes an empty service. Each check gets a fresh service, plays the kernel
//! (calls, and gives back every reference and handle it took), and compares with the promises of POSIX and Linux. No check depends on a
//! service's choice of inode numbers, cookies or directory sizes.
//!
//! The checks that only read can also run on a frozen copy of what they need: [`make_tree`] fills a live directory, the test makes a version
//! of it, and [`check_frozen`] reads that and tries to change it.

mod access_times;
mod acls;
mod attributes;
mod clones;
mod content;
mod flags;
mod frozen;
mod names;
mod reading;
mod renames;

use std::sync::Arc;

use reading::ReadingCheck;

use crate::{
    Attributes, Caller, DirectoryEntry, Errno, FileService, Handle, Ino, Listing, NewNode, NodeContent, OpenOptions,
    ROOT_INO, RenameFlags, Result, WriteFlags,
};

type Check = (&'static str, fn(&Client));

const ALL: [&[Check]; 8] = [
    names::CHECKS,
    renames::CHECKS,
    content::CHECKS,
    clones::CHECKS,
    attributes::CHECKS,
    acls::CHECKS,
    flags::CHECKS,
    access_times::CHECKS,
];

/// Runs all checks, each on an empty service from `make`. Panics at the first failure, with the name of the check.
pub fn check_service(make: &dyn Fn() -> Arc<dyn FileService>) {
    for (name, check) in ALL.into_iter().flatten() {
        run(name, make(), check);
    }
    for ReadingCheck { name, make: fill, read } in reading::CHECKS {
        run(name, make(), |client| {
            let directory = client.directory(ROOT_INO, name);
            fill(client, directory);
            read(client, directory);
        });
    }
}

/// Fills the empty directory `top` with all that [`check_frozen`] reads and tries to change.
pub fn make_tree(service: Arc<dyn FileService>, top: Ino) {
    let client = Client { service };
    for check in reading::CHECKS {
        (check.make)(&client, client.directory(top, check.name));
    }
    frozen::make(&client, client.directory(top, frozen::DIRECTORY));
}

/// Checks the version `name` in the live directory `parent`, made from a tree of [`make_tree`]: reading finds all that was made, and every
/// change is refused. Leaves a few live entries in `parent`.
pub fn check_frozen(service: &Arc<dyn FileService>, parent: Ino, name: &str) {
    let read_all = |client: &Client| {
        let top = good(client.find(parent, name)).ino;
        for check in reading::CHECKS {
            eprintln!("reading: {}", check.name);
            (check.read)(client, good(client.find(top, check.name)).ino);
        }
    };
    let client = Client { service: service.clone() };
    read_all(&client);
    frozen::check(&client, parent, name);
    read_all(&client);
}

/// Runs one check, and tells its name if it fails.
fn run(name: &str, service: Arc<dyn FileService>, check: impl FnOnce(&Client)) {
    let client = Client { service };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&client)));
    client.service.shutdown();
    if let Err(panic) = outcome {
        eprintln!("conformance check `{name}` failed");
        std::panic::resume_unwind(panic);
    }
}

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const READ_WRITE: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    truncate: false,
    sync: false,
    no_access_time: false,
    direct: false,
};

const READ: OpenOptions = OpenOptions { write: false, ..READ_WRITE };
const APPEND: OpenOptions = OpenOptions { append: true, ..READ_WRITE };
const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

/// A service with the shortcuts that checks need.
struct Client {
    service: Arc<dyn FileService>,
}

#[track_caller]
fn good<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("unexpected error: {error}"),
    }
}

#[track_caller]
fn bad<T>(result: Result<T>, expected: Errno) {
    match result {
        Ok(_) => panic!("succeeded instead of: {expected}"),
        Err(error) => assert_eq!(error, expected, "{error} instead of {expected}"),
    }
}

impl Client {
    fn make_in(&self, parent: Ino, name: &str, content: NodeContent<'_>) -> Result<Attributes> {
        let node = NewNode { parent, name: name.as_bytes(), mode: 0o755, umask: 0o022 };
        self.service.make(ROOT, node, content)
    }

    fn directory(&self, parent: Ino, name: &str) -> Ino {
        good(self.make_in(parent, name, NodeContent::Directory)).ino
    }

    fn file(&self, parent: Ino, name: &str) -> Ino {
        good(self.make_in(parent, name, NodeContent::Regular)).ino
    }

    fn file_with(&self, name: &str, content: &[u8]) -> Ino {
        self.file_in(ROOT_INO, name, content)
    }

    fn file_in(&self, parent: Ino, name: &str, content: &[u8]) -> Ino {
        let ino = self.file(parent, name);
        self.opened(ino, READ_WRITE, |handle| self.write_all(ino, handle, 0, content));
        ino
    }

    fn find(&self, parent: Ino, name: &str) -> Result<Attributes> {
        let found = self.service.lookup(parent, name.as_bytes())?;
        self.service.forget(found.ino, 1);
        Ok(found)
    }

    fn stat(&self, ino: Ino) -> Attributes {
        good(self.service.attributes(ino))
    }

    fn opened<T>(&self, ino: Ino, how: OpenOptions, work: impl FnOnce(Handle) -> T) -> T {
        let opened = good(self.service.open(ROOT, ino, how));
        let result = work(opened.handle);
        good(self.service.flush(ino, opened.handle));
        self.service.release(ino, opened.handle);
        result
    }

    #[track_caller]
    fn write_all(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) {
        let written = good(self.service.write(ROOT, ino, handle, offset, data, WriteFlags::default()));
        assert_eq!(written as usize, data.len(), "a write is whole or fails");
    }

    fn read_open(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u32) -> Vec<u8> {
        let mut into = Vec::new();
        good(self.service.read(ino, handle, offset, len_bytes, &mut into));
        into
    }

    fn read_all(&self, ino: Ino) -> Vec<u8> {
        self.opened(ino, READ, |handle| self.read_open(ino, handle, 0, 1 << 26))
    }

    fn list(&self, ino: Ino, step: usize) -> Vec<DirectoryEntry> {
        let mut all: Vec<DirectoryEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry| entry.cookie);
            let batch = good(self.service.read_directory(ino, after, step, Listing::Names));
            assert!(batch.len() <= step, "more entries than asked for");
            if batch.is_empty() {
                return all;
            }
            all.extend(batch);
        }
    }

    fn sorted_names(&self, ino: Ino) -> Vec<String> {
        let name = |entry: DirectoryEntry| String::from_utf8_lossy(&entry.name).into_owned();
        let mut names: Vec<String> = self.list(ino, 7).into_iter().map(name).collect();
        names.sort();
        names
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
        self.service.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
    }

    fn unlink(&self, parent: Ino, name: &str) -> Result<()> {
        self.service.unlink(parent, name.as_bytes())
    }
}

/// Bytes without repetition, different for each seed.
fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_names_are_unique() {
        let changing = ALL.into_iter().flatten().map(|&(name, _)| name);
        let mut names: Vec<&str> = changing.chain(reading::CHECKS.iter().map(|check| check.name)).collect();
        let count = names.len();
        assert!(count > 30, "only {count} checks");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
