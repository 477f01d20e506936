//! The answers that a pool must give.

use std::collections::BTreeMap;

use dedupfs_service::{Attributes, Errno, FileKind, FileService, Ino, Listing, OpenOptions, ROOT_INO};

use crate::image::CALLER;

/// Name of the version.
pub const VERSION: &str = "version";
/// Bytes of one read, the unit in which unreadable content is counted.
pub const READ_BYTES: u32 = 16 << 10;

/// One inode of the tree.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub attributes: Attributes,
    pub content: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names below a directory.
    pub children: Vec<Vec<u8>>,
}

/// The whole tree by path; the root's path is empty.
#[derive(Clone, Default, Debug)]
pub struct Tree {
    pub contents: BTreeMap<String, Vec<u8>>,
    pub nodes: BTreeMap<String, Node>,
}

/// Amounts that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unreadable {
    /// Names, attributes, listings, extended attributes of live entries.
    pub answers: u64,
    /// The same of entries of the version.
    pub frozen_answers: u64,
    /// Bytes of content.
    pub bytes: u64,
}

impl Tree {
    pub fn take_content(&mut self, path: &str) -> Vec<u8> {
        self.contents.remove(path).unwrap_or_default()
    }

    pub fn put_content(&mut self, path: &str, content: Vec<u8>) {
        self.contents.insert(path.to_owned(), content);
    }

    /// Completes the model with everything else that a sound pool answers, and checks the contents.
    pub fn observe(&mut self, service: &dyn FileService) {
        self.nodes.clear();
        self.observe_below(service, "", ROOT_INO);
        let contents = self.nodes.iter().filter_map(|(path, node)| Some((path.clone(), node.content.clone()?)));
        assert!(contents.collect::<BTreeMap<_, _>>() == self.contents, "a sound pool says what was written");
    }

    fn observe_below(&mut self, service: &dyn FileService, path: &str, ino: Ino) {
        let attributes = service.attributes(ino).expect("has attributes");
        let kind = attributes.kind;
        let names = service.xattr_names(ino).expect("lists");
        let xattrs = names.into_iter().map(|name| (name.clone(), service.xattr(ino, &name).expect("has it"))).collect();
        let children = if kind == FileKind::Directory { list(service, ino).expect("lists") } else { Vec::new() };
        let node = Node {
            attributes,
            content: (kind == FileKind::Regular).then(|| read_all(service, ino, attributes.size_bytes)),
            target: (kind == FileKind::Symlink).then(|| service.read_link(ino).expect("reads")),
            xattrs,
            children: children.clone(),
        };
        self.nodes.insert(path.to_owned(), node);
        for name in children {
            let child = service.lookup(ino, &name).expect("is there").ino;
            self.observe_below(service, &join(path, &name), child);
        }
    }

    /// Asks a pool for everything. Each answer must be right, or an error of the disk.
    pub fn verify(&self, service: &dyn FileService) -> Result<Unreadable, String> {
        let mut unreadable = Unreadable::default();
        for (path, node) in &self.nodes {
            let is_frozen = path.split('/').next() == Some(VERSION);
            let answers = if is_frozen { &mut unreadable.frozen_answers } else { &mut unreadable.answers };
            let Some(ino) = self.find(service, path, answers, &mut unreadable.bytes)? else { continue };
            if let Some(found) = answer(service.attributes(ino), answers, path)? {
                same(path, "attributes", &comparable(found), &comparable(node.attributes))?;
            }
            if let Some(found) = answer(service.xattr_names(ino), answers, path)? {
                same(path, "names of attributes", &found, &node.xattrs.keys().cloned().collect())?;
            }
            for (name, value) in &node.xattrs {
                if let Some(found) = answer(service.xattr(ino, name), answers, path)? {
                    same(path, "extended attribute", &found, value)?;
                }
            }
            if let Some(target) = &node.target
                && let Some(found) = answer(service.read_link(ino), answers, path)?
            {
                same(path, "target", &found, target)?;
            }
            if node.attributes.kind == FileKind::Directory
                && let Some(found) = answer(list(service, ino), answers, path)?
            {
                same(path, "names in the directory", &found, &node.children)?;
            }
            if let Some(content) = &node.content {
                verify_content(service, ino, path, content, answers, &mut unreadable.bytes)?;
            }
        }
        Ok(unreadable)
    }

    fn find(
        &self,
        service: &dyn FileService,
        path: &str,
        answers: &mut u64,
        bytes: &mut u64,
    ) -> Result<Option<Ino>, String> {
        let mut ino = ROOT_INO;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match answer(service.lookup(ino, name.as_bytes()), answers, path)? {
                Some(found) => ino = found.ino,
                None => {
                    let lost = self.nodes[path].content.as_ref().map_or(0, Vec::len);
                    *bytes += lost as u64;
                    return Ok(None);
                }
            }
        }
        Ok(Some(ino))
    }
}

fn verify_content(
    service: &dyn FileService,
    ino: Ino,
    path: &str,
    content: &[u8],
    answers: &mut u64,
    bytes: &mut u64,
) -> Result<(), String> {
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let Some(opened) = answer(service.open(CALLER, ino, how), answers, path)? else {
        *bytes += content.len() as u64;
        return Ok(());
    };
    // One read beyond the end as well.
    let ends = content.len() as u64 + u64::from(READ_BYTES);
    for offset in (0..ends).step_by(READ_BYTES as usize) {
        let mut found = Vec::new();
        let expected = content.get(offset as usize..).unwrap_or_default();
        let expected = &expected[..expected.len().min(READ_BYTES as usize)];
        match service.read(ino, opened.handle, offset, READ_BYTES, &mut found) {
            Ok(()) if found == expected => {}
            Ok(()) => return Err(format!("{path}: WRONG BYTES at {offset}: {} of {}", found.len(), expected.len())),
            Err(Errno::EIO) => *bytes += expected.len() as u64,
            Err(error) => return Err(format!("{path}: {error} at {offset}")),
        }
    }
    service.release(ino, opened.handle);
    Ok(())
}

/// Returns the answer, or nothing if it is an error of the disk.
fn answer<T>(outcome: Result<T, Errno>, unreadable: &mut u64, path: &str) -> Result<Option<T>, String> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Errno::EIO) => {
            *unreadable += 1;
            Ok(None)
        }
        Err(error) => Err(format!("{path}: WRONG ANSWER: {error}")),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(path: &str, what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(300).collect::<String>();
    Err(format!("{path}: WRONG {what}: {} and not {}", short(found), short(expected)))
}

/// Removes the access time, which reading changes.
fn comparable(attributes: Attributes) -> Attributes {
    Attributes { atime: attributes.mtime, ..attributes }
}

fn list(service: &dyn FileService, ino: Ino) -> Result<Vec<Vec<u8>>, Errno> {
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let entries = service.read_directory(ino, after, 16, Listing::Names)?;
        let Some(last) = entries.last() else { return Ok(names) };
        after = last.cookie;
        names.extend(entries.into_iter().map(|entry| entry.name).filter(|name| name != b"." && name != b".."));
    }
}

fn read_all(service: &dyn FileService, ino: Ino, len_bytes: u64) -> Vec<u8> {
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    let mut bytes = Vec::new();
    service.read(ino, handle, 0, len_bytes as u32 + 1, &mut bytes).expect("reads");
    service.release(ino, handle);
    bytes
}

fn join(path: &str, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") }
}
