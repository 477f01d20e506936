//! Disks of a running qemu, by its monitor (QMP).
//!
//! 1. `begin`, as one transaction for all disks of the monitor: a bitmap of the name `dedupfs-TOKEN` begins to record writes for the next
//!    time; the bitmap of the newest version's token is copied, with all that began later; and from now on qemu saves what the guest
//!    overwrites into a scratch file (`blockdev-backup`, *fleecing*), so that the export shows this moment.
//! 2. The disks are read over NBD, with that copy as the map of changes.
//! 3. `check`: the job that saves has not failed. Otherwise the export has not shown one moment, and the version is worth nothing.
//! 4. `end`: the export goes. If the version is durable the older bitmaps go, else the new one.
//!
//! So a crash at any time leaves the bitmap of the newest version, which goes on recording: the next `begin` removes the rest. Bitmaps
//! that are inconsistent, because qemu was killed, are removed, and all of the disk is read.

mod monitor;
#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) use self::monitor::Monitor;
use super::{Driver, Point, Verdict};

/// Beginning of all names that are ours.
const OURS: &str = "dedupfs-";
/// The copy of the bitmaps that an export tells.
const TOLD: &str = "dedupfs-told";
/// Beginning of the names of nodes, jobs and exports. They are the same each time, so that what a killed run has left is found. Two runs
/// never meet: a monitor has one client, who holds it.
const HOLDS: &str = "dedupfs-hold";

/// The disks of a monitor.
#[derive(Debug)]
pub struct Qmp {
    socket: PathBuf,
    /// Block nodes, and the directories for scratch files.
    nodes: Vec<(String, PathBuf)>,
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

impl Qmp {
    /// Disks of a monitor.
    #[must_use]
    pub fn new(socket: PathBuf, nodes: Vec<(String, PathBuf)>) -> Self {
        Self { socket, nodes, begun: None }
    }

    /// The path of something in a scratch directory, which other machines may share.
    fn scratch(&self, disk: usize, what: &str) -> PathBuf {
        let directory =
            self.nodes.get(disk).map_or_else(|| PathBuf::from("/var/tmp"), |(_, directory)| directory.clone());
        directory.join(format!("{OURS}{:016x}-{what}", checksum(&self.socket)))
    }

    fn overwritten(&self, disk: usize) -> PathBuf {
        self.scratch(disk, &format!("{disk}.qcow2"))
    }

    fn listening(&self) -> PathBuf {
        self.scratch(0, "nbd")
    }

    /// Prepares the scratch files, and begins.
    fn hold(
        &self,
        monitor: &mut Monitor,
        token: &str,
        last: &[Option<String>],
        older: &mut Vec<Vec<String>>,
    ) -> Result<Vec<Point>, String> {
        let listed = monitor.ask("query-named-block-nodes", &json!({ "flat": true }))?;
        let (mut actions, mut points) = (Vec::new(), Vec::new());
        let target = |disk: usize| format!("{HOLDS}-{disk}");
        for (disk, (node, _)) in self.nodes.iter().enumerate() {
            let known = Node::among(&listed, node)?;
            let (from, why) = known.base(last.get(disk).and_then(Option::as_deref));
            // Left by a run that ended early, or of no use.
            for bitmap in &known.bitmaps {
                let is_stale = bitmap.name == TOLD || bitmap.is_inconsistent;
                if bitmap.name.starts_with(OURS) && is_stale {
                    monitor.ask("block-dirty-bitmap-remove", &json!({ "node": node, "name": bitmap.name }))?;
                }
            }
            older.push(
                known.bitmaps.iter().filter(|bitmap| bitmap.is_ours()).map(|bitmap| bitmap.name.clone()).collect(),
            );
            self.prepare(monitor, disk, known.size_bytes, node)?;
            let target = target(disk);
            let mut dirty_bytes = None;
            if let Some(from) = &from {
                let merged: Vec<&str> = known.since(from).map(|bitmap| bitmap.name.as_str()).collect();
                // A bound: ranges may be in several of them.
                dirty_bytes = Some(known.since(from).map(|bitmap| bitmap.count).sum());
                let granularity = known.since(from).map(|bitmap| bitmap.granularity).max();
                actions.push(json!({ "type": "block-dirty-bitmap-add", "data": { "node": node, "name": TOLD, "disabled": true, "granularity": granularity } }));
                actions.push(json!({ "type": "block-dirty-bitmap-merge", "data": { "node": node, "target": TOLD, "bitmaps": merged } }));
            }
            actions.push(json!({ "type": "block-dirty-bitmap-add", "data": { "node": node, "name": format!("{OURS}{token}"), "persistent": known.is_qcow2 } }));
            actions.push(json!({ "type": "blockdev-backup", "data": { "job-id": target, "device": node, "target": target, "sync": "none" } }));
            points.push(Point {
                source: format!("nbd+unix:///disk{disk}?socket={}", percent_encoded(&self.listening())),
                map: from.as_ref().map(|_| format!("nbd:qemu:dirty-bitmap:{TOLD}")),
                token_from: from,
                token: Some(token.to_owned()),
                dirty_bytes,
                without_map: why,
            });
        }
        let listening = self.listening().display().to_string();
        monitor.ask("nbd-server-start", &json!({ "addr": { "type": "unix", "data": { "path": listening } } }))?;
        monitor.ask("transaction", &json!({ "actions": actions }))?;
        for (disk, point) in points.iter().enumerate() {
            let target = target(disk);
            let bitmaps: &[&str] = if point.map.is_some() { &[TOLD] } else { &[] };
            monitor.ask(
                "block-export-add",
                &json!({ "type": "nbd", "id": target, "node-name": target, "name": format!("disk{disk}"), "writable": false, "bitmaps": bitmaps }),
            )?;
        }
        Ok(points)
    }

