//! Random histories against the reference: operations, commits, failed commits, power losses, directory streams.

use std::collections::BTreeSet;

use dedupfs_service::XattrMode;
use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};
use proptest::prelude::*;

use super::reference::{Checked, Reference};
use super::*;

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"long name with spaces", b"\xff", b"d"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Make { parent: u8, name: u8, kind: u8 },
    Link { ino: u8, parent: u8, name: u8 },
    Unlink { parent: u8, name: u8 },
    RemoveDirectory { parent: u8, name: u8 },
    Rename { from: (u8, u8), to: (u8, u8), flags: u8 },
    SetRoot { ino: u8, root: u8 },
    SetXattr { ino: u8, name: u8, value: u8, mode: u8 },
    RemoveXattr { ino: u8, name: u8 },
    DropOrphan { ino: u8 },
    Page { directory: u8, limit: u8 },
    Freeze,
    Commit,
    FailedCommit { position: u8, fault: u8 },
    Crash { seed: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let number = any::<u8>;
    let name = || 0..NAMES.len() as u8;
    prop_oneof![
        12 => (number(), name(), number()).prop_map(|(parent, name, kind)| Step::Make { parent, name, kind }),
        4 => (number(), number(), name()).prop_map(|(ino, parent, name)| Step::Link { ino, parent, name }),
        6 => (number(), name()).prop_map(|(parent, name)| Step::Unlink { parent, name }),
        4 => (number(), name()).prop_map(|(parent, name)| Step::RemoveDirectory { parent, name }),
        12 => ((number(), name()), (number(), name()), number())
            .prop_map(|(from, to, flags)| Step::Rename { from, to, flags }),
        5 => (number(), 0..4_u8).prop_map(|(ino, root)| Step::SetRoot { ino, root }),
        4 => (number(), 0..3_u8, number(), 0..3_u8)
            .prop_map(|(ino, name, value, mode)| Step::SetXattr { ino, name, value, mode }),
        2 => (number(), 0..3_u8).prop_map(|(ino, name)| Step::RemoveXattr { ino, name }),
        4 => number().prop_map(|ino| Step::DropOrphan { ino }),
        8 => (number(), 1..4_u8).prop_map(|(directory, limit)| Step::Page { directory, limit }),
        2 => Just(Step::Freeze),
        4 => Just(Step::Commit),
        2 => (0..12_u8, number()).prop_map(|(position, fault)| Step::FailedCommit { position, fault }),
        1 => number().prop_map(|seed| Step::Crash { seed }),
    ]
}

/// A directory being read in pages while it changes.
struct Stream {
    directory: Ino,
    after: u64,
    seen: BTreeSet<u64>,
    /// Identities that have existed since the start.
    throughout: BTreeSet<u64>,
}

struct Machine {
    disk: MemoryDevice,
    device: FaultyDevice,
    namespace: Namespace,
    reference: Reference,
    committed: Reference,
    rows: Vec<Vec<LogOp>>,
    stream: Option<Stream>,
}

impl Machine {
    fn new() -> Self {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        let (reference, committed) = (Reference::new(), Reference::new());
        Self { disk, device, namespace, reference, committed, rows: Vec::new(), stream: None }
    }

    /// Picks an inode, with a bias to existing ones.
    fn ino(&self, choice: u8) -> Ino {
        let inos: Vec<Ino> = self.reference.nodes.keys().copied().chain([100_000]).collect();
        inos[usize::from(choice) % inos.len()]
    }

    /// Picks an inode, mostly a directory.
    fn parent(&self, choice: u8) -> Ino {
        if choice % 16 == 15 {
            return self.ino(choice / 16);
        }
        let is_directory = |ino: &Ino| self.reference.nodes[ino].kind == FileKind::Directory;
        let inos: Vec<Ino> = self.reference.nodes.keys().copied().filter(is_directory).collect();
        inos[usize::from(choice) % inos.len()]
    }

