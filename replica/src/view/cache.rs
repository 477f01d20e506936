//! Containers of a replica on a disk of the reader's machine.
//!
//! Files are not made durable: a file counts only after its content was compared with its name, once in each process. So a crash or
//! damage costs a second request and nothing else. The least recently used files make room, those of earlier processes first, in the order of their writing. A disk that is full, or fails, is told once; then content
//! comes from the store alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_sync::Mutex;

/// Directory of the files, in 256 directories.
const DIRECTORY: &str = "objects";
/// End of the names of files that are being written.
const UNFINISHED: &str = ".new";
/// Longest file that is looked at: objects are not longer.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A cached file.
#[derive(Clone, Debug)]
struct Cached {
    len_bytes: u64,
    used_at: u64,
    is_checked: bool,
}

#[derive(Debug, Default)]
struct Files {
    by_name: HashMap<String, Cached>,
    /// The least recently used first.
    by_use: BTreeMap<u64, String>,
    bytes: u64,
    limit_bytes: u64,
    uses: u64,
    is_told: bool,
    has_failed: bool,
}

impl Files {
    fn insert(&mut self, name: &str, len_bytes: u64, is_checked: bool) {
        self.remove(name);
        self.uses += 1;
        self.by_use.insert(self.uses, name.to_owned());
        self.by_name.insert(name.to_owned(), Cached { len_bytes, used_at: self.uses, is_checked });
        self.bytes += len_bytes;
    }

    fn remove(&mut self, name: &str) -> Option<Cached> {
        let cached = self.by_name.remove(name)?;
        self.by_use.remove(&cached.used_at);
        self.bytes -= cached.len_bytes;
        Some(cached)
    }

    /// Notes a use of a file.
    fn find(&mut self, name: &str) -> Option<Cached> {
        let cached = self.by_name.get_mut(name)?;
        self.uses += 1;
        self.by_use.remove(&std::mem::replace(&mut cached.used_at, self.uses));
        self.by_use.insert(self.uses, name.to_owned());
        Some(cached.clone())
    }
}

/// Cached objects, by name. Their bytes, but one being written for each connection, stay below a limit.
#[derive(Debug)]
pub(crate) struct Cache {
    device: Arc<dyn Device>,
    files: Mutex<Files>,
}

impl Cache {
    /// Opens the cache on a device with the files of earlier processes.
    ///
    /// # Errors
    /// The directory cannot be made or listed.
    pub(crate) fn open(device: Arc<dyn Device>, limit_bytes: u64) -> Result<Self, StoreError> {
        device.create_directory(DIRECTORY)?;
        let mut found = Vec::new();
        for folder in device.list(DIRECTORY)?.into_iter().filter(|entry| entry.is_directory) {
            for entry in device.list(&format!("{DIRECTORY}/{}", folder.name))? {
                if entry.name.ends_with(UNFINISHED) {
                    let _stays = device.remove(&format!("{DIRECTORY}/{}/{}", folder.name, entry.name));
                } else if !entry.is_directory {
                    found.push((entry.modified_secs, format!("{}/{}", folder.name, entry.name), entry.len_bytes));
                }
            }
        }
        found.sort_unstable();
        let mut files = Files { limit_bytes, ..Files::default() };
        found.iter().for_each(|(_, name, len_bytes)| files.insert(name, *len_bytes, false));
        let cache = Self { device, files: Mutex::new(files) };
        cache.make_room(0);
        Ok(cache)
    }

