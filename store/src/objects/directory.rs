//! Objects as files of a device: a disk that is carried elsewhere, or a network filesystem.
//!
//! An object is written beside its place, synced, and renamed to its name, which must be absent; then the directory is synced. So it is
//! whole when it is there. A file that a writer left unfinished is removed by a listing a day later.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_sync::{Mutex, clock, entropy};

use super::{Class, Created, Head, Key, ObjectError, Objects, Removed, Result, check_len, within};
use crate::StoreError;
use crate::device::{Device, DeviceFile, Entry, OpenMode};

/// Between the name of an object and the rest, in the name of its unfinished file. Keys have no point.
const UNFINISHED: &str = ".new-";
/// Most directories that are remembered, some 100 bytes each.
const PREPARED_MAX: usize = 4096;
/// Age at which an unfinished file is nobody's any more.
const UNFINISHED_SECS: u64 = 24 * 3600;

/// The objects below the root of a device.
#[derive(Debug)]
pub struct DirectoryObjects {
    device: Arc<dyn Device>,
    /// Tells the unfinished files of this process apart from those of others.
    writer: u64,
    count: AtomicU64,
    /// Directories that are known to be durable, at most [`PREPARED_MAX`].
    prepared: Mutex<HashSet<String>>,
    /// Whether changes of names could not be made durable: no later success proves anything then (invariant I-7).
    is_spoilt: AtomicBool,
}

impl DirectoryObjects {
    /// Uses a device, whose files other processes may create and remove at the same time.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new(device: Arc<dyn Device>) -> crate::Result<Self> {
        let mut writer = [0; 8];
        entropy::fill(&mut writer).map_err(|error| StoreError::from_io("get", "random bytes", error))?;
        let (writer, count) = (u64::from_le_bytes(writer), AtomicU64::new(0));
        Ok(Self { device, writer, count, prepared: Mutex::default(), is_spoilt: AtomicBool::new(false) })
    }

    fn unfinished(&self, key: &Key) -> String {
        let (writer, number) = (self.writer, self.count.fetch_add(1, Ordering::Relaxed));
        format!("{key}{UNFINISHED}{:x}-{writer:x}-{number:x}", now_secs())
    }

    /// Creates a directory, durably. One that is there may be another process's, and not be durable yet.
    fn prepare(&self, directory: &str) -> crate::Result<()> {
        if directory.is_empty() || self.prepared.lock().contains(directory) {
            return Ok(());
        }
        let (parent, _) = split(directory);
        self.prepare(parent)?;
        self.device.create_directory(directory)?;
        self.sync_directory(parent)?;
        let mut prepared = self.prepared.lock();
        if prepared.len() >= PREPARED_MAX {
            prepared.clear();
        }
        prepared.insert(directory.to_owned());
        Ok(())
    }

    fn sync_directory(&self, directory: &str) -> crate::Result<()> {
        if self.is_spoilt.load(Ordering::Relaxed) {
            return Err(spoilt(directory));
        }
        let synced = self.device.sync_directory(directory);
        if matches!(synced, Err(StoreError::SyncFailed { .. })) {
            self.is_spoilt.store(true, Ordering::Relaxed);
        }
        synced
    }

    /// Writes an object beside its place and renames it. Returns `false` if one is there.
    fn write(&self, key: &Key, body: &[&[u8]]) -> crate::Result<bool> {
        let (directory, _) = split(key.as_str());
        self.prepare(directory)?;
        if self.device.exists(key.as_str())? {
            return Ok(false);
        }
        let unfinished = self.unfinished(key);
        let write = || {
            let file = self.device.open(&unfinished, OpenMode::CreateNew)?;
            let mut offset = 0;
            for part in body {
                file.write_at(part, offset)?;
                offset += part.len() as u64;
            }
            file.sync()?;
            self.device.rename_absent(&unfinished, key.as_str())
        };
        match write() {
            Ok(()) => {}
            Err(error) => {
                // Best effort: a listing removes it later.
                let _ = self.device.remove(&unfinished);
                // Somebody may have removed the directory.
                self.prepared.lock().clear();
                return if self.device.exists(key.as_str())? { Ok(false) } else { Err(error) };
            }
        }
        self.sync_directory(directory)?;
        Ok(true)
    }

    /// Whether the object that is there has these bytes. It is durable then, whoever has created it.
    fn is_same(&self, key: &Key, body: &[&[u8]], len_bytes: u64) -> crate::Result<bool> {
        let file = self.device.open_surely(key.as_str(), OpenMode::Read)?;
        if file.len()? != len_bytes {
            return Ok(false);
        }
        let mut offset = 0;
        for part in body {
            let mut found = vec![0; part.len()];
            file.read_exact_at(&mut found, offset)?;
            if found != *part {
                return Ok(false);
            }
            offset += part.len() as u64;
        }
        // Its bytes were durable before it had its name.
        self.sync_directory(split(key.as_str()).0)?;
        Ok(true)
    }

    /// Visits the objects of a directory, in the order of keys.
    fn visit(&self, directory: &str, listing: &mut Listing<'_>) -> Result<()> {
        let fail = |error: StoreError| {
            let (key, reason) = (directory.to_owned(), error.to_string());
            ObjectError::Unreachable { operation: "list", key, reason }
        };
        let entries = match self.device.list(directory) {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            entries => entries.map_err(fail)?,
        };
        let path = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        // A directory sorts by the keys in it, which go on with a slash.
        let mut entries: Vec<(String, Entry)> = entries
            .into_iter()
            .map(|entry| (path(&entry.name) + if entry.is_directory { "/" } else { "" }, entry))
            .collect();
        entries.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        for (path, entry) in entries {
            if entry.is_directory {
                // Others' directories may not be readable, such as lost+found.
                if Key::new(path.trim_end_matches('/')).is_ok() && listing.may_have(&path) {
                    self.visit(path.trim_end_matches('/'), listing)?;
                }
            } else if let Ok(key) = Key::new(path.as_str()) {
                if listing.has(&key) {
                    (listing.visit)(key, Head { len_bytes: entry.len_bytes, written_secs: entry.modified_secs })?;
                }
            } else if is_abandoned(&path) {
                // Best effort: the next listing tries again.
                let _ = self.device.remove(&path);
            }
        }
        Ok(())
    }
}

