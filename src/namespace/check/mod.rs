//! The check of the structure of one commit: inodes, names, the order of directories, link counts, orphans, attributes and totals agree.
//!
//! The facts about all inodes take more memory than there is, so inodes are checked by ranges of their numbers. What names say of them waits
//! in a temporary file until their range comes; without one, all names are read once for each range. Memory besides: 24 bytes for each
//! directory, and the numbers of orphans.

mod names;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino, ROOT_INO};

pub use self::names::Scratch;
use self::names::{NameFact, Names};
use super::Namespace;
use super::base::{Snapshot, guarded};
use super::inode::{Entry, Inode};
use super::totals::Totals;
use super::versions::{VERSION_RECORD, is_frozen};

/// Largest number of findings in a report; nobody reads more.
const FINDINGS_MAX: usize = 1000;
/// Entries of a directory that are read at once.
const ENTRIES_AT_ONCE: usize = 1024;

/// What an inode says, and what names say of it.
struct Seen {
    ino: Ino,
    kind: FileKind,
    nlink: u32,
    xattr_count: u32,
    size_bytes: u64,
    parent: Ino,
    names: u32,
    subdirectories: u32,
    entries: u64,
    named_in: Ino,
}

impl Seen {
    fn new(inode: &Inode) -> Self {
        let Inode { ino, kind, nlink, xattr_count, size_bytes, parent, .. } = *inode;
        let (names, subdirectories, entries, named_in) = Default::default();
        Self { ino, kind, nlink, xattr_count, size_bytes, parent, names, subdirectories, entries, named_in }
    }
}

/// The inodes of a range of numbers, ascending.
struct InodeRange {
    numbers: RangeInclusive<Ino>,
    seen: Vec<Seen>,
}

impl InodeRange {
    fn find(&mut self, ino: Ino) -> Option<&mut Seen> {
        let at = self.seen.binary_search_by_key(&ino, |seen| seen.ino).ok()?;
        self.seen.get_mut(at)
    }

    /// Notes what names say of an inode of the range.
    fn note(&mut self, fact: NameFact, findings: &mut Findings) {
        match fact {
            NameFact::Named { ino, directory, kind } => match self.find(ino) {
                Some(seen) => {
                    seen.names += 1;
                    seen.named_in = directory;
                    if seen.kind != kind {
                        findings
                            .add(|| format!("an entry of directory {directory} has another kind than its inode {ino}"));
                    }
                }
                None => findings
                    .add(|| format!("an entry of directory {directory} names inode {ino}, which does not exist")),
            },
            NameFact::Lists { directory, entries, subdirectories } => match self.find(directory) {
                Some(seen) => {
                    seen.entries += entries;
                    seen.subdirectories += subdirectories;
                }
                None => {
                    findings.add(|| format!("{entries} entries lie in directory {directory}, which does not exist"))
                }
            },
        }
    }

    /// Forgets what names said.
    fn forget_names(&mut self) {
        for seen in &mut self.seen {
            (seen.names, seen.subdirectories, seen.entries, seen.named_in) = Default::default();
        }
    }
}

/// The result of a check of the names.
#[derive(Debug)]
pub struct NamesChecked {
    /// The defects in words.
    pub findings: Vec<String>,
    /// Times that all names were read.
    pub readings: u64,
    /// The reason why they were read several times, though a place for files was given.
    pub failure: Option<String>,
}

/// A directory, where it says that it lies, and whether it is an orphan.
type Directory = (Ino, Ino, bool);

struct Check<'a> {
    namespace: &'a Namespace,
    base: Arc<Snapshot>,
    is_ended: &'a dyn Fn() -> bool,
    orphans: HashSet<Ino>,
    directories: Vec<Directory>,
    totals: Totals,
    findings: Findings,
}

