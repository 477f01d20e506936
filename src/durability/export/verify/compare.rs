//! Compares base and log with the namespace.
//!
//! A base has its records in the order of the namespace's tables, so both are walked side by side, once. What the log says last of a
//! key overrides the base; [`Ranges`] has that for a range of keys at a time. Keys that were changed after the exported commit are not compared.

use std::cmp::Ordering;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_namespace::{ExportSource, ExportTable, Item};
use dedupfs_store::StoreError;
use dedupfs_store::device::DeviceFile;
use twox_hash::XxHash3_64;

use super::ranges::{Last, Ranges};
use super::{Expected, ExportCheck, Pacer};
use crate::durability::export::log::GroupFrames;
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

impl Compared<'_> {
    /// Compares all records. At most twice `range_keys` keys of the log are in memory at a time.
    ///
    /// # Errors
    /// The namespace, base or log cannot be read; the base is not in order; those of [`Ranges::new`]; the comparison was ended early.
    pub(super) fn run(&self, range_keys: u64, pacer: &mut Pacer<'_, '_>, check: &mut ExportCheck) -> Result<()> {
        let path = files::base_path(self.expected.current.generation);
        let (mut base, mut ranges) = (BaseItems::new(self, &path), Ranges::new(self, range_keys, pacer)?);
        let mut key = Vec::new();
        self.source.for_each(&mut |item| {
            check.items += 1;
            if check.items.is_multiple_of(ITEMS_AT_ONCE) {
                pacer.advance(0)?;
            }
            order_key(&item, &mut key);
            let mut of_base = None;
            while let Some(exported) = base.peek(pacer)? {
                match exported.key.as_slice().cmp(&key) {
                    Ordering::Less => check_only_in_base(exported, &mut ranges, pacer, check)?,
                    Ordering::Equal => of_base = Some(exported.value == item.value.unwrap_or_default()),
                    Ordering::Greater => break,
                }
                base.advance();
            }
            ranges.advance_to(&key, pacer)?;
            let of_log = ranges.last_of(&key).map(|last| std::mem::replace(last, Last::Done));
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
        while let Some(exported) = base.peek(pacer)? {
            check_only_in_base(exported, &mut ranges, pacer, check)?;
            base.advance();
        }
        let header = ranges.finish(pacer, check)?.or(base.header);
        if !header.is_some_and(|header| self.source.agrees_with(&header, self.expected.row).unwrap_or(false)) {
            check.add_to_names(format!("the export's header is not that of commit {}", self.expected.row));
        }
        Ok(())
    }
}

/// Tells a record that only the base has, unless the log has its key: then the log decides.
fn check_only_in_base(
    exported: &BaseItem,
    ranges: &mut Ranges<'_>,
    pacer: &mut Pacer<'_, '_>,
    check: &mut ExportCheck,
) -> Result<()> {
    pacer.advance(0)?;
    ranges.advance_to(&exported.key, pacer)?;
    if ranges.last_of(&exported.key).is_none() {
        check.add_to_names(format!("{} is exported and does not exist", describe(&exported.key)));
    }
    Ok(())
}

/// Writes the key of an item in the sort order of tables, then of keys.
pub(super) fn order_key(item: &Item<'_>, into: &mut Vec<u8>) {
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

    fn peek(&mut self, pacer: &mut Pacer<'_, '_>) -> Result<Option<&BaseItem>> {
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
                None if !self.read_frame(pacer)? => break,
                None => {}
            }
        }
        Ok(self.next.as_ref())
    }

    fn advance(&mut self) {
        self.next = None;
    }

    fn read_frame(&mut self, pacer: &mut Pacer<'_, '_>) -> Result<bool> {
        let Compared { exporter, expected, base, .. } = self.compared;
        let before_bytes = self.frames.end_bytes();
        let frame = self.frames.next(&**base, self.path, &exporter.pool, expected.current.generation)?;
        let Some(frame) = frame else { return Ok(false) };
        pacer.advance_again(frame.end_bytes - before_bytes)?;
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
