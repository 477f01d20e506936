//! Content that a recovery could not name and keeps: slots of containers on the data root, and the damaged export itself.
//!
//! - `kept-slots` lists slots of containers that no record of the recovered namespace names. Each opening marks them as taken, so that
//!   nothing overwrites, cuts or punches them.
//! - `kept/` has the files of a damaged export, unchanged.
//! - `owner` has version 2 while any of that is kept: a release that would reuse the slots refuses the data root.
//!
//! Only [`Exporter::give_up_kept`], on the user's demand, ends that.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::{EngineError, Result};
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

use super::files::{self, Current, DIRECTORY, Owner};
use super::{Exporter, mirror};

const LIST: &str = "kept-slots";
/// Directory of the files of a damaged export.
pub(super) const ASIDE: &str = "export/kept";
const VERSION: u16 = 1;
const ENTRY_BYTES: usize = 8;
/// A longer list is not written: each opening then looks for the slots.
const LISTED_MAX: usize = 1 << 20;
const LIST_BYTES_MAX: usize = LISTED_MAX * ENTRY_BYTES + 4096;

/// The kept slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// No slots.
    Nothing,
    /// Exactly these slots.
    Slots(Vec<SlotAddress>),
    /// The list is unknown: all unnamed slots with a container are kept.
    Unknown,
}

/// Reads the kept slots from the data root. `has_exported`: `owner` was written once.
///
/// # Errors
/// A newer release wrote the files, or the disk does not tell whether slots are kept: another opening may learn it.
pub(crate) fn kept(device: &dyn Device, pool: &PoolId, has_exported: bool) -> Result<Kept> {
    let is_noted = match Owner::read(device, pool) {
        Ok(Some(owner)) => owner.keeps,
        // Where it is gone or damaged, slots may be kept. A new pool has none of this.
        Ok(None) => has_exported || device.exists(&format!("{DIRECTORY}/{LIST}"))? || device.exists(ASIDE)?,
        Err(EngineError::Store(StoreError::Corrupt { .. })) => true,
        Err(error) => return Err(error),
    };
    if !is_noted {
        // A list that `owner` does not confirm is of a recovery that did not end, or is given up.
        return Ok(Kept::Nothing);
    }
    let path = format!("{DIRECTORY}/{LIST}");
    let bytes = match device.read_file(&path, LIST_BYTES_MAX as u64) {
        Err(error @ (StoreError::NotFound { .. } | StoreError::Corrupt { .. } | StoreError::Io { .. })) => {
            tracing::warn!(%error, "which slots are kept is not known: all that hold a container are");
            return Ok(Kept::Unknown);
        }
        bytes => bytes?,
    };
    match decode(&path, &bytes, pool) {
        Ok(slots) => Ok(Kept::Slots(slots)),
        Err(error @ EngineError::Store(StoreError::Corrupt { .. })) => {
            tracing::warn!(%error, "which slots are kept is not known: all that hold a container are");
            Ok(Kept::Unknown)
        }
        Err(error) => Err(error),
    }
}

fn decode(path: &str, bytes: &[u8], pool: &PoolId) -> Result<Vec<SlotAddress>> {
    let expect = Expect { kind: FrameKind::ExportKept, pool: Some(pool), owner: Some(0) };
    let frame = decode_frame(path, bytes, &expect, LIST_BYTES_MAX)?;
    let mut meta = ByteReader::new(frame.meta, path);
    let version = meta.u16()?;
    if version != VERSION {
        let advice = "use the release that wrote it, or a newer one".to_owned();
        return Err(
            StoreError::Unsupported { what: path.to_owned(), found: format!("version {version}"), advice }.into()
        );
    }
    meta.finish()?;
    let mut reader = ByteReader::new(frame.payload, path);
    let mut slots = Vec::with_capacity(frame.payload.len() / ENTRY_BYTES);
    while reader.remaining() > 0 {
        slots.push(SlotAddress { file: reader.u32()?, slot: reader.u32()? });
    }
    Ok(slots)
}

/// Lists these slots as kept, durably. Call before `owner` says so. Without a list, all unnamed slots with a container are kept.
pub(crate) fn keep(device: &dyn Device, pool: &PoolId, slots: &[SlotAddress]) -> Result<()> {
    keep_listed(device, pool, slots, LISTED_MAX)
}

fn keep_listed(device: &dyn Device, pool: &PoolId, slots: &[SlotAddress], listed_max: usize) -> Result<()> {
    files::create(device)?;
    if slots.len() > listed_max {
        // The list of an earlier recovery would name too few slots.
        return remove_list(device);
    }
    let (mut meta, mut payload) = (ByteWriter::new(), ByteWriter::with_capacity(slots.len() * ENTRY_BYTES));
    meta.u16(VERSION);
    for address in slots {
        payload.u32(address.file);
        payload.u32(address.slot);
    }
    let bytes = encode_frame(FrameKind::ExportKept, pool, 0, meta.as_slice(), payload.as_slice());
    Ok(device.replace_file(DIRECTORY, LIST, &bytes)?)
}

fn remove_list(device: &dyn Device) -> Result<()> {
    match device.remove(&format!("{DIRECTORY}/{LIST}")) {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(device.sync_directory(DIRECTORY)?),
        Err(error) => Err(error.into()),
    }
}

