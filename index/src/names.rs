//! Names of an index's files, and how whole files are written.
//!
//! Every checkpoint attempt has a generation of its own, and each file's name carries the generation that wrote it: a file
//! that some manifest names is never written again.

use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::device::aligned::AlignedBuffer;
use dedupfs_store::device::{DIRECT_ALIGNMENT_BYTES, Device, DeviceFile, OpenMode};

use crate::options::SEQUENTIAL_BYTES;

/// The name of the manifest.
pub(crate) const MANIFEST_NAME: &str = "manifest";

const PROGRESS_PREFIX: &str = "progress-";

/// Name of the cells of sealed tanker `id`, written by `generation`.
pub(crate) fn tanker_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.tanker")
}

/// Name of the counts of sealed tanker `id`, written by `generation`.
pub(crate) fn counts_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.counts")
}

/// Name of the Bloom filter of sealed tanker `id`, written by `generation`.
pub(crate) fn filter_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.filter")
}

/// Name of the list of containers of sealed tanker `id`, written by `generation`.
pub(crate) fn containers_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.containers")
}

/// Name of the list of what sealed tanker `id` places in each container, with the counts that `generation` wrote.
pub(crate) fn occupancy_name(id: u64, generation: u64) -> String {
    format!("t-{id}-{generation}.occupancy")
}

/// Name of the open tanker's file, written by `generation`.
pub(crate) fn open_name(generation: u64) -> String {
    format!("open-{generation}.cells")
}

/// Whether a file of that name is one of ours (and thus garbage if no manifest names it).
pub(crate) fn is_ours(name: &str) -> bool {
    // A list is also written while its tanker is in use, by replacement.
    [".tanker", ".counts", ".filter", ".containers", ".occupancy", ".occupancy.new"]
        .iter()
        .any(|ending| name.ends_with(ending))
        || (name.starts_with("open-") && name.ends_with(".cells"))
}

/// The generation that wrote a file of that name.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    name.rsplit_once('.')?.0.rsplit_once('-')?.1.parse().ok()
}

/// Name of the file that says how far the building of an index has come, the `number`th.
pub(crate) fn progress_name(number: u64) -> String {
    format!("{PROGRESS_PREFIX}{number}")
}

/// The number in the name of a [`progress_name`].
pub(crate) fn progress_number(name: &str) -> Option<u64> {
    name.strip_prefix(PROGRESS_PREFIX)?.parse().ok()
}

/// Whether a file of that name may be in the directory of an index, finished or not.
pub(crate) fn may_be_there(name: &str) -> bool {
    let complete = name.strip_suffix(".new").unwrap_or(name);
    is_ours(name) || complete == MANIFEST_NAME || progress_number(complete).is_some()
}

/// `directory/name`.
pub(crate) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Writes a file from its start to its end, in large pieces. What is there under its name is overwritten: it is left over
/// from an attempt that no manifest names.
pub(crate) struct FileWriter {
    file: Arc<dyn DeviceFile>,
    buffer: AlignedBuffer,
    written_bytes: u64,
}

impl FileWriter {
    /// Starts a file.
    pub(crate) fn new(device: &dyn Device, path: &str) -> Result<Self> {
        const { assert!(SEQUENTIAL_BYTES.is_multiple_of(DIRECT_ALIGNMENT_BYTES)) };
        let file = device.open(path, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        Ok(Self { file, buffer: AlignedBuffer::with_capacity(SEQUENTIAL_BYTES), written_bytes: 0 })
    }

    /// Adds bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(SEQUENTIAL_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(piece);
            rest = after;
            if self.buffer.len() == SEQUENTIAL_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_at(self.buffer.as_slice(), self.written_bytes)?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what is left and syncs the file.
    pub(crate) fn finish(mut self) -> Result<Arc<dyn DeviceFile>> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        self.file.sync()?;
        Ok(self.file)
    }
}