    fn run(&mut self, step: Step) {
        let name = |name: u8| NAMES[usize::from(name)];
        let now = at(2);
        match step {
            Step::Make { parent, name: n, kind } => {
                let kinds = [FileKind::Directory, FileKind::Regular, FileKind::Symlink, FileKind::Fifo];
                let (parent, kind) = (self.parent(parent), kinds[usize::from(kind) % 4]);
                let expected = self.reference.can_make(parent, name(n));
                let made = self.namespace.make(parent, name(n), &new(kind, 2));
                if let Some(inode) = agree(made, expected) {
                    self.reference.make(parent, name(n), kind, inode.ino);
                }
            }
            Step::Link { ino, parent, name: n } => {
                let (ino, parent) = (self.ino(ino), self.parent(parent));
                let expected = self.reference.link(ino, parent, name(n));
                agree(self.namespace.link(ino, parent, name(n), now), expected);
            }
            Step::Unlink { parent, name: n } => {
                let parent = self.parent(parent);
                let expected = self.reference.remove(parent, name(n), false);
                agree(self.namespace.unlink(parent, name(n), now), expected);
            }
            Step::RemoveDirectory { parent, name: n } => {
                let parent = self.parent(parent);
                let expected = self.reference.remove(parent, name(n), true);
                agree(self.namespace.remove_directory(parent, name(n), now), expected);
            }
            Step::Rename { from, to, flags } => self.rename(from, to, flags),
            Step::SetRoot { ino, root } => {
                let (ino, root) = (self.ino(ino), if root == 0 { Root::Empty } else { chunk(root) });
                let expected = self.reference.set_root(ino, root);
                agree(self.namespace.set_root(ino, root, 100, 100, &mut kept), expected);
            }
            Step::SetXattr { ino, name, value, mode } => self.set_xattr(ino, name, value, mode),
            Step::RemoveXattr { ino, name } => {
                let (ino, name) = (self.ino(ino), [b'x', b'0' + name]);
                let expected = match self.reference.nodes.get_mut(&ino) {
                    Some(node) => node.xattrs.remove(&name[..]).map(|_| ()).ok_or("NoAttribute"),
                    None => Err("NotFound"),
                };
                agree(self.namespace.remove_xattr(ino, &name, now), expected);
            }
            Step::DropOrphan { ino } => {
                let orphans = self.reference.orphans();
                let ino = orphans.get(usize::from(ino) % (orphans.len() + 1)).copied().unwrap_or(self.ino(ino));
                let expected = self.reference.drop_orphan(ino);
                agree(self.namespace.drop_orphan(ino), expected);
            }
            Step::Page { directory, limit } => self.page(directory, usize::from(limit)),
            Step::Freeze => {
                // The next commit's freeze merges it with later changes.
                self.namespace.freeze();
            }
            Step::Commit => {
                let committed = self.namespace.save().unwrap();
                self.committed(committed);
                self.compare();
            }
            Step::FailedCommit { position, fault } => {
                let faults = [Fault::Io, Fault::NoSpace, Fault::ShortWrite];
                let fault = faults[usize::from(fault) % faults.len()];
                self.device.add(FaultPlan::new(fault, u64::from(position)).on(&[Operation::Write]));
                let result = self.namespace.save();
                self.device.heal();
                if let Ok(committed) = result {
                    self.committed(committed);
                }
                self.compare();
            }
            Step::Crash { seed } => {
                let (disk, stream) = (self.disk.crash(u64::from(seed)), None);
                let (device, namespace) = faulty(&disk);
                (self.disk, self.device, self.namespace, self.stream) = (disk, device, namespace, stream);
                self.reference = self.committed.clone();
                self.compare();
            }
        }
        self.keep_throughout();
    }

    fn rename(&mut self, from: (u8, u8), to: (u8, u8), flags: u8) {
        let combinations = [
            NONE,
            NONE,
            NO_REPLACE,
            EXCHANGE,
            EXCHANGE,
            WHITEOUT,
            RenameFlags { no_replace: true, ..WHITEOUT },
            RenameFlags { no_replace: true, ..EXCHANGE },
        ];
        let flags = combinations[usize::from(flags) % combinations.len()];
        let (parent, name) = (self.parent(from.0), NAMES[usize::from(from.1)]);
        let (to_parent, to_name) = (self.parent(to.0), NAMES[usize::from(to.1)]);
        let result = self.namespace.rename(parent, name, to_parent, to_name, flags, at(3));
        let left = || self.namespace.lookup(parent, name).unwrap().expect("a whiteout").0;
        let expected = self.reference.rename((parent, name), (to_parent, to_name), flags, left);
        agree(result, expected);
    }

