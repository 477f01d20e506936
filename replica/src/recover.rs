//! Makes a data root from a replica; a recovery makes the rest of the pool from that.
//!
//! Containers go to the slots that the export names, each compared with its name. Containers that an interrupted recovery left are compared as well, and
//! only missing ones are fetched. The superblock comes last: until then the directory is no data root.

use dedupfs::Progress;
use dedupfs::export::{DATA_ROOT_DIRECTORIES, make_count, slot_path};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::superblock::Role;
use serde::{Deserialize, Serialize};

use crate::chain::StoredById;
use crate::error::{ReplicaError, Result};
use crate::lease::Lease;
use crate::local::{DataRoot, Local, Locals};
use crate::parallel::for_each;
use crate::place::Replica;
use crate::state::State;

/// File that marks an unfinished data root; its text is the replica's number.
const MARK: &str = "replica-recovery";
/// Objects that are told one by one.
const TOLD_MAX: usize = 1000;

/// The result of bringing a data root back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Restored {
    /// Where the replica is.
    pub place: String,
    /// The commit of the replica.
    pub commit: u64,
    /// The commit of the namespace.
    pub row: u64,
    /// When that state was exported, in seconds since 1970.
    pub time_secs: u64,
    /// Containers fetched.
    pub fetched: u64,
    /// Bytes of containers fetched.
    pub fetched_bytes: u64,
    /// Containers that an interrupted recovery had brought.
    pub there: u64,
    /// Containers that the replica lacks or has damaged. Their slots are empty.
    pub missing: u64,
    /// Some of these objects, in words.
    pub findings: Vec<String>,
}

/// How a data root is brought back.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// Requests at the same time, 1 to 64.
    pub connections: usize,
    /// Go on although containers are gone or damaged.
    pub accepts_less: bool,
}

/// Makes the data root of the replica's newest state on `data`, which is empty or has the files of an interrupted call.
///
/// # Errors
/// The directory has something else; no room; the commits cannot be read; `Damaged` if containers are gone or damaged, which are told; those of the store. Another call goes on from there.
pub fn restore_data_root(
    replica: &Replica,
    data: &dyn Device,
    options: RestoreOptions,
    progress: &dyn Progress,
) -> Result<Restored> {
    let newest = replica.newest_there()?;
    let _lease = Lease::take(replica, newest.commit.number)?;
    take_directory(replica, data)?;
    let State { superblock, position, stored, locals } = State::place(replica, &newest, data)?;
    let root = DataRoot { device: data, pool: superblock.pool, slot_bytes: superblock.properties.container_bytes };
    check_room(data, &locals)?;
    let mut report = Restored {
        place: replica.place.clone(),
        commit: newest.commit.number,
        row: position.row,
        time_secs: position.time_secs,
        ..Restored::default()
    };
    let fetches = Fetches { replica, root, stored: &stored, connections: options.connections };
    fetches.run(&locals, &mut report, progress)?;
    if report.missing > 0 && !options.accepts_less {
        report.findings.iter().for_each(|finding| progress.say(finding));
        let found = format!("{} of them gone or damaged", report.missing);
        return Err(ReplicaError::damaged("containers of the newest state", "all objects", found));
    }
    make_count(data, &superblock.pool, &position)?;
    superblock.write_new(data)?;
    data.remove(MARK)?;
    data.sync_directory("")?;
    Ok(report)
}

