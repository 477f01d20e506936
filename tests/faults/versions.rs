//! The work on versions during which the disk fails: snapshots, puts, removal, live trees of versions.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use dedupfs::transfer::{BaseChoice, PutOptions, TransferError, TransferReport, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool};
use dedupfs_service::{Errno, FileService, ROOT_INO};

use crate::client::Client;
use crate::disks::Disks;
use crate::expected::{Seen, State};
use crate::session::{Session, check_errno};
use crate::work::{self, check_message, content};

const LIVE: &str = "live";
const WORK: &str = "work";

/// A tree on a sound disk, and the version of it.
struct Source {
    top: tempfile::TempDir,
    version: Seen,
}

/// Returns the source of all puts, made once.
fn source() -> &'static Source {
    static SOURCE: OnceLock<Source> = OnceLock::new();
    SOURCE.get_or_init(|| {
        let top = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("makes a directory");
        let at = |name: &str| top.path().join(name);
        ["one", "one/two"].iter().for_each(|name| std::fs::create_dir(at(name)).expect("makes"));
        for (number, name) in (30..).zip(["a", "b", "one/c", "one/two/d"]) {
            std::fs::write(at(name), content(number, 20_000 * (number as usize - 29))).expect("writes");
        }
        std::fs::hard_link(at("a"), at("one/linked")).expect("links");
        std::os::unix::fs::symlink("a", at("symlink")).expect("links");
        let disks = Disks::empty(1);
        work::format(&disks).expect("formats");
        let pool = disks.open(false).expect("opens");
        put(&pool, &top, "version", BaseChoice::None).expect("puts");
        let version = seen(&pool, "version").expect("is read");
        Source { top, version }
    })
}

/// Describes a directory, live or frozen.
fn seen(pool: &Pool, name: &str) -> Result<Seen, Errno> {
    let described = Client::new(pool.service()).describe_frozen(name, "")?;
    Ok(Seen { content: Arc::new(described.into_bytes()), mark: None })
}

/// Returns what a version shows.
pub fn look(pool: &Pool, name: &str) -> Result<State, Errno> {
    seen(pool, name).map(Some)
}

fn put(pool: &Pool, top: &tempfile::TempDir, name: &str, base: BaseChoice) -> Result<TransferReport, TransferError> {
    let version = VersionOptions { base, racy_ms: 0, ..VersionOptions::default() };
    let options = PutOptions { version: Some(version), ..PutOptions::default() };
    let from = File::open(top.path()).expect("opens").into();
    pool.put(&options, from, (ROOT_INO, name.as_bytes()), &NoProgress)
}

impl Session<'_> {
    fn count<T>(&mut self, outcome: Result<T, Errno>) -> Option<T> {
        outcome.inspect_err(|errno| check_errno(*errno)).map_err(|_| self.errors += 1).ok()
    }

    /// Notes a version, or that it may have been made.
    fn made(&mut self, name: &'static str, version: Seen, outcome: dedupfs::Result<()>) {
        match outcome {
            Ok(()) => self.expected.changed(name, Some(version)),
            Err(error) => {
                check_message(&error);
                self.errors += 1;
                self.expected.in_doubt(name, Some(version));
            }
        }
    }

    fn snapshot(&mut self, name: &'static str) {
        // The fault may strike just now, but not twice.
        let expected = seen(&self.pool, LIVE).or_else(|_| seen(&self.pool, LIVE));
        let found = self.pool.service().lookup(ROOT_INO, LIVE.as_bytes());
        if let (Ok(expected), Ok(found)) = (expected, found) {
            self.pool.service().forget(found.ino, 1);
            let to = (ROOT_INO, name.as_bytes());
            let made = self.pool.snapshot(found.ino, to, &Origin::default(), &NoProgress).map(drop);
            self.made(name, expected, made);
        } else {
            self.errors += 1;
        }
    }

    fn put_version(&mut self, name: &'static str, base: BaseChoice) {
        let Source { top, version } = source();
        let outcome = match put(&self.pool, top, name, base) {
            Ok(report) => {
                assert_eq!(report.problems, [], "nothing of the source fails");
                Ok(())
            }
            Err(TransferError::Pool(error)) => Err(error),
            Err(error) => panic!("the source does not fail: {error}"),
        };
        self.made(name, version.clone(), outcome);
    }

    fn forget_version(&mut self, name: &'static str) {
        if !self.is_certain(name) || self.expected.live(name).is_none() {
            return;
        }
        match self.pool.allow_forgetting(ROOT_INO, name.as_bytes(), None) {
            Ok(()) => {
                let removed = self.pool.service().remove_directory(ROOT_INO, name.as_bytes());
                match self.count(removed) {
                    Some(()) => self.expected.changed(name, None),
                    None => self.expected.in_doubt(name, None),
                }
            }
            Err(error) => {
                check_message(&error);
                self.errors += 1;
            }
        }
    }

    /// Makes a live tree of a version, which shows the same, and removes it.
    fn thaw(&mut self, name: &'static str) {
        if !self.is_certain(name) {
            return;
        }
        let Some(version) = self.expected.live(name) else { return };
        let client = Client::new(self.pool.service());
        let made = client.make_directory(WORK).and_then(|()| Ok((client.find(name)?.ino, client.find(WORK)?.ino)));
        let Some((from, into)) = self.count(made) else { return };
        match self.pool.thaw(from, (into, b"tree"), &NoProgress) {
            Ok(_) => {
                let live = seen(&self.pool, &format!("{WORK}/tree"));
                if let Some(live) = self.count(live) {
                    assert!(live == version, "the live tree of {name:?} is another one");
                }
            }
            Err(error) => {
                check_message(&error);
                self.errors += 1;
            }
        }
        let removed = client.empty(into).and_then(|()| client.remove_directory(WORK));
        self.count(removed);
    }

    fn change_live(&mut self, name: &str, seed: u64, len: usize) {
        let written = Client::new(self.pool.service()).put(&format!("{LIVE}/{name}"), 0, &content(seed, len), false);
        self.count(written);
    }
}

/// Makes, reads and removes versions, in the first opening.
pub fn work(session: &mut Session<'_>) {
    let made = Client::new(session.pool.service()).make_directory(LIVE);
    session.count(made);
    session.change_live("a", 40, 100_000);
    session.change_live("b", 2, 300_000);
    session.snapshot("version 1");
    session.change_live("a", 41, 50_000);
    session.snapshot("version 2");
    session.put_version("version 3", BaseChoice::None);
    session.put_version("version 4", BaseChoice::LastIn(ROOT_INO));
    session.forget_version("version 1");
    session.forget_version("version 3");
    work::reclaim(session);
    session.thaw("version 4");
    session.put_version("version 5", BaseChoice::LastIn(ROOT_INO));
    work::sync(session);
    session.forget_version("version 4");
    work::check(session);
}

/// Continues the work in the second opening.
pub fn work_again(session: &mut Session<'_>) {
    session.forget_version("version 2");
    session.snapshot("version 6");
    session.put_version("version 7", BaseChoice::LastIn(ROOT_INO));
    session.thaw("version 6");
}
