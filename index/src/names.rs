//! The names of an index's files, and the writer of whole files.
//!
//! Every checkpoint attempt has its own generation, and each file's name carries the generation that wrote it. So no
//! file that a manifest names is ever written again.

use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::device::{AlignedBuffer, DIRECT_ALIGNMENT_BYTES, Device, DeviceFile, OpenMode};
use dedupfs_sync::canary::{Canary, is_planted};

use crate::options::SEQUENTIAL_BYTES;

pub(crate) const MANIFEST_NAME: &str = "manifest";

const PROGRESS_PREFIX: &str = "progress-";

/// Names of the files of sealed tanker `id`, written by `generation`: of its cells, counts, filter and containers.
pub(crate) fn tanker_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.tanker")
}

pub(crate) fn counts_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.counts")
}

pub(crate) fn filter_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.filter")
}

pub(crate) fn containers_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.containers")
}

/// Name of the occupancy list of sealed tanker `id`, with the counts that `generation` wrote.
pub(crate) fn occupancy_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.occupancy")
}

/// Name of the file of guide `id`.
pub(crate) fn guide_name(id: u64, generation: u64) -> String {
    format!("g-{id}-{generation}.guide")
}

pub(crate) fn open_name(generation: u64) -> String {
    format!("open-{generation}.cells")
}

/// Whether a file of this name belongs to the index (and is garbage if no manifest names it).
pub(crate) fn is_ours(name: &str) -> bool {
    // An occupancy list may also be replaced while its tanker is in use.
    [".tanker", ".counts", ".filter", ".containers", ".occupancy", ".occupancy.new", ".guide"]
        .iter()
        .any(|ending| name.ends_with(ending))
        || (name.starts_with("open-") && name.ends_with(".cells"))
}

/// The generation that wrote a file of this name.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    name.rsplit_once('.')?.0.rsplit_once('-')?.1.parse().ok()
}

pub(crate) fn progress_name(number: u64) -> String {
    format!("{PROGRESS_PREFIX}{number}")
}

pub(crate) fn progress_number(name: &str) -> Option<u64> {
    name.strip_prefix(PROGRESS_PREFIX)?.parse().ok()
}

/// Whether a file of this name may be in the directory of an index, finished or not.
pub(crate) fn may_be_there(name: &str) -> bool {
    let complete = name.strip_suffix(".new").unwrap_or(name);
    is_ours(name) || complete == MANIFEST_NAME || progress_number(complete).is_some()
}

pub(crate) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Writes a file from start to end, in large pieces. It overwrites an existing file of that name: a leftover of an
/// attempt that no manifest names.
pub(crate) struct FileWriter {
    file: Arc<dyn DeviceFile>,
    buffer: AlignedBuffer,
    written_bytes: u64,
}

impl FileWriter {
    pub(crate) fn new(device: &dyn Device, path: &str) -> Result<Self> {
        const { assert!(SEQUENTIAL_BYTES.is_multiple_of(DIRECT_ALIGNMENT_BYTES)) };
        let file = device.open(path, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        Ok(Self { file, buffer: AlignedBuffer::with_capacity(SEQUENTIAL_BYTES), written_bytes: 0 })
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(SEQUENTIAL_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(piece);
            rest = after;
            if self.buffer.len() == SEQUENTIAL_BYTES {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.written_bytes)?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest and syncs the file.
    pub(crate) fn finish(mut self) -> Result<Arc<dyn DeviceFile>> {
        if !self.buffer.is_empty() {
            self.write_out()?;
        }
        if !is_planted(Canary::TankerNotSynced) {
            self.file.sync()?;
        }
        Ok(self.file)
    }
}