    /// Whether an object is there, perhaps damaged.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.lock().by_name.contains_key(name)
    }

    /// Reads a part of an object that this process has compared already. `false`: take it elsewhere.
    pub(crate) fn read_checked(&self, name: &str, offset: u64, buffer: &mut [u8]) -> bool {
        if !self.files.lock().find(name).is_some_and(|cached| cached.is_checked) {
            return false;
        }
        let file = self.device.open(&path(name), OpenMode::Read);
        file.and_then(|file| file.read_exact_at(buffer, offset)).inspect_err(|_| self.forget(name)).is_ok()
    }

    /// Reads a whole object, if its file is there and `is_sound`. Another one is removed.
    pub(crate) fn load(&self, name: &str, is_sound: &dyn Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        self.files.lock().find(name)?;
        match self.device.read_file(&path(name), FILE_BYTES_MAX) {
            Ok(bytes) if is_sound(&bytes) => {
                if let Some(cached) = self.files.lock().by_name.get_mut(name) {
                    cached.is_checked = true;
                }
                Some(bytes)
            }
            _ => {
                self.forget(name);
                None
            }
        }
    }

    /// Whether content that was fetched last is kept.
    pub(crate) fn keeps(&self) -> bool {
        let files = self.files.lock();
        !files.has_failed && files.limit_bytes > 0
    }

    /// Keeps an object, as far as the disk does for it.
    pub(crate) fn keep(&self, name: &str, bytes: &[u8]) {
        let len_bytes = bytes.len() as u64;
        if len_bytes > self.files.lock().limit_bytes {
            return;
        }
        self.make_room(len_bytes);
        let written = self.write(name, bytes);
        self.files.lock().has_failed = written.is_err();
        match written {
            Ok(()) => self.files.lock().insert(name, len_bytes, true),
            Err(error) => {
                let _nothing_there = self.device.remove(&format!("{}{UNFINISHED}", path(name)));
                let mut files = self.files.lock();
                if matches!(error, StoreError::NoSpace { .. }) {
                    // Others use the disk, too: the cache makes do with less.
                    files.limit_bytes = files.bytes.saturating_sub(len_bytes);
                }
                if !std::mem::replace(&mut files.is_told, true) {
                    tracing::warn!(%error, "content cannot be kept in the cache, or less of it than was asked for");
                }
            }
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (to, folder) = (path(name), name.split_once('/').map_or("", |(folder, _)| folder));
        self.device.create_directory(&format!("{DIRECTORY}/{folder}"))?;
        let unfinished = format!("{to}{UNFINISHED}");
        let file = self.device.open(&unfinished, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        self.device.rename(&unfinished, &to)
    }

    fn make_room(&self, for_bytes: u64) {
        loop {
            let name = {
                let mut files = self.files.lock();
                if files.bytes + for_bytes <= files.limit_bytes {
                    return;
                }
                let Some(name) = files.by_use.values().next().cloned() else { return };
                files.remove(&name);
                name
            };
            // Readers that have it open go on.
            let _gone_already = self.device.remove(&path(&name));
        }
    }

    fn forget(&self, name: &str) {
        if self.files.lock().remove(name).is_some() {
            let _gone_already = self.device.remove(&path(name));
        }
    }
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    fn open(device: &MemoryDevice, limit_bytes: u64) -> Cache {
        Cache::open(Arc::new(device.clone()), limit_bytes).expect("opens")
    }

    fn sound(_: &[u8]) -> bool {
        true
    }

    #[test]
    fn the_least_recently_used_make_room() {
        let (device, mut buffer) = (MemoryDevice::new(), [0; 10]);
        let cache = open(&device, 300);
        ["00/a", "00/b", "01/c"].iter().for_each(|name| cache.keep(name, &[7; 100]));
        assert!(cache.read_checked("00/a", 90, &mut buffer));
        cache.keep("02/d", &[8; 100]);
        assert!(cache.has("00/a") && !cache.has("00/b") && cache.has("01/c") && cache.has("02/d"));
        cache.keep("02/large", &[0; 301]);
        assert!(cache.has("00/a") && !cache.has("02/large"));
        // A smaller limit holds at once.
        drop(cache);
        let cache = open(&device, 150);
        assert_eq!(["00/a", "01/c", "02/d"].iter().filter(|name| cache.has(name)).count(), 1);
    }

    #[test]
    fn files_of_an_earlier_process_are_compared_once() {
        let (device, mut buffer) = (MemoryDevice::new(), [0; 10]);
        open(&device, 1000).keep("00/a", &[7; 100]);
        let cache = open(&device, 1000);
        assert!(!cache.read_checked("00/a", 0, &mut buffer));
        assert_eq!(cache.load("00/a", &sound).as_deref(), Some([7; 100].as_slice()));
        assert!(cache.read_checked("00/a", 0, &mut buffer));
        let cache = open(&device, 1000);
        assert_eq!(cache.load("00/a", &|_| false), None);
        assert!(!cache.has("00/a") && device.read_file("objects/00/a", 1000).is_err());
    }

    #[test]
    fn leftovers_go_and_lost_files_are_noticed() {
        let (device, mut buffer) = (MemoryDevice::new(), [0; 10]);
        let cache = open(&device, 1000);
        cache.keep("00/a", &[7; 100]);
        device.open("objects/00/b.new", OpenMode::CreateNew).expect("creates").write_at(&[1], 0).expect("writes");
        let again = open(&device, 1000);
        assert!(again.has("00/a") && device.read_file("objects/00/b.new", 10).is_err());
        device.remove("objects/00/a").expect("removes");
        assert!(!cache.read_checked("00/a", 0, &mut buffer) && !cache.has("00/a"));
    }
}