    /// Makes the scratch file of a disk, in front of its node.
    fn prepare(&self, monitor: &mut Monitor, disk: usize, size_bytes: u64, node: &str) -> Result<(), String> {
        let target = format!("{HOLDS}-{disk}");
        let file = format!("{target}-file");
        let path = self.overwritten(disk).display().to_string();
        monitor.run_job(&format!("{target}-make"), &json!({ "driver": "file", "filename": path, "size": 0 }))?;
        monitor.ask("blockdev-add", &json!({ "driver": "file", "node-name": file, "filename": path }))?;
        monitor
            .run_job(&format!("{target}-format"), &json!({ "driver": "qcow2", "file": file, "size": size_bytes }))?;
        monitor
            .ask("blockdev-add", &json!({ "driver": "qcow2", "node-name": target, "file": file, "backing": node }))
            .map(drop)
    }

    /// Removes all that a point in time has of a disk, but for its bitmaps. Returns the first error.
    fn release(&self, monitor: &mut Monitor, disk: usize) -> Result<(), String> {
        let target = format!("{HOLDS}-{disk}");
        let mut outcome = Ok(());
        let mut note =
            |result: Result<Value, String>| outcome = std::mem::replace(&mut outcome, Ok(())).and(result.map(drop));
        if monitor.has_export(&target)? {
            note(monitor.ask("block-export-del", &json!({ "id": target, "mode": "hard" })));
            monitor.wait_until(|monitor| Ok(!monitor.has_export(&target)?))?;
        }
        if monitor.has_job(&target)? {
            note(monitor.ask("block-job-cancel", &json!({ "device": target, "force": true })));
            monitor.wait_until(|monitor| Ok(!monitor.has_job(&target)?))?;
        }
        let nodes = monitor.ask("query-named-block-nodes", &json!({ "flat": true }))?;
        for node in [target.clone(), format!("{target}-file")] {
            if Node::among(&nodes, &node).is_ok() {
                note(monitor.ask("blockdev-del", &json!({ "node-name": node })));
            }
        }
        match std::fs::remove_file(self.overwritten(disk)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                note(Err(format!("cannot remove {}: {error}", self.overwritten(disk).display())));
            }
            _ => {}
        }
        outcome
    }

    fn remove_bitmaps<'a>(
        monitor: &mut Monitor,
        node: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        let listed = monitor.ask("query-named-block-nodes", &json!({ "flat": true }))?;
        let known = Node::among(&listed, node)?;
        for name in names.filter(|name| known.bitmaps.iter().any(|bitmap| bitmap.name == *name)) {
            monitor.ask("block-dirty-bitmap-remove", &json!({ "node": node, "name": name }))?;
        }
        Ok(())
    }

    fn stop_listening(&self, monitor: &mut Monitor) -> Result<(), String> {
        let stopped = monitor.ask("nbd-server-stop", &json!({})).map(drop);
        // Of a qemu that died.
        let _ = std::fs::remove_file(self.listening());
        stopped
    }

    /// Lets go of what a run has left that was killed, as far as there is any.
    fn release_leftovers(&self, monitor: &mut Monitor) {
        let is_held = |monitor: &mut Monitor| {
            (0..self.nodes.len()).any(|disk| monitor.has_export(&format!("{HOLDS}-{disk}")).unwrap_or(false))
        };
        let was_listening = is_held(monitor) || self.listening().exists();
        for disk in 0..self.nodes.len() {
            let _ = self.release(monitor, disk);
        }
        if was_listening {
            let _ = self.stop_listening(monitor);
        }
    }
}

impl Driver for Qmp {
    fn begin(&mut self, last: &[Option<String>]) -> Result<Vec<Point>, String> {
        let token = new_token()?;
        let mut monitor = Monitor::connect(&self.socket)?;
        self.release_leftovers(&mut monitor);
        let mut older = Vec::new();
        match self.hold(&mut monitor, &token, last, &mut older) {
            Ok(points) => {
                self.begun = Some(Begun { monitor, token, held: vec![true; self.nodes.len()], older });
                Ok(points)
            }
            Err(why) => {
                for (disk, (node, _)) in self.nodes.iter().enumerate() {
                    // The next begin removes the rest.
                    let _ = self.release(&mut monitor, disk);
                    let _ = Self::remove_bitmaps(&mut monitor, node, [TOLD, &format!("{OURS}{token}")].into_iter());
                }
                let _ = self.stop_listening(&mut monitor);
                Err(why)
            }
        }
    }