impl Namespace {
    /// Checks the last commit. `memory_bytes` bounds the facts about the inodes of a range. With a place for files all names are read once,
    /// and 21 bytes are kept there for each name and for each directory with names.
    ///
    /// # Errors
    /// The namespace cannot be read; `Ended` soon after `is_ended` says so.
    pub fn check(
        &self,
        memory_bytes: u64,
        scratch: Option<Scratch<'_>>,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<NamesChecked> {
        let base = self.snapshot()?;
        let base = if base.session.is_failed() { self.recover()? } else { base };
        let (orphans, directories, totals, findings) = Default::default();
        Check { namespace: self, base, is_ended, orphans, directories, totals, findings }.run(memory_bytes, scratch)
    }
}

impl Check<'_> {
    fn run(mut self, memory_bytes: u64, scratch: Option<Scratch<'_>>) -> Result<NamesChecked> {
        self.orphans = self.read(Snapshot::orphans)?.into_iter().collect();
        let at_once = (memory_bytes / size_of::<Seen>() as u64).max(1);
        let is_ended = self.is_ended;
        let ranges = self.read(|base| base.inode_ranges(at_once, is_ended))?;
        let (entries, ordered) = self.read(Snapshot::entry_counts)?;
        let mut names = Names::new(&mut self, (&ranges, entries), scratch, memory_bytes)?;
        for (number, range) in ranges.iter().enumerate() {
            let mut inodes = self.load(range)?;
            names.note(number, &mut inodes, &mut self)?;
            for seen in &inodes.seen {
                self.check_ended()?;
                check_inode(seen, self.orphans.contains(&seen.ino), &mut self.findings);
                self.check_xattrs(seen);
                self.check_order(seen)?;
            }
            for ino in self.orphans.iter().filter(|ino| inodes.numbers.contains(ino)) {
                if inodes.seen.binary_search_by_key(ino, |seen| seen.ino).is_err() {
                    self.findings.add(|| format!("orphan {ino} does not exist"));
                }
            }
        }
        let recorded = self.base.header.totals;
        if self.totals != recorded {
            self.findings.add(|| format!("the totals are {:?}, recorded are {recorded:?}", self.totals));
        }
        if entries != ordered {
            let told = || format!("{entries} names are stored, but {ordered} places in the order of directories");
            self.findings.add(told);
        }
        check_reachable(&self.directories, &mut self.findings);
        Ok(NamesChecked { findings: self.findings.list, readings: names.readings, failure: names.failure })
    }

    /// Reads from the commit. If its device fails, it is opened again and read once more.
    fn read<T>(&mut self, read: impl Fn(&Snapshot) -> Result<T>) -> Result<T> {
        let (value, base) = self.namespace.with_base(Some(self.base.clone()), read)?;
        if base.header.row != self.base.header.row {
            return Err(EngineError::database(
                "it had to be opened again beside later commits: start the check once more",
            ));
        }
        self.base = base;
        Ok(value)
    }

    /// Reads the inodes of a range.
    fn load(&mut self, range: &RangeInclusive<Ino>) -> Result<InodeRange> {
        let (totals, directories, findings) = (&mut self.totals, &mut self.directories, &mut self.findings);
        let mut seen = Vec::new();
        let base = &self.base;
        guarded(&base.session, || {
            for row in base.tables.inodes.range_owned(range.clone()).map_err(|error| base.explain(error))? {
                let (key, value) = row.map_err(|error| base.explain(error))?;
                match Inode::decode(key.value(), value.value()) {
                    Ok(inode) => {
                        *totals = totals.plus(&Totals::of(&inode));
                        if inode.is_directory() {
                            directories.push((inode.ino, inode.parent, inode.nlink == 0));
                        }
                        seen.push(Seen::new(&inode));
                    }
                    Err(error) => findings.add(|| error.to_string()),
                }
            }
            Ok(())
        })?;
        Ok(InodeRange { numbers: range.clone(), seen })
    }

    fn check_xattrs(&mut self, seen: &Seen) {
        let (ino, recorded) = (seen.ino, seen.xattr_count);
        let names = match self.read(|base| base.xattr_names(ino)) {
            Ok(names) => names,
            Err(error) => return self.findings.add(|| error.to_string()),
        };
        if names.len() as u64 != u64::from(recorded) {
            self.findings.add(|| format!("inode {ino} has {} attributes, recorded {recorded}", names.len()));
        }
        if is_frozen(ino) && !names.iter().any(|name| name == VERSION_RECORD) {
            self.findings.add(|| format!("version {ino} has no record: when and of what it was made is unknown"));
        }
        for name in names {
            if let Err(error) = self.read(|base| base.xattr(ino, &name)) {
                self.findings.add(|| error.to_string());
            }
        }
    }

    /// Checks that a directory, read in order, shows exactly its names.
    fn check_order(&mut self, seen: &Seen) -> Result<()> {
        if seen.kind != FileKind::Directory {
            return Ok(());
        }
        let (directory, mut after) = (seen.ino, 0);
        loop {
            self.check_ended()?;
            let items = self.read(|base| base.order(directory, after, ENTRIES_AT_ONCE))?;
            let Some((last, ..)) = items.last() else { return Ok(()) };
            after = *last;
            for (cookie, ino, kind, name) in items {
                if self.read(|base| base.entry(directory, &name))? != Some(Entry { ino, kind, cookie }) {
                    let shown = name.escape_ascii();
                    self.findings
                        .add(|| format!("directory {directory} shows {shown} at {cookie}, by name it differs"));
                }
            }
        }
    }

    fn check_ended(&self) -> Result<()> {
        if (self.is_ended)() { Err(EngineError::Ended("the check")) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Findings {
    list: Vec<String>,
}

impl Findings {
    fn add(&mut self, finding: impl FnOnce() -> String) {
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding());
        }
    }
}

