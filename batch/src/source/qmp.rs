//! Disks of a running qemu, by its monitor (QMP).
//!
//! 1. `begin`, as one transaction for all disks of the monitor: from now on qemu saves blocks that the guest overwrites into a scratch file
//!    (`blockdev-backup`, *fleecing*), so that the export shows this moment; a bitmap of the name `dedupfs-DISK-TOKEN` begins to record
//!    writes for the next time; and the bitmap of the newest version's token is copied.
//! 2. The disks are read over NBD, with that copy as the map of changes.
//! 3. `check`: the job that saves still runs.
//! 4. `end`: the export goes. If the version is durable the older bitmaps go, else the new one.
//!
//! So a crash at any time leaves the bitmap of the newest version, which goes on recording: the next `begin` removes the rest. Bitmaps
//! that are inconsistent, because qemu was killed, are removed, and all of the disk is read.

mod monitor;
mod node;
mod scratch;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

pub(crate) use self::monitor::Monitor;
use self::node::Node;
use self::scratch::{checksum, percent_encoded};
use super::{Driver, Point, Verdict};

/// Beginning of all names that are ours.
const OURS: &str = "dedupfs-";
/// The copy of a bitmap that an export tells.
const EXPORTED_BITMAP: &str = "dedupfs-told";
/// Beginning of the names of nodes, jobs and exports. They are the same each time, so that the next run finds the leftovers of one that
/// was killed. One batch at a time uses a machine: a monitor has one client.
const HOLDS: &str = "dedupfs-hold";

/// A disk of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QmpDisk {
    /// Its block node.
    pub node: String,
    /// Directory for its scratch file.
    pub scratch: PathBuf,
    /// Tells it apart from the same disk in other plans and pools, which have bitmaps of their own.
    pub identity: String,
}

impl QmpDisk {
    /// Beginning of the names of its bitmaps.
    fn bitmaps(&self) -> String {
        format!("{OURS}{:016x}-", checksum(self.identity.as_bytes()))
    }

    /// The name of the bitmap that records changes since a token.
    fn bitmap(&self, token: &str) -> String {
        format!("{}{token}", self.bitmaps())
    }
}

/// The disks of a monitor.
#[derive(Debug)]
pub struct Qmp {
    socket: PathBuf,
    disks: Vec<QmpDisk>,
    begun: Option<Begun>,
}

/// A point in time that is held.
#[derive(Debug)]
struct Begun {
    monitor: Monitor,
    token: String,
    /// The disks that are not let go.
    held: Vec<bool>,
    /// The bitmaps of each disk that end when its version is durable.
    older: Vec<Vec<String>>,
}

/// The progress of `begin`.
#[derive(Default)]
struct Beginning {
    older: Vec<Vec<String>>,
    is_listening: bool,
}

impl Qmp {
    /// Disks of a monitor.
    #[must_use]
    pub fn new(socket: PathBuf, disks: Vec<QmpDisk>) -> Self {
        Self { socket, disks, begun: None }
    }

    /// Returns the path of something in a scratch directory, which other machines may share.
    fn scratch(&self, disk: usize, what: &str) -> Option<PathBuf> {
        let directory = &self.disks.get(disk)?.scratch;
        Some(directory.join(format!("{OURS}{:016x}-{what}", checksum(self.socket.as_os_str().as_bytes()))))
    }

    fn scratch_file(&self, disk: usize) -> Option<PathBuf> {
        self.scratch(disk, &format!("{disk}.qcow2"))
    }

    fn export_socket(&self) -> PathBuf {
        self.scratch(0, "nbd").unwrap_or_default()
    }

