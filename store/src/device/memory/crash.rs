//! The disk after a power loss, and copies of a disk.
//!
//! In each directory either a prefix of the unsynced changes of names survives (a journal), or any subset that respects
//! their dependencies (a tree log, which a file's sync may write ahead). [`Content::after_power_loss`] decides for each
//! file. A file that survives under two names (a rename between directories, only the target kept) is one file with two
//! names. The seed decides everything: one seed and one history give one disk.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use twox_hash::XxHash3_128;

use super::content::Content;
use super::pages::Pages;
use super::tree::{Directory, Item, Tree, join};
use super::{FileNode, MemoryDevice};

/// Deterministic choices (splitmix64).
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
    keeps_nothing: bool,
}

impl Dice {
    /// Seed 0 keeps nothing that was not synced.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed, keeps_nothing: seed == 0 }
    }

    pub(super) fn keeps_nothing(&self) -> bool {
        self.keeps_nothing
    }

    /// A number in 0..`bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }
}

enum Choice {
    Everything,
    AfterPowerLoss(Dice),
}

impl Choice {
    fn names(&mut self, directory: &Directory) -> BTreeMap<String, Item> {
        match self {
            Self::Everything => directory.volatile.clone(),
            Self::AfterPowerLoss(dice) => directory.after_power_loss(dice),
        }
    }

    fn content(&mut self, content: &Content) -> Pages {
        match self {
            Self::Everything => content.volatile().clone(),
            Self::AfterPowerLoss(dice) => content.after_power_loss(dice),
        }
    }
}

impl MemoryDevice {
    /// The disk as the next start finds it if the power fails now: a new, independent device on which everything is
    /// durable. This device goes on as if nothing had happened, so one history can be cut at many points.
    ///
    /// Synced data is there. `seed` decides which unsynced changes survive; seed 0 keeps none. Other threads'
    /// operations are wholly before or wholly after. An undone removal may leave more content than the capacity.
    pub fn crash(&self, seed: u64) -> Self {
        self.copy(Choice::AfterPowerLoss(Dice::new(seed)))
    }

    /// A copy of the disk as a clean end leaves it: everything synced.
    pub fn snapshot_all_synced(&self) -> Self {
        self.copy(Choice::Everything)
    }

    /// A copy of the disk and of its volatile cache: unsynced changes stay unsynced in the copy, and no file is open in
    /// it. A test can keep one moment this way and cut it with many seeds.
    pub fn fork(&self) -> Self {
        self.filled(|old, new| {
            let mut copied: HashMap<*const FileNode, Arc<FileNode>> = HashMap::new();
            for (path, directory) in &old.directories {
                let directory = directory.map_files(&mut |file| {
                    let copy = copied.entry(Arc::as_ptr(file)).or_insert_with(|| {
                        let state = file.state.read();
                        let node = FileNode::new(state.content.clone());
                        node.state.write().names = state.names;
                        Arc::new(node)
                    });
                    Arc::clone(copy)
                });
                new.directories.insert(path.clone(), directory);
            }
            let is_named = |file: &Arc<FileNode>| file.state.read().names > 0;
            copied.into_values().filter(is_named).collect()
        })
    }

    /// A hash of all names and contents as operations see them: two disks with one hash look the same to every reader.
    pub fn content_hash(&self) -> u128 {
        let _all_quiet = self.shared.power.write();
        let mut hasher = XxHash3_128::new();
        let tree = self.shared.tree.lock();
        for (path, directory) in &tree.directories {
            for (name, item) in &directory.volatile {
                hasher.write(&(path.len() as u64).to_le_bytes());
                hasher.write(path.as_bytes());
                hasher.write(&(name.len() as u64).to_le_bytes());
                hasher.write(name.as_bytes());
                match item {
                    Item::Directory => hasher.write(b"directory"),
                    Item::File(file) => file.state.read().content.volatile().hash_into(&mut hasher),
                }
            }
        }
        hasher.finish_128()
    }

    fn copy(&self, mut choice: Choice) -> Self {
        self.filled(|old, new| {
            let mut copied = HashMap::new();
            copy_directory(old, "", &mut choice, &mut copied, new);
            copied.into_values().collect()
        })
    }

    /// Returns a new disk that `fill` makes of this one; `fill` returns the files that take space.
    fn filled(&self, fill: impl FnOnce(&Tree, &mut Tree) -> Vec<Arc<FileNode>>) -> Self {
        let _all_quiet = self.shared.power.write();
        let device = Self::with_capacity(self.capacity_bytes());
        let files = fill(&self.shared.tree.lock(), &mut device.shared.tree.lock());
        let pages = files.iter().map(|file| file.state.read().content.volatile().page_count()).sum();
        device.shared.space.set_used(pages);
        device
    }
}

/// Copies a directory and everything below it. `copied` maps the identity of a file to its copy.
fn copy_directory(
    old: &Tree,
    path: &str,
    choice: &mut Choice,
    copied: &mut HashMap<*const FileNode, Arc<FileNode>>,
    new: &mut Tree,
) {
    let Some(directory) = old.directories.get(path) else { return };
    let mut names = choice.names(directory);
    for (name, item) in &mut names {
        match item {
            Item::Directory => copy_directory(old, &join(path, name), choice, copied, new),
            Item::File(file) => {
                let copy = copied.entry(Arc::as_ptr(file)).or_insert_with(|| {
                    Arc::new(FileNode::new(Content::synced(choice.content(&file.state.read().content))))
                });
                copy.state.write().names += 1;
                *file = Arc::clone(copy);
            }
        }
    }
    new.directories.insert(path.to_owned(), Directory::synced(names));
}