/// Moves the files of a damaged export to where no other export writes, so that their readable parts can be rescued.
pub(super) fn set_aside(device: &dyn Device) -> Result<()> {
    // Removed first, so that the moved files no longer count.
    Current::remove(device)?;
    device.create_directory(ASIDE)?;
    device.sync_directory(DIRECTORY)?;
    let move_from = |directory: &str, prefix: &str, is_ours: &dyn Fn(&str) -> bool| -> Result<()> {
        if !device.exists(directory)? {
            return Ok(());
        }
        for entry in device.list(directory)?.into_iter().filter(|entry| !entry.is_directory && is_ours(&entry.name)) {
            let target = free_name(device, &format!("{prefix}{}", entry.name))?;
            device.rename(&format!("{directory}/{}", entry.name), &target)?;
        }
        device.sync_directory(ASIDE)?;
        Ok(device.sync_directory(directory)?)
    };
    move_from(DIRECTORY, "", &|name| name.starts_with("base-") || name.starts_with("log-"))?;
    move_from(mirror::DIRECTORY, "recipes-", &|_| true)
}

/// Returns a path among the files of damaged exports that is not in use.
fn free_name(device: &dyn Device, name: &str) -> Result<String> {
    let mut path = format!("{ASIDE}/{name}");
    for number in 2_u32.. {
        if !device.exists(&path)? {
            break;
        }
        path = format!("{ASIDE}/{number}-{name}");
    }
    Ok(path)
}

/// Returns the bytes of the files of damaged exports.
pub(super) fn aside_bytes(device: &dyn Device) -> Result<u64> {
    if !device.exists(ASIDE)? {
        return Ok(0);
    }
    Ok(device.list(ASIDE)?.iter().map(|entry| entry.len_bytes).sum())
}

impl Exporter {
    /// Returns the number of slots that a recovery could not name, and the bytes of damaged exports. Both are kept until
    /// [`give_up_kept`](Self::give_up_kept).
    pub(crate) fn kept(&self) -> Result<(u64, u64)> {
        let slots = self.kept.lock().as_ref().map_or(0, |kept| kept.len() as u64);
        Ok((slots, aside_bytes(&*self.device)?))
    }

    /// Frees everything that a recovery could not name. Its content can no longer be rescued.
    pub(crate) fn give_up_kept(&self) -> Result<()> {
        // The owner first: if that fails, everything is still kept.
        Owner { keeps: false, ..self.owner() }.write(&*self.device, &self.pool)?;
        let slots = self.kept.lock().take();
        remove_list(&*self.device)?;
        if self.device.exists(ASIDE)? {
            for entry in self.device.list(ASIDE)? {
                self.device.remove(&format!("{ASIDE}/{}", entry.name))?;
            }
            self.device.sync_directory(ASIDE)?;
        }
        self.stores.data.release(&slots.unwrap_or_default())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs_store::device::MemoryDevice;
    use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

    use super::*;
    use dedupfs_namespace::Lineage;

    fn slots(number: u32) -> Vec<SlotAddress> {
        (0..number).map(|slot| SlotAddress { file: 1, slot }).collect()
    }

    fn owned(keeps: bool) -> (MemoryDevice, PoolId) {
        let (device, pool) = (MemoryDevice::new(), PoolId([7; 16]));
        files::create(&device).unwrap();
        Owner { lineage: Lineage([1; 16]), epoch: 1, keeps }.write(&device, &pool).unwrap();
        (device, pool)
    }

    /// Otherwise the newer slots would be free for reuse.
    #[test]
    fn regression_an_older_list_does_not_stand_for_more_slots_than_can_be_listed() {
        let (device, pool) = owned(true);
        keep_listed(&device, &pool, &slots(2), 3).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Slots(slots(2)));
        keep_listed(&device, &pool, &slots(4), 3).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Unknown);
    }

    #[test]
    fn regression_slots_are_kept_where_a_damaged_owner_tells_nothing_of_them() {
        let (device, pool) = owned(false);
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Nothing);
        device.replace_file(DIRECTORY, "owner", &[1; 4096]).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Unknown);
    }

    /// A read that failed once made everything without a name stay, until the user gave it up.
    #[test]
    fn regression_nothing_is_kept_because_the_disk_failed_once() {
        let (device, pool) = owned(false);
        for (fault, read) in [(Fault::Io, 0), (Fault::Io, 1), (Fault::ShortRead, 0), (Fault::ShortRead, 1)] {
            let faulty = FaultyDevice::over_memory(&device);
            faulty.add(FaultPlan::new(fault, read).on(&[Operation::Read]));
            let kept = kept(&faulty, &pool, true);
            assert!(!matches!(kept, Ok(Kept::Unknown | Kept::Slots(_))), "{fault:?} of read {read}");
        }
    }

    #[test]
    fn regression_slots_are_kept_where_owner_is_gone() {
        let (device, pool) = owned(true);
        let owner = format!("{DIRECTORY}/owner");
        device.remove(&owner).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Unknown, "more than can be listed");
        keep(&device, &pool, &slots(2)).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Slots(slots(2)));
        // Without an export the namespace does not tell that there was an owner.
        assert_eq!(kept(&device, &pool, false).unwrap(), Kept::Slots(slots(2)));
        remove_list(&device).unwrap();
        assert_eq!(kept(&device, &pool, false).unwrap(), Kept::Nothing, "a new pool");
        device.create_directory(ASIDE).unwrap();
        assert_eq!(kept(&device, &pool, false).unwrap(), Kept::Unknown, "a damaged export is set aside");
    }

    /// A crash while slots were given up made them kept again.
    #[test]
    fn regression_slots_that_are_given_up_stay_so_though_their_list_is_left() {
        let (device, pool) = owned(false);
        keep(&device, &pool, &slots(2)).unwrap();
        assert_eq!(kept(&device, &pool, true).unwrap(), Kept::Nothing);
    }
}
