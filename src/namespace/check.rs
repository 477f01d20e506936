//! Scans of the whole namespace, and the check of its structure.
//!
//! A scan sees one moment: the committed snapshot and copies of the generations over it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_service::{FileKind, Ino, ROOT_INO};

use super::base::{NameVisitor, Snapshot, guarded};
use super::inode::{Entry, Inode};
use super::names::check_name;
use super::overlay::Generation;
use super::totals::Totals;
use super::versions::{VERSION_RECORD, is_frozen};
use super::{COOKIE_FIRST, Namespace};

/// Largest number of findings in a report; nobody reads more.
const FINDINGS_MAX: usize = 1000;

/// Receives directory, name, inode number and kind of each name.
pub(crate) type EntryVisitor<'v> = dyn FnMut(Ino, &[u8], Ino, FileKind) -> Result<()> + 'v;

/// One moment of the namespace.
struct Moment {
    base: Arc<Snapshot>,
    /// Newest first.
    layers: Vec<Generation>,
    totals: Totals,
}

impl Moment {
    fn for_each_inode(&self, visit: &mut dyn FnMut(Result<Inode>) -> Result<()>) -> Result<()> {
        guarded(&self.base.session, || {
            self.base.for_each_inode(&mut |inode| match inode {
                Ok(inode) if self.layers.iter().any(|layer| layer.inodes.contains_key(&inode.ino)) => Ok(()),
                inode => visit(inode),
            })
        })?;
        for (position, layer) in self.layers.iter().enumerate() {
            let newer = &self.layers[..position];
            for (ino, inode) in &layer.inodes {
                if let Some(inode) = inode
                    && !newer.iter().any(|newer| newer.inodes.contains_key(ino))
                {
                    visit(Ok((**inode).clone()))?;
                }
            }
        }
        Ok(())
    }

    fn knows_name(layers: &[Generation], directory: Ino, name: &[u8]) -> bool {
        layers.iter().filter_map(|layer| layer.directories.get(&directory)).any(|dir| dir.by_name.contains_key(name))
    }

