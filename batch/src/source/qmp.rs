//! Disks of a running qemu, by its monitor (QMP).
//!
//! 1. `prepare` makes scratch files. `begin` is one transaction for all disks of the monitor: from now on qemu saves blocks that the guest overwrites into a scratch file
//!    (`blockdev-backup`, *fleecing*), so that the export shows this moment; a bitmap of the name `dedupfs-DISK-TOKEN` begins to record
//!    writes for the next time; and the bitmap of the newest version's token is copied.
//! 2. The disks are read over NBD, with that copy as the map of changes.
//! 3. `check`: the job that saves still runs.
//! 4. `end`: the export goes. If the version is durable the older bitmaps go, else the new one.
//!
//! So a crash at any time leaves the bitmap of the newest version, which goes on recording: the next `prepare` removes the rest. Bitmaps
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
use super::names::{OURS, checksum, new_token, percent_encoded};
use super::{Driver, Point, Verdict};

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
    /// What is ready for `begin` and `points`.
    prepared: Prepared,
}

/// A transaction that is ready.
#[derive(Debug, Default)]
struct Prepared {
    actions: Vec<Value>,
    points: Vec<Point>,
    /// The bitmaps of each disk that end when its version is durable.
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

    /// Makes the scratch files, and what the transaction consists of.
    fn make_ready(
        &self,
        monitor: &mut Monitor,
        token: &str,
        last: &[Option<String>],
        prepared: &mut Prepared,
    ) -> Result<(), String> {
        let listed = node::list(monitor)?;
        // Saving comes first: it holds the guest's writes until all of the transaction is done, and bitmaps alone do not.
        let (mut saving, mut recording) = (Vec::new(), Vec::new());
        for (number, disk) in self.disks.iter().enumerate() {
            let known = Node::among(&listed, &disk.node)?;
            known.check_is_uppermost(&disk.node)?;
            node::check_has_device(monitor, &disk.node)?;
            let own = known.bitmaps.iter().filter(|bitmap| bitmap.name.starts_with(&disk.bitmaps()));
            let (stale, older): (Vec<_>, Vec<_>) = own.partition(|bitmap| bitmap.is_inconsistent);
            prepared.older.push(older.into_iter().map(|bitmap| bitmap.name.clone()).collect());
            let stale = stale.into_iter().map(|bitmap| bitmap.name.as_str()).chain([EXPORTED_BITMAP]);
            remove_bitmaps(monitor, &disk.node, stale)?;
            self.make_scratch(monitor, number, disk, known.size_bytes)?;
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
            prepared.points.push(point);
        }
        let path = self.export_socket().display().to_string();
        monitor.ask("nbd-server-start", &json!({ "addr": { "type": "unix", "data": { "path": path } } }))?;
        prepared.is_listening = true;
        saving.extend(recording);
        prepared.actions = saving;
        Ok(())
    }

    /// Lets go of all disks behind an error. The next `prepare` removes the rest.
    fn let_go(&self, monitor: &mut Monitor, token: &str, is_listening: bool) {
        for (number, disk) in self.disks.iter().enumerate() {
            let _ = self.release(monitor, number);
            let new = disk.bitmap(token);
            let _ = remove_bitmaps(monitor, &disk.node, [EXPORTED_BITMAP, &new].into_iter());
        }
        if is_listening {
            let _ = self.stop_listening(monitor);
        }
    }

    /// Goes on with what is prepared. Behind an error all is let go.
    fn go_on<T>(&mut self, step: impl FnOnce(&mut Monitor, &mut Prepared) -> Result<T, String>) -> Result<T, String> {
        let mut begun = self.begun.take().ok_or("it is not prepared")?;
        let done = step(&mut begun.monitor, &mut begun.prepared);
        match &done {
            Ok(_) => self.begun = Some(begun),
            Err(_) => self.let_go(&mut begun.monitor, &begun.token, begun.prepared.is_listening),
        }
        done
    }

    /// Makes the scratch file of a disk, in front of its node.
    fn make_scratch(
        &self,
        monitor: &mut Monitor,
        number: usize,
        disk: &QmpDisk,
        size_bytes: u64,
    ) -> Result<(), String> {
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
    fn prepare(&mut self, last: &[Option<String>], _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let token = new_token()?;
        let mut monitor = Monitor::connect(&self.socket)?;
        self.release_leftovers(&mut monitor)?;
        let mut prepared = Prepared::default();
        if let Err(why) = self.make_ready(&mut monitor, &token, last, &mut prepared) {
            self.let_go(&mut monitor, &token, prepared.is_listening);
            return Err(why);
        }
        self.begun = Some(Begun { monitor, token, held: vec![true; self.disks.len()], prepared });
        Ok(())
    }

    fn begin(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.go_on(|monitor, prepared| monitor.ask("transaction", &json!({ "actions": prepared.actions })).map(drop))
    }

    fn points(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        self.go_on(|monitor, prepared| {
            for (number, point) in prepared.points.iter().enumerate() {
                let (hold, name) = (format!("{HOLDS}-{number}"), format!("disk{number}"));
                let bitmaps: &[&str] = if point.map.is_some() { &[EXPORTED_BITMAP] } else { &[] };
                let export = json!({ "type": "nbd", "id": hold, "node-name": hold, "name": name, "bitmaps": bitmaps });
                monitor.ask("block-export-add", &export)?;
            }
            Ok(std::mem::take(&mut prepared.points))
        })
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
        let older = begun.prepared.older.get(disk).into_iter().flatten().map(String::as_str);
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
