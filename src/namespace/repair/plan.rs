//! The fixes that lead from the tables as they are to the tables as they should be.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dedupfs_service::{FileKind, Ino, ROOT_INO, Timestamp};
use dedupfs_store::recipe::Root;

use super::super::COOKIE_FIRST;
use super::super::inode::{Entry, Inode};
use super::super::names::check_name;
use super::super::tables::{self, Header};
use super::super::totals::Totals;
use super::super::versions::is_frozen;
use super::Fix;
use super::facts::Facts;

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Returns all fixes. Those without a line follow from others.
pub(super) fn plan(facts: Facts, header: Header, now: Timestamp) -> Vec<(String, Fix)> {
    let mut plan = Plan { before: facts.inodes.clone(), facts, header, now };
    plan.facts.inodes.entry(ROOT_INO).or_insert_with(|| directory(ROOT_INO, ROOT_INO, 0o755, now));
    plan.numbers();
    plan.dangling_names();
    plan.second_names_of_directories();
    plan.unreachable();
    plan.cookies();
    plan.attributes();
    plan.links();
    plan.finish()
}

struct Plan {
    before: BTreeMap<Ino, Inode>,
    facts: Facts,
    header: Header,
    now: Timestamp,
}

fn directory(ino: Ino, parent: Ino, mode: u16, now: Timestamp) -> Inode {
    Inode {
        ino,
        generation: 0,
        kind: FileKind::Directory,
        mode,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 0,
        atime: now,
        mtime: now,
        ctime: now,
        root: Root::Empty,
        parent,
        xattr_count: 0,
        symlink_target: None,
        flags: 0,
        data_bytes: 0,
    }
}

impl Plan {
    /// Raises the next inode number and the next cookie above all existing ones.
    fn numbers(&mut self) {
        let inos = self.facts.inodes.keys().chain(self.facts.orphans.iter());
        let inos = inos.filter(|&&ino| !is_frozen(ino)).max().copied().unwrap_or(ROOT_INO);
        let cookies = self.facts.entries.values().map(|entry| entry.cookie).filter(|&cookie| cookie < u64::MAX / 2);
        let cookie = cookies.max().unwrap_or(0).max(COOKIE_FIRST - 1);
        self.header.next_ino = self.header.next_ino.max(inos.saturating_add(1));
        self.header.next_cookie = self.header.next_cookie.max(cookie.saturating_add(1));
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.facts.inodes.get(&ino).is_some_and(Inode::is_directory)
    }

    fn drop_name(&mut self, at: &(Ino, Vec<u8>), why: &str) {
        self.facts.entries.remove(at);
        let line = format!("remove name {} of directory {}: {why}", at.1.escape_ascii(), at.0);
        self.facts.fix(line, Fix::Entry(tables::name_key(at.0, &at.1), None));
    }

    /// Removes invalid names, names of inodes that do not exist, and names in inodes that are no directory. Corrects
    /// the kind of other names.
    fn dangling_names(&mut self) {
        let all: Vec<_> = self.facts.entries.iter().map(|(at, entry)| (at.clone(), *entry)).collect();
        for (at, entry) in all {
            match self.facts.inodes.get(&entry.ino) {
                None if is_frozen(entry.ino) => self.drop_name(
                    &at,
                    "it was a version, and its row is lost with the way to its tree. `dedupfs recover` brings it back as of the last \
                     export, which the next mount writes without it",
                ),
                None => self.drop_name(&at, &format!("inode {} does not exist", entry.ino)),
                Some(_) if entry.ino == ROOT_INO => self.drop_name(&at, "it names the root"),
                Some(_) if !self.is_directory(at.0) => self.drop_name(&at, "it is no directory"),
                Some(_) if check_name(&at.1).is_err() => self.drop_name(&at, "it is a name that none may have"),
                Some(inode) if inode.kind != entry.kind => {
                    let kind = inode.kind;
                    self.set_name(&at, Entry { kind, ..entry }, "its kind is that of its inode");
                }
                Some(_) => {}
            }
        }
    }

    fn set_name(&mut self, at: &(Ino, Vec<u8>), entry: Entry, why: &str) {
        self.facts.entries.insert(at.clone(), entry);
        let line = format!("name {} of directory {}: {why}", at.1.escape_ascii(), at.0);
        self.facts.fix(line, Fix::Entry(tables::name_key(at.0, &at.1), Some(entry)));
    }