    fn for_each_entry(&self, visit: &mut NameVisitor<'_>) -> Result<()> {
        guarded(&self.base.session, || {
            self.base.for_each_entry(&mut |directory, name, entry| {
                if Self::knows_name(&self.layers, directory, name) {
                    return Ok(());
                }
                visit(directory, name, entry)
            })
        })?;
        for (position, layer) in self.layers.iter().enumerate() {
            for (&directory, changes) in &layer.directories {
                for (name, entry) in &changes.by_name {
                    if let Some(entry) = entry
                        && !Self::knows_name(&self.layers[..position], directory, name)
                    {
                        visit(directory, name, *entry)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The facts that the check gathers about one inode.
#[derive(Default)]
struct Seen {
    inode: Option<Inode>,
    names: u32,
    subdirectories: u32,
    entries: u64,
    named_in: Ino,
}

impl Namespace {
    /// Returns the committed state.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let base = self.state.read().base.clone();
        base.map_or_else(|| self.recover(), Ok)
    }

    fn moment(&self) -> Result<Moment> {
        loop {
            let base = self.snapshot()?;
            let state = self.state.read();
            if state.is_base(&base) {
                let layers = state.layers().cloned().collect();
                return Ok(Moment { base, layers, totals: state.totals_now() });
            }
        }
    }

    /// Visits all inodes, orphans included, in no particular order. Damage ends the scan.
    pub fn for_each_inode(&self, visit: &mut dyn FnMut(&Inode) -> Result<()>) -> Result<()> {
        self.moment()?.for_each_inode(&mut |inode| visit(&inode?))
    }

    /// Visits all names, in no particular order. Damage ends the scan.
    pub fn for_each_entry(&self, visit: &mut EntryVisitor<'_>) -> Result<()> {
        self.moment()?.for_each_entry(&mut |directory, name, entry| visit(directory, name, entry.ino, entry.kind))
    }

    /// Checks that inodes, names, the order of directories, link counts, orphans, attributes and totals agree. Returns
    /// the findings in words. Memory grows with the number of inodes.
    pub fn check(&self) -> Result<Vec<String>> {
        let moment = self.moment()?;
        let mut findings = Findings::default();
        let mut seen: HashMap<Ino, Seen> = HashMap::new();
        let mut totals = Totals::default();
        moment.for_each_inode(&mut |inode| {
            match inode {
                Ok(inode) => {
                    totals = totals.plus(&Totals::of(&inode));
                    let ino = inode.ino;
                    seen.entry(ino).or_default().inode = Some(inode);
                }
                Err(error) => findings.add(|| error.to_string()),
            }
            Ok(())
        })?;
        if totals != moment.totals {
            findings.add(|| format!("the totals are {totals:?}, recorded are {:?}", moment.totals));
        }
        self.check_names(&moment, &mut seen, &mut findings)?;
        self.check_orders(&moment, &seen, &mut findings)?;
        let orphans: HashSet<Ino> = self.orphans()?.into_iter().collect();
        for (&ino, facts) in &seen {
            check_inode(ino, facts, orphans.contains(&ino), &mut findings);
        }
        for ino in orphans.iter().filter(|ino| !seen.contains_key(ino)) {
            findings.add(|| format!("orphan {ino} does not exist"));
        }
        check_reachable(&seen, &mut findings);
        for (&ino, facts) in &seen {
            let Some(inode) = &facts.inode else { continue };
            let names = match self.xattr_names(ino) {
                Ok(names) => names,
                Err(error) => {
                    findings.add(|| error.to_string());
                    continue;
                }
            };
            if names.len() as u64 != u64::from(inode.xattr_count) {
                findings.add(|| format!("inode {ino} has {} attributes, recorded {}", names.len(), inode.xattr_count));
            }
            if is_frozen(ino) && !names.iter().any(|name| name == VERSION_RECORD) {
                findings.add(|| format!("version {ino} has no record: when and of what it was made is unknown"));
            }
            for name in names {
                if let Err(error) = self.xattr(ino, &name) {
                    findings.add(|| error.to_string());
                }
            }
        }
        Ok(findings.list)
    }

    fn check_names(&self, moment: &Moment, seen: &mut HashMap<Ino, Seen>, findings: &mut Findings) -> Result<()> {
        let next_cookie = self.next_cookie.load(std::sync::atomic::Ordering::Relaxed);
        moment.for_each_entry(&mut |directory, name, entry| {
            let shown = name.escape_ascii();
            let is_directory = entry.kind == FileKind::Directory;
            if let Err(error) = check_name(name) {
                findings.add(|| format!("entry {shown} of directory {directory}: {error}"));
            }
            if !(COOKIE_FIRST..next_cookie).contains(&entry.cookie) {
                findings.add(|| format!("entry {shown} of directory {directory} has cookie {}", entry.cookie));
            }
            match seen.get_mut(&entry.ino) {
                Some(facts) => {
                    facts.names += 1;
                    facts.named_in = directory;
                    if facts.inode.as_ref().is_some_and(|inode| inode.kind != entry.kind) {
                        findings
                            .add(|| format!("entry {shown} of directory {directory} has another kind than its inode"));
                    }
                }
                None => findings.add(|| format!("entry {shown} of directory {directory}: no inode {}", entry.ino)),
            }
            let facts = seen.entry(directory).or_default();
            facts.entries += 1;
            facts.subdirectories += u32::from(is_directory);
            Ok(())
        })
    }

    /// Checks that every directory, read in order, shows exactly its names.
    fn check_orders(&self, moment: &Moment, seen: &HashMap<Ino, Seen>, findings: &mut Findings) -> Result<()> {
        let (entries, ordered) = guarded(&moment.base.session, || moment.base.entry_counts())?;
        if entries != ordered {
            findings.add(|| format!("{entries} names are stored, but {ordered} places in the order of directories"));
        }
        for (&ino, _) in seen.iter().filter(|(_, facts)| facts.inode.as_ref().is_some_and(Inode::is_directory)) {
            let mut after = 0;
            loop {
                let page = self.read_directory(ino, after, 1024)?;
                for item in &page {
                    let expected = Entry { ino: item.ino, kind: item.kind, cookie: item.cookie };
                    if self.entry(ino, &item.name)? != Some(expected) {
                        let shown = item.name.escape_ascii().to_string();
                        findings
                            .add(|| format!("directory {ino} shows {shown} at {}, by name it differs", item.cookie));
                    }
                }
                match page.last() {
                    Some(last) => after = last.cookie,
                    None => break,
                }
            }
        }
        Ok(())
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

fn check_inode(ino: Ino, facts: &Seen, is_orphan: bool, findings: &mut Findings) {
    let Some(inode) = &facts.inode else {
        findings.add(|| format!("{} entries lie in directory {ino}, which does not exist", facts.entries));
        return;
    };
    if !inode.is_directory() {
        if facts.entries > 0 {
            findings.add(|| format!("inode {ino} is no directory but has {} entries", facts.entries));
        }
        if inode.nlink != facts.names {
            findings.add(|| format!("inode {ino} has {} names, recorded {}", facts.names, inode.nlink));
        }
    } else {
        let is_named = facts.names == 1 || (ino == ROOT_INO && facts.names == 0) || (facts.names == 0 && is_orphan);
        let links = if is_orphan { 0 } else { 2 + facts.subdirectories };
        if !is_named || inode.nlink != links {
            let names = facts.names;
            findings.add(|| {
                format!("directory {ino} has {names} names and should have {links} links, not {}", inode.nlink)
            });
        }
        if inode.size_bytes != facts.entries {
            findings.add(|| format!("directory {ino} has {} entries, recorded {}", facts.entries, inode.size_bytes));
        }
        if facts.names > 0 && inode.parent != facts.named_in {
            findings.add(|| format!("directory {ino} lies in {}, recorded {}", facts.named_in, inode.parent));
        }
    }
    if (inode.nlink == 0) != is_orphan {
        findings.add(|| format!("inode {ino} with {} links: among the orphans: {is_orphan}", inode.nlink));
    }
}

/// Checks that every directory that is no orphan leads up to the root.
fn check_reachable(seen: &HashMap<Ino, Seen>, findings: &mut Findings) {
    let mut reachable: HashSet<Ino> = HashSet::from([ROOT_INO]);
    // Directories whose way up ends or loops. Remembering them keeps every way from being walked twice.
    let mut lost: HashSet<Ino> = HashSet::new();
    for (&start, facts) in seen {
        if !facts.inode.as_ref().is_some_and(|inode| inode.is_directory() && inode.nlink > 0) {
            continue;
        }
        let (mut at, mut way) = (start, Vec::new());
        let mut is_on_way = HashSet::new();
        while !reachable.contains(&at) && !lost.contains(&at) && is_on_way.insert(at) {
            way.push(at);
            match seen.get(&at).and_then(|facts| facts.inode.as_ref()) {
                Some(inode) if inode.is_directory() => at = inode.parent,
                _ => break,
            }
        }
        if reachable.contains(&at) {
            reachable.extend(way);
        } else {
            lost.extend(way);
            findings.add(|| format!("directory {start} cannot be reached from the root"));
        }
    }
}