    /// Prepares the scratch files, and begins.
    fn hold(
        &self,
        monitor: &mut Monitor,
        token: &str,
        last: &[Option<String>],
        begun: &mut Beginning,
    ) -> Result<Vec<Point>, String> {
        let listed = node::list(monitor)?;
        // Saving comes first: it holds the guest's writes until all of the transaction is done, and bitmaps alone do not.
        let (mut saving, mut recording, mut points) = (Vec::new(), Vec::new(), Vec::new());
        for (number, disk) in self.disks.iter().enumerate() {
            let known = Node::among(&listed, &disk.node)?;
            known.check_is_uppermost(&disk.node)?;
            node::check_has_device(monitor, &disk.node)?;
            let own = known.bitmaps.iter().filter(|bitmap| bitmap.name.starts_with(&disk.bitmaps()));
            let (stale, older): (Vec<_>, Vec<_>) = own.partition(|bitmap| bitmap.is_inconsistent);
            begun.older.push(older.into_iter().map(|bitmap| bitmap.name.clone()).collect());
            let stale = stale.into_iter().map(|bitmap| bitmap.name.as_str()).chain([EXPORTED_BITMAP]);
            remove_bitmaps(monitor, &disk.node, stale)?;
            self.prepare(monitor, number, disk, known.size_bytes)?;
            let last = last.get(number).and_then(Option::as_deref);
            let base = last.map(|token| known.base(&disk.bitmap(token)));
            let add = |data: Value| json!({ "type": "block-dirty-bitmap-add", "data": data });
            let QmpDisk { node, .. } = disk;
            recording.push(add(json!({ "node": node, "name": disk.bitmap(token), "persistent": known.is_qcow2 })));
            let mut point = Point {
                source: format!("nbd+unix:///disk{number}?socket={}", percent_encoded(&self.export_socket())),
                token: Some(token.to_owned()),
                ..Point::default()
            };
            match base {
                None => {}
                Some(Err(why)) => point.without_map = Some(why),
                Some(Ok(base)) => {
                    let (name, granularity) = (EXPORTED_BITMAP, base.granularity);
                    recording
                        .push(add(json!({ "node": node, "name": name, "disabled": true, "granularity": granularity })));
                    let merge = json!({ "node": node, "target": name, "bitmaps": [base.name] });
                    recording.push(json!({ "type": "block-dirty-bitmap-merge", "data": merge }));
                    point.map = Some(format!("nbd:qemu:dirty-bitmap:{name}"));
                    point.token_from = last.map(str::to_owned);
                    point.dirty_bytes = Some(base.count);
                }
            }
            let hold = format!("{HOLDS}-{number}");
            let save = json!({ "job-id": hold, "device": node, "target": hold, "sync": "none" });
            saving.push(json!({ "type": "blockdev-backup", "data": save }));
            points.push(point);
        }
        let path = self.export_socket().display().to_string();
        monitor.ask("nbd-server-start", &json!({ "addr": { "type": "unix", "data": { "path": path } } }))?;
        begun.is_listening = true;
        saving.extend(recording);
        monitor.ask("transaction", &json!({ "actions": saving }))?;
        for (number, point) in points.iter().enumerate() {
            let (hold, name) = (format!("{HOLDS}-{number}"), format!("disk{number}"));
            let bitmaps: &[&str] = if point.map.is_some() { &[EXPORTED_BITMAP] } else { &[] };
            let export = json!({ "type": "nbd", "id": hold, "node-name": hold, "name": name, "bitmaps": bitmaps });
            monitor.ask("block-export-add", &export)?;
        }
        Ok(points)
    }

    /// Makes the scratch file of a disk, in front of its node.
    fn prepare(&self, monitor: &mut Monitor, number: usize, disk: &QmpDisk, size_bytes: u64) -> Result<(), String> {
        scratch::check(&disk.scratch, size_bytes)?;
        let hold = format!("{HOLDS}-{number}");
        let file = format!("{hold}-file");
        let path = self.scratch_file(number).unwrap_or_default().display().to_string();
        monitor.create_image(&format!("{hold}-make"), &json!({ "driver": "file", "filename": path, "size": 0 }))?;
        monitor.ask("blockdev-add", &json!({ "driver": "file", "node-name": file, "filename": path }))?;
        monitor
            .create_image(&format!("{hold}-format"), &json!({ "driver": "qcow2", "file": file, "size": size_bytes }))?;
        let overlay = json!({ "driver": "qcow2", "node-name": hold, "file": file, "backing": disk.node });
        monitor.ask("blockdev-add", &overlay).map(drop)
    }

