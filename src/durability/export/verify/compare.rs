//! Compares base and log with the namespace.
//!
//! A base has its records in the order of the namespace's tables, so both are walked side by side. A log has them in the order of
//! commits: the last record of each key is kept as a hash and overrides the base. Keys changed behind the export are not compared. If
//! there are more keys than may be kept, each pass takes those whose hash falls to it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_namespace::{ChangedKey, ExportSource, ExportTable, Item};
use dedupfs_store::StoreError;
use dedupfs_store::device::DeviceFile;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::{Expected, ExportCheck, Pacer};
use crate::durability::export::frames::ReadFrame;
use crate::durability::export::log::{self, GroupFrames, Scanned};
use crate::durability::export::{Exporter, files};

/// Records compared between two checks for cancellation.
const ITEMS_AT_ONCE: u64 = 4096;

/// The two sides of a comparison.
pub(super) struct Compared<'a> {
    pub(super) exporter: &'a Exporter,
    pub(super) source: &'a ExportSource,
    pub(super) expected: &'a Expected,
    pub(super) base: Arc<dyn DeviceFile>,
    pub(super) log: Arc<dyn DeviceFile>,
}

/// The last state of a key in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The record is gone.
    Gone,
    /// The hash of the record.
    Is(u64),
    /// Changed since the export, or already compared.
    Done,
}

/// The keys of one pass.
struct Pass {
    number: u64,
    of: u64,
    last: HashMap<u128, Last>,
}

impl Pass {
    /// Returns the hash of a key, if it falls to this pass.
    fn hash(&self, key: &[u8]) -> Option<u128> {
        let hash = XxHash3_128::oneshot(key);
        let part = u64::try_from(hash % u128::from(self.of)).unwrap_or(0);
        (part == self.number).then_some(hash)
    }

    fn note(&mut self, key: &[u8], last: Last) {
        if let Some(hash) = self.hash(key) {
            self.last.insert(hash, last);
        }
    }
}

impl Compared<'_> {
    /// Compares all records, in as many passes as given.
    ///
    /// # Errors
    /// The namespace cannot be read; the comparison was ended early.
    pub(super) fn run(&self, passes: u64, pacer: &mut Pacer<'_, '_>, check: &mut ExportCheck) -> Result<()> {
        for number in 0..passes {
            let mut pass = Pass { number, of: passes, last: HashMap::new() };
            self.compare(&mut pass, pacer, check)?;
        }
        Ok(())
    }

    fn compare(&self, pass: &mut Pass, pacer: &mut Pacer<'_, '_>, check: &mut ExportCheck) -> Result<()> {
        let mut header = None;
        self.take_log(pass, &mut header, pacer)?;
        self.leave_out_changed(pass)?;
        let path = files::base_path(self.expected.current.generation);
        let mut base = BaseItems::new(self, &path);
        let (mut items, mut key) = (0_u64, Vec::new());
        let only_exported = |pass: &Pass, item: &BaseItem, check: &mut ExportCheck| {
            if pass.hash(&item.key).is_some_and(|hash| !pass.last.contains_key(&hash)) {
                check.add_to_names(format!("{} is exported and does not exist", describe(&item.key)));
            }
        };
        self.source.for_each(&mut |item| {
            items += 1;
            if items.is_multiple_of(ITEMS_AT_ONCE) {
                pacer.advance(0)?;
            }
            order_key(&item, &mut key);
            let mut of_base = None;
            while let Some(exported) = base.peek()? {
                match exported.key.as_slice().cmp(&key) {
                    Ordering::Less => only_exported(pass, exported, check),
                    Ordering::Equal => of_base = Some(exported.value == item.value.unwrap_or_default()),
                    Ordering::Greater => break,
                }
                base.advance();
            }
            let Some(hash) = pass.hash(&key) else { return Ok(()) };
            check.items += 1;
            let of_log = pass.last.get_mut(&hash).map(|last| std::mem::replace(last, Last::Done));
            let is_same = match of_log {
                Some(Last::Done) => Some(true),
                Some(Last::Gone) => None,
                Some(Last::Is(value)) => Some(value == XxHash3_64::oneshot(item.value.unwrap_or_default())),
                None => of_base,
            };
            match is_same {
                Some(true) => {}
                Some(false) => check.add_to_names(format!("{} is exported with another record", describe(&key))),
                None => check.add_to_names(format!("{} is not exported", describe(&key))),
            }
            Ok(())
        })?;
        while let Some(exported) = base.peek()? {
            only_exported(pass, exported, check);
            base.advance();
        }
        let too_many = pass.last.values().filter(|last| matches!(last, Last::Is(_))).count();
        if too_many > 0 {
            check.add_to_names(format!("{too_many} records are in the export's log and do not exist"));
        }
        let header = header.or(base.header);
        if !header.is_some_and(|header| self.source.agrees_with(&header, self.expected.row).unwrap_or(false)) {
            check.add_to_names(format!("the export's header is not that of commit {}", self.expected.row));
        }
        Ok(())
    }

    /// Collects the last record of each key in the log, and the last header.
    fn take_log(&self, pass: &mut Pass, header: &mut Option<Vec<u8>>, pacer: &mut Pacer<'_, '_>) -> Result<()> {
        let generation = self.expected.current.generation;
        let path = files::log_path(generation);
        let mut key = Vec::new();
        let start = Scanned::start(self.expected.current.row);
        let scanned = log::scan_to(
            &*self.log,
            &path,
            &self.exporter.pool,
            generation,
            start,
            self.expected.log_bytes,
            &mut |frame: &ReadFrame| {
                pacer.advance(0)?;
                let raw = frame.unpack(&path)?;
                for item in frame.items(&path, &raw)? {
                    if item.table == ExportTable::Header {
                        *header = item.value.map(<[u8]>::to_vec);
                        continue;
                    }
                    order_key(&item, &mut key);
                    pass.note(&key, item.value.map_or(Last::Gone, |value| Last::Is(XxHash3_64::oneshot(value))));
                }
                Ok(())
            },
        )?;
        scanned.rest.map_or(Ok(()), Err)
    }

    /// Excludes the keys changed behind the export: their records may be old, new or absent.
    fn leave_out_changed(&self, pass: &mut Pass) -> Result<()> {
        let mut ordered = Vec::new();
        self.source.changes_after(self.expected.row, &mut |keys| {
            for key in keys {
                let number = |number: u64| number.to_le_bytes();
                let (table, key) = match key {
                    ChangedKey::Inode(ino) => (ExportTable::Inodes, number(ino).to_vec()),
                    ChangedKey::Name(key) => (ExportTable::Names, key),
                    ChangedKey::Xattr(key) => (ExportTable::Xattrs, key),
                    ChangedKey::Container { id, .. } => (ExportTable::Containers, number(id.0).to_vec()),
                };
                order_key(&Item { table, key: &key, value: None }, &mut ordered);
                pass.note(&ordered, Last::Done);
            }
            Ok(())
        })
    }
}