/// Keys that are listed.
struct Listing<'a> {
    prefix: &'a str,
    after: Option<&'a Key>,
    visit: &'a mut dyn FnMut(Key, Head) -> Result<()>,
}

impl Listing<'_> {
    fn has(&self, key: &Key) -> bool {
        key.as_str().starts_with(self.prefix) && self.after.is_none_or(|after| key > after)
    }

    /// Whether keys may be listed that begin with `head`.
    fn may_have(&self, head: &str) -> bool {
        let is_behind = |after: &Key| head > after.as_str() || after.as_str().starts_with(head);
        (head.starts_with(self.prefix) || self.prefix.starts_with(head)) && self.after.is_none_or(is_behind)
    }
}

/// Whether the file of this path was left unfinished, long ago.
fn is_abandoned(path: &str) -> bool {
    let age = |(key, rest): (&str, &str)| {
        Key::new(key).ok()?;
        let fields: Option<Vec<u64>> = rest.split('-').map(|field| u64::from_str_radix(field, 16).ok()).collect();
        let [secs, _, _] = fields?.try_into().ok()?;
        now_secs().checked_sub(secs)
    };
    path.rsplit_once(UNFINISHED).and_then(age).is_some_and(|age_secs| age_secs > UNFINISHED_SECS)
}

fn now_secs() -> u64 {
    clock::since_epoch().as_secs()
}

fn spoilt(directory: &str) -> StoreError {
    let (what, found) = (directory.to_owned(), "a change that could not be made durable".to_owned());
    let advice = "check the disk, mount it again, and start again".to_owned();
    StoreError::Unsupported { what, found, advice }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Objects for DirectoryObjects {
    fn create(&self, key: &Key, body: &[&[u8]], _class: Class) -> Result<Created> {
        let len_bytes = check_len(key, body)?;
        let fail = |error| ObjectError::of_device("create", key, error);
        if self.write(key, body).map_err(fail)? {
            return Ok(Created::New);
        }
        match self.is_same(key, body, len_bytes) {
            Ok(true) => Ok(Created::Same),
            Ok(false) => Err(ObjectError::Foreign { key: key.clone() }),
            Err(StoreError::NotFound { .. }) => {
                let reason = "it was removed meanwhile".to_owned();
                Err(ObjectError::Unreachable { operation: "create", key: key.to_string(), reason })
            }
            Err(error) => Err(fail(error)),
        }
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let read = |file: &dyn DeviceFile| {
            let Range { start, end } = within(range.clone(), file.len()?);
            if end - start > super::OBJECT_BYTES_MAX {
                return Err(StoreError::corrupt(
                    key.as_str(),
                    "an object that is not too long",
                    format!("{end} bytes"),
                ));
            }
            let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, start)?;
            Ok(bytes)
        };
        let opened = self.device.open_surely(key.as_str(), OpenMode::Read);
        let bytes = opened.and_then(|file| read(&*file)).map_err(|error| ObjectError::of_device("read", key, error))?;
        into.extend(bytes);
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        let len = self.device.open_surely(key.as_str(), OpenMode::Read).and_then(|file| file.len());
        match len {
            Ok(len_bytes) => Ok(Some(Head { len_bytes, written_secs: None })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(ObjectError::of_device("look up", key, error)),
        }
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        match self.device.remove(key.as_str()) {
            // Also behind one that was not synced.
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(ObjectError::of_device("remove", key, error)),
        }
        match self.sync_directory(split(key.as_str()).0) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(Removed::Gone),
            Err(error) => Err(ObjectError::of_device("remove", key, error)),
        }
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        self.visit("", &mut Listing { prefix, after, visit })
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