/// Takes the directory: it must be empty, or have the mark of this replica.
fn take_directory(replica: &Replica, data: &dyn Device) -> Result<()> {
    let text = replica.name();
    let is_ours = match data.read_file(MARK, 64) {
        Ok(found) => found == text.as_bytes(),
        Err(StoreError::NotFound { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    if is_ours && data.exists(Role::Data.file_name())? {
        // A crash left the mark behind the superblock. Somebody may use the pool since then.
        let place = data.describe();
        return Err(ReplicaError::Usage(format!(
            "{place} has all content already: `dedupfs recover` without --from makes the pool of it, if there is none yet"
        )));
    }
    if is_ours {
        return Ok(());
    }
    if let Some(entry) = data.list("")?.iter().find(|entry| !["lock", "lost+found"].contains(&&*entry.name)) {
        let (place, name) = (data.describe(), &entry.name);
        return Err(ReplicaError::Usage(format!(
            "{place} has something in it ({name}): name an empty or new directory"
        )));
    }
    Ok(data.replace_file("", MARK, text.as_bytes())?)
}

fn check_room(data: &dyn Device, locals: &Locals) -> Result<()> {
    let needed_bytes: u64 = locals.by_id.values().map(|local| u64::from(local.used_bytes)).sum();
    let there_bytes = data.space()?.available_bytes;
    if needed_bytes <= there_bytes {
        return Ok(());
    }
    // Files of an interrupted recovery are written over, so they count as free.
    let mut have_bytes = 0;
    for directory in DATA_ROOT_DIRECTORIES {
        for entry in data.list(directory)?.iter().filter(|entry| !entry.is_directory) {
            have_bytes += data.open(&format!("{directory}/{}", entry.name), OpenMode::Read)?.allocated_bytes()?;
        }
    }
    if needed_bytes <= there_bytes + have_bytes {
        return Ok(());
    }
    let (needed, there) = (needed_bytes >> 20, (there_bytes + have_bytes) >> 20);
    let place = data.describe();
    let path = format!("{needed} MiB: {place} has room for {there} MiB; name a larger disk");
    Err(StoreError::NoSpace { operation: "recover the pool, which takes", path }.into())
}

/// Brings containers into their slots.
struct Fetches<'a> {
    replica: &'a Replica,
    root: DataRoot<'a>,
    stored: &'a StoredById,
    connections: usize,
}

enum Fetched {
    There,
    Now(u64),
    Missing(String),
}

impl Fetches<'_> {
    fn run(&self, locals: &Locals, report: &mut Restored, progress: &dyn Progress) -> Result<()> {
        let mut order: Vec<&Local> = locals.by_id.values().collect();
        order.sort_unstable_by_key(|local| (local.kind as u8, local.address));
        let cost = |local: &&Local| u64::from(local.used_bytes);
        progress.start("fetching containers", order.iter().map(cost).sum());
        let fetched = for_each(&order, self.connections, progress, cost, |local| self.fetch(local));
        progress.finish();
        for one in fetched? {
            match one {
                Fetched::There => report.there += 1,
                Fetched::Now(bytes) => {
                    report.fetched += 1;
                    report.fetched_bytes += bytes;
                }
                Fetched::Missing(why) => {
                    report.missing += 1;
                    if report.findings.len() < TOLD_MAX {
                        report.findings.push(why);
                    }
                }
            }
        }
        self.sync(&order)
    }

    /// Makes all slot files durable.
    fn sync(&self, order: &[&Local]) -> Result<()> {
        let mut paths: Vec<String> = order.iter().map(|local| slot_path(local.kind, local.address)).collect();
        paths.dedup();
        for path in paths {
            match self.root.device.open(&path, OpenMode::Write) {
                Ok(file) => file.sync()?,
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for directory in DATA_ROOT_DIRECTORIES {
            self.root.device.sync_directory(directory)?;
        }
        Ok(())
    }

    fn fetch(&self, local: &Local) -> Result<Fetched> {
        let Some(row) = self.stored.get(&local.id).filter(|row| row.used_bytes == local.used_bytes) else {
            return Ok(Fetched::Missing(format!("no commit names an object for container {}", local.id)));
        };
        if row.has_content(&self.replica.name_key, &self.root.read(local)?.bytes) {
            return Ok(Fetched::There);
        }
        let key = row.key()?;
        let bytes = match self.replica.read(&key) {
            Ok(Some(bytes)) if row.has_content(&self.replica.name_key, &bytes) => bytes,
            Ok(Some(_)) => {
                return Ok(Fetched::Missing(format!("object {key} has other content than it is named after")));
            }
            Ok(None) => return Ok(Fetched::Missing(format!("object {key} is gone"))),
            Err(ReplicaError::Object(error @ dedupfs_store::objects::ObjectError::Damaged { .. })) => {
                return Ok(Fetched::Missing(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let file = self.root.device.open(&slot_path(local.kind, local.address), OpenMode::CreateOrWrite)?;
        file.write_at(&bytes, u64::from(local.address.slot) * u64::from(self.root.slot_bytes))?;
        Ok(Fetched::Now(bytes.len() as u64))
    }
}