    /// Leaves each directory one name: the one in its parent, else the first.
    fn second_names_of_directories(&mut self) {
        let mut names: BTreeMap<Ino, Vec<(Ino, Vec<u8>)>> = BTreeMap::new();
        for (at, entry) in &self.facts.entries {
            if self.is_directory(entry.ino) {
                names.entry(entry.ino).or_default().push(at.clone());
            }
        }
        for (ino, names) in names.into_iter().filter(|(_, names)| names.len() > 1) {
            let parent = self.facts.inodes.get(&ino).map_or(0, |inode| inode.parent);
            let kept = names.iter().position(|(directory, _)| *directory == parent).unwrap_or(0);
            for (_, at) in names.iter().enumerate().filter(|(position, _)| *position != kept) {
                self.drop_name(at, "a directory has one name");
            }
        }
    }

    /// Puts unreachable directories and inodes without a name into `lost+found`.
    fn unreachable(&mut self) {
        let mut children: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        let mut named: BTreeMap<Ino, (Ino, Vec<u8>)> = BTreeMap::new();
        for (at, entry) in &self.facts.entries {
            children.entry(at.0).or_default().push(entry.ino);
            named.insert(entry.ino, at.clone());
        }
        let mut reached: HashSet<Ino> = HashSet::new();
        let reach = |from: Ino, reached: &mut HashSet<Ino>| {
            let mut work = vec![from];
            while let Some(ino) = work.pop() {
                if reached.insert(ino) {
                    work.extend(children.get(&ino).into_iter().flatten());
                }
            }
        };
        reach(ROOT_INO, &mut reached);
        let inos: Vec<Ino> = self.facts.inodes.keys().copied().collect();
        // Inodes without a name come first, because they lead to others. Then circles, which are cut at their lowest
        // number.
        for cuts_circles in [false, true] {
            for &ino in &inos {
                if reached.contains(&ino) || (!cuts_circles && named.contains_key(&ino)) {
                    continue;
                }
                let has_entries = children.contains_key(&ino);
                let is_unlinked = self.facts.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0);
                if is_unlinked && !has_entries && !named.contains_key(&ino) {
                    if !self.facts.orphans.contains(&ino) {
                        self.facts.orphans.insert(ino);
                        self.facts
                            .fix(format!("inode {ino} was unlinked: the next mount drops it"), Fix::Orphan(ino, true));
                    }
                    continue;
                }
                if let Some(at) = named.get(&ino).cloned() {
                    self.drop_name(&at, "it lies in itself");
                }
                self.rescue(ino);
                reach(ino, &mut reached);
            }
        }
        // A reachable or missing inode is no orphan.
        let is_none = |ino: &&Ino| reached.contains(*ino) || !self.facts.inodes.contains_key(*ino);
        let none: Vec<Ino> = self.facts.orphans.iter().filter(is_none).copied().collect();
        for ino in none {
            self.facts.orphans.remove(&ino);
            self.facts.fix(format!("inode {ino} is no orphan"), Fix::Orphan(ino, false));
        }
    }

    fn rescue(&mut self, ino: Ino) {
        let shelter = self.lost_and_found();
        let Some(kind) = self.facts.inodes.get(&ino).map(|inode| inode.kind) else { return };
        let name = (0..).map(|number| if number == 0 { format!("#{ino}") } else { format!("#{ino}-{number}") });
        let free = |name: &String| !self.facts.entries.contains_key(&(shelter, name.clone().into_bytes()));
        let Some(name) = name.into_iter().find(free) else { return };
        let entry = Entry { ino, kind, cookie: self.next_cookie() };
        self.set_name(&(shelter, name.into_bytes()), entry, &format!("new, for inode {ino}, which nothing leads to"));
    }

    fn lost_and_found(&mut self) -> Ino {
        let at = (ROOT_INO, LOST_AND_FOUND.to_vec());
        let taken = self.facts.entries.get(&at).map(|entry| entry.ino);
        if let Some(ino) = taken {
            if self.is_directory(ino) {
                return ino;
            }
            self.drop_name(&at, "the name is needed");
        }
        let ino = self.header.next_ino;
        self.header.next_ino += 1;
        self.facts.inodes.insert(ino, directory(ino, ROOT_INO, 0o700, self.now));
        let cookie = self.next_cookie();
        self.set_name(&at, Entry { ino, kind: FileKind::Directory, cookie }, "new, for unreachable inodes");
        // Another file had that name.
        if let Some(displaced) = taken {
            self.rescue(displaced);
        }
        ino
    }

    fn next_cookie(&mut self) -> u64 {
        self.header.next_cookie += 1;
        self.header.next_cookie - 1
    }

    /// Gives each name a cookie of its own within its directory.
    fn cookies(&mut self) {
        let mut seen: BTreeSet<(Ino, u64)> = BTreeSet::new();
        let all: Vec<_> = self.facts.entries.iter().map(|(at, entry)| (at.clone(), *entry)).collect();
        for (at, entry) in all {
            let is_sound = (COOKIE_FIRST..self.header.next_cookie).contains(&entry.cookie);
            if !is_sound || !seen.insert((at.0, entry.cookie)) {
                let cookie = self.next_cookie();
                seen.insert((at.0, cookie));
                self.set_name(&at, Entry { cookie, ..entry }, "it gets another place in its directory");
            }
        }
    }

    fn attributes(&mut self) {
        let gone: Vec<Vec<u8>> = std::mem::take(&mut self.facts.xattr_keys)
            .into_iter()
            .filter(|key| !tables::split_name_key(key).is_ok_and(|(ino, _)| self.facts.inodes.contains_key(&ino)))
            .collect();
        for key in gone {
            self.facts.fix("remove an attribute of an inode that does not exist".to_owned(), Fix::Xattr(key));
        }
    }

    /// Derives links, directory sizes, parents and attribute numbers from the rest.
    fn links(&mut self) {
        let (mut names, mut entries, mut subdirectories) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut parents: BTreeMap<Ino, Ino> = BTreeMap::from([(ROOT_INO, ROOT_INO)]);
        for (at, entry) in &self.facts.entries {
            *names.entry(entry.ino).or_insert(0_u32) += 1;
            *entries.entry(at.0).or_insert(0_u64) += 1;
            if entry.kind == FileKind::Directory {
                *subdirectories.entry(at.0).or_insert(0_u32) += 1;
                parents.insert(entry.ino, at.0);
            }
        }
        for (&ino, inode) in &mut self.facts.inodes {
            inode.xattr_count = self.facts.xattr_counts.get(&ino).copied().unwrap_or(0);
            if inode.is_directory() {
                inode.size_bytes = entries.get(&ino).copied().unwrap_or(0);
                inode.parent = parents.get(&ino).copied().unwrap_or(inode.parent);
                let links = 2 + subdirectories.get(&ino).copied().unwrap_or(0);
                inode.nlink = if parents.contains_key(&ino) { links } else { 0 };
            } else {
                inode.nlink = names.get(&ino).copied().unwrap_or(0);
            }
        }
    }

    fn finish(mut self) -> Vec<(String, Fix)> {
        let mut fixes = std::mem::take(&mut self.facts.fixes);
        let mut totals = Totals::default();
        for (&ino, inode) in &self.facts.inodes {
            totals = totals.plus(&Totals::of(inode));
            let before = self.before.get(&ino);
            if before == Some(inode) {
                continue;
            }
            fixes.push((changed(before, inode), Fix::Inode(ino, Some(Box::new(inode.clone())))));
        }
        let mut order: BTreeMap<[u8; 16], (Ino, FileKind, Vec<u8>)> = BTreeMap::new();
        for ((directory, name), entry) in &self.facts.entries {
            order.insert(tables::order_key(*directory, entry.cookie), (entry.ino, entry.kind, name.clone()));
        }
        for (key, found) in &self.facts.order {
            if order.get(key) != found.as_ref() || found.is_none() {
                let (directory, cookie) = tables::split_order_key(key);
                fixes.push((
                    format!("remove place {cookie} in the order of directory {directory}"),
                    Fix::Order(*key, None),
                ));
            }
        }
        for (key, place) in order {
            if self.facts.order.get(&key).and_then(Option::as_ref) != Some(&place) {
                let (directory, cookie) = tables::split_order_key(&key);
                let line = format!("add place {cookie} to the order of directory {directory}");
                fixes.push((line, Fix::Order(key, Some(place))));
            }
        }
        if totals != self.header.totals {
            self.header.totals = totals;
            fixes.push(("the totals are counted anew".to_owned(), Fix::Header(Box::new(self.header))));
        }
        if !fixes.is_empty() {
            // An unfinished rebuild belongs to another namespace.
            self.header.row += 1;
            fixes.push((String::new(), Fix::Header(Box::new(self.header))));
        }
        fixes
    }
}

fn changed(before: Option<&Inode>, inode: &Inode) -> String {
    let Some(before) = before else { return format!("new directory, inode {}", inode.ino) };
    let mut parts = Vec::new();
    let mut part = |what: &str, old: u64, new: u64| {
        if old != new {
            parts.push(format!("{what} {new} instead of {old}"));
        }
    };
    part("links", before.nlink.into(), inode.nlink.into());
    part("parent", before.parent, inode.parent);
    part("attributes", before.xattr_count.into(), inode.xattr_count.into());
    part(if inode.is_directory() { "entries" } else { "bytes" }, before.size_bytes, inode.size_bytes);
    format!("inode {}: {}", inode.ino, parts.join(", "))
}