    fn set_xattr(&mut self, ino: u8, name: u8, value: u8, mode: u8) {
        let (ino, name, value) = (self.ino(ino), [b'x', b'0' + name], vec![value; usize::from(value)]);
        let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][usize::from(mode)];
        let expected = match self.reference.nodes.get_mut(&ino) {
            None => Err("NotFound"),
            Some(node) => match (mode, node.xattrs.contains_key(&name[..])) {
                (XattrMode::Create, true) => Err("Exists"),
                (XattrMode::Replace, false) => Err("NoAttribute"),
                _ => {
                    node.xattrs.insert(name.to_vec(), value.clone());
                    Ok(())
                }
            },
        };
        agree(self.namespace.set_xattr(ino, &name, &value, mode, at(3)), expected);
    }

    fn committed(&mut self, committed: Committed) {
        let ops = std::mem::take(&mut self.reference.log);
        assert_eq!(committed.ops, ops);
        if !ops.is_empty() {
            self.rows.push(ops);
        }
        self.committed = self.reference.clone();
    }

    fn keep_throughout(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        match self.reference.nodes.get(&stream.directory) {
            Some(node) => {
                let present: BTreeSet<u64> = node.children.values().map(|(_, identity)| *identity).collect();
                stream.throughout.retain(|identity| present.contains(identity));
            }
            None => self.stream = None,
        }
    }

    /// Reads the next page of the running stream, or starts one.
    fn page(&mut self, directory: u8, limit: usize) {
        let Some(mut stream) = self.stream.take() else {
            let directory = self.parent(directory);
            if let Some(node) = self.reference.nodes.get(&directory)
                && node.kind == FileKind::Directory
            {
                let throughout = node.children.values().map(|(_, identity)| *identity).collect();
                self.stream = Some(Stream { directory, after: 0, seen: BTreeSet::new(), throughout });
            }
            return;
        };
        let items = self.namespace.read_directory(stream.directory, stream.after, limit).unwrap();
        let children = &self.reference.nodes[&stream.directory].children;
        for item in &items {
            let (ino, identity) = children[&item.name];
            assert_eq!((item.ino, item.kind), (ino, self.reference.nodes[&ino].kind));
            assert!(item.cookie > stream.after);
            stream.after = item.cookie;
            assert!(stream.seen.insert(identity), "{item:?} shown twice");
        }
        if items.len() < limit {
            assert!(stream.throughout.is_subset(&stream.seen), "what was there throughout was shown");
        } else {
            self.stream = Some(stream);
        }
    }

    /// Compares everything with the reference.
    fn compare(&self) {
        let namespace = &self.namespace;
        for (&ino, node) in &self.reference.nodes {
            let inode = namespace.get(ino);
            assert_eq!((inode.kind, inode.nlink, inode.parent), (node.kind, node.nlink, node.parent), "inode {ino}");
            assert_eq!(inode.root, node.root);
            let names: Vec<Vec<u8>> = node.xattrs.keys().cloned().collect();
            assert_eq!(namespace.xattr_names(ino).unwrap(), names);
            for (name, value) in &node.xattrs {
                assert_eq!(namespace.xattr(ino, name).unwrap().as_ref(), Some(value));
            }
            if node.kind != FileKind::Directory {
                continue;
            }
            let mut shown: Vec<_> =
                namespace.list(ino, 2).into_iter().map(|item| (item.name, item.ino, item.kind)).collect();
            shown.sort_by(|left, right| left.0.cmp(&right.0));
            let expected: Vec<_> = node
                .children
                .iter()
                .map(|(name, (child, _))| (name.clone(), *child, self.reference.nodes[child].kind))
                .collect();
            assert_eq!(shown.len(), expected.len());
            for (shown, expected) in shown.iter().zip(&expected) {
                assert_eq!(shown, expected);
                assert_eq!(namespace.lookup(ino, &shown.0).unwrap(), Some((shown.1, shown.2)));
            }
        }
        assert_eq!(namespace.totals().inodes(), self.reference.nodes.len() as i64);
        assert_eq!(namespace.orphans().unwrap(), self.reference.orphans());
        let rows: Vec<Vec<LogOp>> = namespace.rows().into_iter().map(|(_, ops)| ops).collect();
        assert_eq!(rows, self.rows);
        self.compare_scans();
        namespace.assert_sound();
    }
}

impl Machine {
    /// Scans see the generations above the last commit, too.
    fn compare_scans(&self) {
        let (mut inos, mut names) = (BTreeSet::new(), BTreeSet::new());
        let mut see = |inode: &Inode| {
            assert!(inos.insert(inode.ino));
            Ok(())
        };
        self.namespace.for_each_inode(&mut see).unwrap();
        assert!(inos.iter().eq(self.reference.nodes.keys()));
        let mut see = |directory, name: &[u8], ino, _| {
            assert!(names.insert((directory, name.to_vec(), ino)));
            Ok(())
        };
        self.namespace.for_each_entry(&mut see).unwrap();
        let of = |(directory, node): (&Ino, &super::reference::Node)| {
            let directory = *directory;
            node.children.iter().map(move |(name, (ino, _))| (directory, name.clone(), *ino)).collect::<Vec<_>>()
        };
        assert!(names.into_iter().eq(self.reference.nodes.iter().flat_map(of)));
    }
}

/// Checks that both succeed, or both fail in the same way.
fn agree<T: std::fmt::Debug>(real: Result<T>, expected: Checked<()>) -> Option<T> {
    match (real, expected) {
        (Ok(value), Ok(())) => Some(value),
        (Err(error), Err(expected)) => {
            assert_eq!(class(&error), expected);
            None
        }
        (real, expected) => panic!("{real:?} instead of {expected:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_the_reference(steps in proptest::collection::vec(step(), 1..120)) {
        let mut machine = Machine::new();
        for step in steps {
            machine.run(step);
        }
        machine.compare();
        machine.run(Step::Commit);
        machine.run(Step::Crash { seed: 1 });
    }
}
