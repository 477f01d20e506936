//! Block nodes and their bitmaps, as qemu lists them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::monitor::Monitor;
use crate::source::names::OURS;

/// A block node.
pub(super) struct Node {
    pub(super) size_bytes: u64,
    /// Only such files keep bitmaps when qemu ends.
    pub(super) is_qcow2: bool,
    is_read_only: bool,
    pub(super) bitmaps: Vec<Bitmap>,
}

pub(super) struct Bitmap {
    pub(super) name: String,
    /// Bytes that are marked.
    pub(super) count: u64,
    pub(super) granularity: u64,
    pub(super) is_inconsistent: bool,
    is_recording: bool,
}

/// Returns all nodes.
pub(super) fn list(monitor: &mut Monitor) -> Result<Value, String> {
    monitor.ask("query-named-block-nodes", &json!({ "flat": true }))
}

/// Returns the names of all nodes.
pub(super) fn names(listed: &Value) -> impl Iterator<Item = &str> {
    listed.as_array().into_iter().flatten().filter_map(|node| node["node-name"].as_str())
}

/// Returns the path of a scratch file's node.
pub(super) fn file_of(listed: &Value, name: &str) -> Option<PathBuf> {
    let node = listed.as_array()?.iter().find(|node| node["node-name"] == name)?;
    let path = Path::new(node["file"].as_str()?);
    path.file_name()?.to_str()?.starts_with(OURS).then(|| path.to_owned())
}

/// Checks that a device of the guest uses a node, directly or through filters.
pub(super) fn check_has_device(monitor: &mut Monitor, name: &str) -> Result<(), String> {
    let devices = monitor.ask("query-blockstats", &json!({}))?;
    let mut nodes: Vec<&Value> = devices.as_array().into_iter().flatten().collect();
    while let Some(node) = nodes.pop() {
        if node["node-name"] == name {
            return Ok(());
        }
        nodes.extend(node.get("parent"));
    }
    Err(format!(
        "no device of the guest uses the block node {name}: it may use another one since a mirror ended; name that one"
    ))
}

impl Node {
    pub(super) fn among(listed: &Value, name: &str) -> Result<Self, String> {
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
        let size_bytes = node["image"]["virtual-size"].as_u64();
        let size_bytes = size_bytes.ok_or_else(|| format!("qemu names no size of {name}"))?;
        Ok(Self { size_bytes, is_qcow2: node["drv"] == "qcow2", is_read_only: node["ro"] == true, bitmaps })
    }

    /// Checks that the guest writes to this node, and not to one above it.
    pub(super) fn check_is_uppermost(&self, name: &str) -> Result<(), String> {
        match self.is_read_only {
            false => Ok(()),
            true => Err(format!(
                "the block node {name} is read-only: the guest writes to another one, perhaps behind a snapshot; name that one"
            )),
        }
    }

    /// Returns the bitmap of this name that has all changes since it began, or why there is none.
    pub(super) fn base(&self, name: &str) -> Result<&Bitmap, String> {
        match self.bitmaps.iter().find(|bitmap| bitmap.name == name) {
            None => Err(format!("qemu has no bitmap {name}: it was restarted, or the disk replaced")),
            Some(bitmap) if bitmap.is_inconsistent => {
                Err(format!("the bitmap {name} is inconsistent, because qemu ended unexpectedly"))
            }
            Some(bitmap) if !bitmap.is_recording => Err(format!("the bitmap {name} does not record")),
            Some(bitmap) => Ok(bitmap),
        }
    }
}