    /// Removes the export, the job, the nodes and the scratch file of a disk. Returns the first error.
    fn release(&self, monitor: &mut Monitor, number: usize) -> Result<(), String> {
        let hold = format!("{HOLDS}-{number}");
        let mut outcome = Ok(());
        let mut note = |result: Result<(), String>| outcome = std::mem::replace(&mut outcome, Ok(())).and(result);
        if monitor.has_export(&hold)? {
            note(monitor.ask("block-export-del", &json!({ "id": hold, "mode": "hard" })).map(drop));
            note(monitor.wait_until(|monitor| Ok(!monitor.has_export(&hold)?)));
        }
        for job in [hold.clone(), format!("{hold}-make"), format!("{hold}-format")] {
            note(monitor.end_job(&job));
        }
        let nodes = node::list(monitor)?;
        // That of a run that was killed may lie in another directory.
        let scratch = node::file_of(&nodes, &format!("{hold}-file")).or_else(|| self.scratch_file(number));
        for node in [hold.clone(), format!("{hold}-file")] {
            if node::names(&nodes).any(|name| name == node) {
                note(monitor.ask("blockdev-del", &json!({ "node-name": node })).map(drop));
            }
        }
        if let Some(scratch) = scratch {
            match std::fs::remove_file(&scratch) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    note(Err(format!("cannot remove {}: {error}", scratch.display())));
                }
                _ => {}
            }
        }
        outcome
    }

    fn stop_listening(&self, monitor: &mut Monitor) -> Result<(), String> {
        let stopped = monitor.ask("nbd-server-stop", &json!({})).map(drop);
        // qemu removes it, unless it died.
        let _ = std::fs::remove_file(self.export_socket());
        stopped
    }

    /// Lets go of the leftovers of a run that was killed, also of disks that are not among these.
    fn release_leftovers(&self, monitor: &mut Monitor) -> Result<(), String> {
        let number = |name: &str| name.strip_prefix(HOLDS)?.strip_prefix('-')?.split('-').next()?.parse().ok();
        let nodes = node::list(monitor)?;
        let mut numbers: BTreeSet<usize> = node::names(&nodes).filter_map(number).collect();
        numbers.extend(monitor.names_of_jobs()?.iter().filter_map(|name| number(name)));
        let mut was_listening = false;
        for left in &numbers {
            was_listening |= monitor.has_export(&format!("{HOLDS}-{left}"))?;
            // An error shows again when the same name is used.
            let _ = self.release(monitor, *left);
        }
        // A server of somebody else stays. The path is ours alone.
        if was_listening || UnixStream::connect(self.export_socket()).is_ok() {
            self.stop_listening(monitor)?;
        }
        Ok(())
    }
}

/// Removes those bitmaps of a node that it has.
fn remove_bitmaps<'a>(monitor: &mut Monitor, node: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let known = Node::among(&node::list(monitor)?, node)?;
    for name in names.filter(|name| known.bitmaps.iter().any(|bitmap| bitmap.name == *name)) {
        monitor.ask("block-dirty-bitmap-remove", &json!({ "node": node, "name": name }))?;
    }
    Ok(())
}

impl Driver for Qmp {
    fn begin(&mut self, last: &[Option<String>], _gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        let token = new_token()?;
        let mut monitor = Monitor::connect(&self.socket)?;
        self.release_leftovers(&mut monitor)?;
        let mut begun = Beginning::default();
        match self.hold(&mut monitor, &token, last, &mut begun) {
            Ok(points) => {
                let (held, older) = (vec![true; self.disks.len()], begun.older);
                self.begun = Some(Begun { monitor, token, held, older });
                Ok(points)
            }
            Err(why) => {
                // The next begin removes the rest.
                for (number, disk) in self.disks.iter().enumerate() {
                    let _ = self.release(&mut monitor, number);
                    let new = disk.bitmap(&token);
                    let _ = remove_bitmaps(&mut monitor, &disk.node, [EXPORTED_BITMAP, &new].into_iter());
                }
                if begun.is_listening {
                    let _ = self.stop_listening(&mut monitor);
                }
                Err(why)
            }
        }
    }

    fn check(&mut self, disk: usize, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let Some(begun) = &mut self.begun else { return Err("it was not begun".to_owned()) };
        match begun.monitor.failure_of_job(&format!("{HOLDS}-{disk}"))? {
            None => Ok(()),
            Some(why) => {
                Err(format!("the disk did not stand still, because qemu did not save what the guest overwrote: {why}"))
            }
        }
    }

    fn end(&mut self, disk: usize, verdict: Verdict) -> Result<(), String> {
        let Some(mut begun) = self.begun.take() else { return Err("it was not begun".to_owned()) };
        let Some(ended) = self.disks.get(disk) else { return Err("there is no such disk".to_owned()) };
        let monitor = &mut begun.monitor;
        let released = self.release(monitor, disk);
        let new = ended.bitmap(&begun.token);
        let older = begun.older.get(disk).into_iter().flatten().map(String::as_str);
        let removed = match verdict {
            Verdict::Stored => remove_bitmaps(monitor, &ended.node, [EXPORTED_BITMAP].into_iter().chain(older)),
            Verdict::Failed => remove_bitmaps(monitor, &ended.node, [EXPORTED_BITMAP, new.as_str()].into_iter()),
        };
        begun.held.get_mut(disk).into_iter().for_each(|held| *held = false);
        let stopped = match begun.held.iter().any(|held| *held) {
            true => {
                self.begun = Some(begun);
                Ok(())
            }
            false => self.stop_listening(&mut begun.monitor),
        };
        released.and(removed).and(stopped)
    }
}

/// Returns the name of this moment: its time in UTC, and some chance.
fn new_token() -> Result<String, String> {
    let mut chance = [0_u8; 4];
    let file = std::fs::File::open("/dev/urandom");
    let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut chance));
    read.map_err(|error| format!("cannot read random bytes: {error}"))?;
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    Ok(format!("{now}-{:08x}", u32::from_be_bytes(chance)))
}