fn check_inode(seen: &Seen, is_orphan: bool, findings: &mut Findings) {
    let Seen { ino, nlink, names, entries, .. } = *seen;
    if seen.kind == FileKind::Directory {
        let is_named = names == 1 || (ino == ROOT_INO && names == 0) || (names == 0 && is_orphan);
        let links = if is_orphan { 0 } else { 2 + seen.subdirectories };
        if !is_named || nlink != links {
            findings.add(|| format!("directory {ino} has {names} names and should have {links} links, not {nlink}"));
        }
        if seen.size_bytes != entries {
            findings.add(|| format!("directory {ino} has {entries} entries, recorded {}", seen.size_bytes));
        }
        if names > 0 && seen.parent != seen.named_in {
            findings.add(|| format!("directory {ino} lies in {}, recorded {}", seen.named_in, seen.parent));
        }
    } else {
        if entries > 0 {
            findings.add(|| format!("inode {ino} is no directory but has {entries} entries"));
        }
        if nlink != names {
            findings.add(|| format!("inode {ino} has {names} names, recorded {nlink}"));
        }
    }
    if (nlink == 0) != is_orphan {
        findings.add(|| format!("inode {ino} with {nlink} links: among the orphans: {is_orphan}"));
    }
}

/// The way up from a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// It is being walked: to meet it again is a loop.
    Walked,
    ToRoot,
    /// It ends or loops.
    Lost,
}

/// Checks that every directory that is no orphan leads up to the root. They are sorted.
fn check_reachable(directories: &[Directory], findings: &mut Findings) {
    let place_of = |ino: Ino| directories.binary_search_by_key(&ino, |(ino, ..)| *ino).ok();
    let mut ways = vec![Way::Unknown; directories.len()];
    for (start, &(ino, _, is_orphan)) in directories.iter().enumerate() {
        if is_orphan {
            continue;
        }
        let (mut at, mut walked) = (Some(start), Vec::new());
        let end = loop {
            let Some(place) = at else { break Way::Lost };
            match (ways[place], directories[place]) {
                (_, (ROOT_INO, ..)) => break Way::ToRoot,
                (Way::Unknown, (_, parent, _)) => {
                    ways[place] = Way::Walked;
                    walked.push(place);
                    // Also if the root itself cannot be read.
                    if parent == ROOT_INO {
                        break Way::ToRoot;
                    }
                    at = place_of(parent);
                }
                (Way::Walked, _) => break Way::Lost,
                (known, _) => break known,
            }
        };
        if end == Way::Lost {
            findings.add(|| format!("directory {ino} cannot be reached from the root"));
        }
        walked.into_iter().for_each(|place| ways[place] = end);
    }
}