/// Writes the key of an item in the sort order of tables, then of keys.
fn order_key(item: &Item<'_>, into: &mut Vec<u8>) {
    into.clear();
    into.push(item.table as u8);
    let is_number = matches!(item.table, ExportTable::Inodes | ExportTable::Containers | ExportTable::Header);
    match <[u8; 8]>::try_from(item.key) {
        Ok(number) if is_number => into.extend(u64::from_le_bytes(number).to_be_bytes()),
        _ => into.extend(item.key),
    }
}

/// Describes a key in words.
fn describe(key: &[u8]) -> String {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
    let Some((table, key)) = key.split_first() else { return "a record without a key".to_owned() };
    let (head, name) = key.split_at_checked(8).unwrap_or((key, &[]));
    match ExportTable::from_u8(*table) {
        Some(ExportTable::Inodes) => format!("inode {}", number(head)),
        Some(ExportTable::Names) => format!("name \"{}\" in directory {}", name.escape_ascii(), number(head)),
        Some(ExportTable::Xattrs) => format!("attribute \"{}\" of inode {}", name.escape_ascii(), number(head)),
        Some(ExportTable::Containers) => format!("container {}", dedupfs_store::ContainerId(number(head))),
        Some(ExportTable::Header) | None => "a record of no table".to_owned(),
    }
}

struct BaseItem {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The items of a base in sequence; each is checked to sort behind the one before.
struct BaseItems<'a> {
    compared: &'a Compared<'a>,
    path: &'a str,
    frames: GroupFrames,
    items: std::vec::IntoIter<BaseItem>,
    next: Option<BaseItem>,
    last_key: Vec<u8>,
    header: Option<Vec<u8>>,
}

impl<'a> BaseItems<'a> {
    fn new(compared: &'a Compared<'a>, path: &'a str) -> Self {
        let (frames, items) = (GroupFrames::new(0), Vec::new().into_iter());
        Self { compared, path, frames, items, next: None, last_key: Vec::new(), header: None }
    }

    fn peek(&mut self) -> Result<Option<&BaseItem>> {
        while self.next.is_none() {
            match self.items.next() {
                Some(item) if item.key <= self.last_key => {
                    let found = describe(&item.key);
                    return Err(StoreError::corrupt(self.path, "records in order", found).into());
                }
                Some(item) => {
                    self.last_key.clone_from(&item.key);
                    self.next = Some(item);
                }
                None if !self.read_frame()? => break,
                None => {}
            }
        }
        Ok(self.next.as_ref())
    }

    fn advance(&mut self) {
        self.next = None;
    }

    fn read_frame(&mut self) -> Result<bool> {
        let Compared { exporter, expected, base, .. } = self.compared;
        let frame = self.frames.next(&**base, self.path, &exporter.pool, expected.current.generation)?;
        let Some(frame) = frame else { return Ok(false) };
        let raw = frame.unpack(self.path)?;
        let mut items = Vec::new();
        for item in frame.items(self.path, &raw)? {
            if item.table == ExportTable::Header {
                self.header = item.value.map(<[u8]>::to_vec);
                continue;
            }
            let mut key = Vec::new();
            order_key(&item, &mut key);
            items.push(BaseItem { key, value: item.value.unwrap_or_default().to_vec() });
        }
        self.items = items.into_iter();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_falls_to_one_pass() {
        for of in 1..6 {
            let passes: Vec<_> = (0..of).map(|number| Pass { number, of, last: HashMap::new() }).collect();
            let falls_to = |key: u64| passes.iter().filter(|pass| pass.hash(&key.to_le_bytes()).is_some()).count();
            assert!((0..1000).all(|key| falls_to(key) == 1), "{of} passes");
            let takes = |pass: &Pass| (0..1000_u64).filter(|key| pass.hash(&key.to_le_bytes()).is_some()).count();
            assert!(passes.iter().all(|pass| takes(pass) > 500 / of as usize), "{of} passes have unequal parts");
        }
    }
}