    fn check(&mut self, disk: usize) -> Result<(), String> {
        let Some(begun) = &mut self.begun else { return Err("it was not begun".to_owned()) };
        let target = format!("{HOLDS}-{disk}");
        match begun.monitor.job_fails(&target)? {
            None => Ok(()),
            Some(why) => {
                Err(format!("qemu no longer saved what the guest overwrote, so the disk did not stand still: {why}"))
            }
        }
    }

    fn end(&mut self, disk: usize, verdict: Verdict) -> Result<(), String> {
        let Some(mut begun) = self.begun.take() else { return Err("it was not begun".to_owned()) };
        let node = self.nodes.get(disk).map_or_else(String::new, |(node, _)| node.clone());
        let monitor = &mut begun.monitor;
        let released = self.release(monitor, disk);
        let new = format!("{OURS}{}", begun.token);
        let older = begun.older.get(disk).into_iter().flatten().map(String::as_str);
        let removed = match verdict {
            Verdict::Stored => Self::remove_bitmaps(monitor, &node, [TOLD].into_iter().chain(older)),
            Verdict::Failed => Self::remove_bitmaps(monitor, &node, [TOLD, new.as_str()].into_iter()),
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

/// A block node.
struct Node {
    size_bytes: u64,
    /// Only such files keep bitmaps when qemu ends.
    is_qcow2: bool,
    bitmaps: Vec<Bitmap>,
}

struct Bitmap {
    name: String,
    count: u64,
    granularity: u64,
    is_inconsistent: bool,
    is_recording: bool,
}

impl Bitmap {
    /// Whether it is one that tells changes since a token.
    fn is_ours(&self) -> bool {
        self.name.starts_with(OURS) && self.name != TOLD && !self.is_inconsistent
    }
}

impl Node {
    fn among(listed: &Value, name: &str) -> Result<Self, String> {
        let nodes = listed.as_array().ok_or("qemu lists no block nodes")?;
        let node = nodes.iter().find(|node| node["node-name"] == name);
        let node =
            node.ok_or_else(|| format!("qemu has no block node {name}: `query-named-block-nodes` lists them"))?;
        let bitmap = |bitmap: &Value| {
            Some(Bitmap {
                name: bitmap["name"].as_str()?.to_owned(),
                count: bitmap["count"].as_u64()?,
                granularity: bitmap["granularity"].as_u64()?,
                is_inconsistent: bitmap["inconsistent"] == true,
                is_recording: bitmap["recording"] == true,
            })
        };
        let bitmaps = node["dirty-bitmaps"].as_array().into_iter().flatten().filter_map(bitmap).collect();
        let size_bytes =
            node["image"]["virtual-size"].as_u64().ok_or_else(|| format!("qemu names no size of {name}"))?;
        Ok(Self { size_bytes, is_qcow2: node["drv"] == "qcow2", bitmaps })
    }

    /// Returns the token at which a map can begin, or why there is none.
    fn base(&self, last: Option<&str>) -> (Option<String>, Option<String>) {
        let Some(last) = last else { return (None, None) };
        let name = format!("{OURS}{last}");
        let why = match self.bitmaps.iter().find(|bitmap| bitmap.name == name) {
            None => format!("qemu has no bitmap {name}: it was restarted, or the disk replaced"),
            Some(bitmap) if bitmap.is_inconsistent => {
                format!("the bitmap {name} is inconsistent, because qemu ended unexpectedly")
            }
            Some(bitmap) if !bitmap.is_recording => format!("the bitmap {name} does not record"),
            Some(_) => return (Some(last.to_owned()), None),
        };
        (None, Some(why))
    }

    /// The bitmap of a token, and those that began later: together they have all changes since. Tokens are in the order of time.
    fn since<'a>(&'a self, token: &str) -> impl Iterator<Item = &'a Bitmap> + 'a {
        let first = format!("{OURS}{token}");
        self.bitmaps.iter().filter(move |bitmap| bitmap.is_ours() && bitmap.name >= first)
    }
}

/// Returns the name of this moment: its time in UTC, and some chance.
fn new_token() -> Result<String, String> {
    let mut chance = [0_u8; 4];
    let from =
        std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut chance));
    from.map_err(|error| format!("cannot read random bytes: {error}"))?;
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    Ok(format!("{now}-{:08x}", u32::from_be_bytes(chance)))
}

/// Tells machines apart whose scratch files share a directory (FNV-1a of the monitor's path).
fn checksum(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Encodes the path of a socket for an address.
fn percent_encoded(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    path.as_os_str()
        .as_bytes()
        .iter()
        .map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
