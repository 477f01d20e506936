//! Detection of duplicates in stages (`dedupfs-detect`) in front of a pool: the changed segments of an image are cut here, the daemon is asked
//! for their chunks in the order of its index, and it gets the chunks by name. It reads again only those that are new.
//!
//! - [`segments`]: the parts of an image that are read, from a map of changes;
//! - [`disk`]: reading and cutting them;
//! - [`index`]: questions to the daemon;
//! - [`names`]: the file of named chunks;
//! - [`rule`]: whether detection in stages pays.

pub(crate) mod disk;
pub(crate) mod index;
pub(crate) mod names;
pub(crate) mod rule;
pub(crate) mod segments;

use std::fs::File;
use std::num::NonZeroU64;

use dedupfs::Progress;
use dedupfs::transfer::{Change, Cutting};
use dedupfs_detect::{Error, MemoryPlan};

use self::disk::{Reader, SegmentReader};
use self::index::DaemonIndex;
use self::names::Names;
use crate::control::{ControlClient, Failure};

/// Bytes of named chunks that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Cuts the `segments` of one image, asks the daemon for the chunks, and returns the file of named chunks.
pub(crate) fn name_chunks(
    daemon: &mut ControlClient,
    (cutting, segments): (&Cutting, Vec<Change>),
    read: Reader<'_>,
    rate: Option<NonZeroU64>,
    progress: &dyn Progress,
) -> Result<File, Failure> {
    let cutter = cutting.cutter().map_err(Failure::failed)?;
    let directory = std::env::temp_dir();
    let mean_bytes = cutter.mean_bytes().max(1) as u64;
    let mut names = Names::new(&directory, BUFFER_BYTES)?;
    let mut disks = SegmentReader::new(0, cutter, (segments, read), rate, progress);
    let bytes = disks.bytes_to_cut();
    let plan = MemoryPlan::new(&directory, bytes / mean_bytes);
    progress.start("detecting", bytes);
    let mut pool = DaemonIndex::new(&mut *daemon)?;
    let go_on = || !progress.is_cancelled();
    let mut land = |_, record: &_| {
        names.add(record).map_err(|error| Error::Io {
            step: "write named chunks",
            directory: directory.clone(),
            source: error,
        })
    };
    let named = dedupfs_detect::alone(&mut disks, &mut pool, &plan, &mut land, &go_on);
    progress.finish();
    match named {
        Ok(tally) => {
            tracing::debug!(asks = tally.asks, new = tally.new, known = tally.known, "named the chunks of an image")
        }
        Err(Error::Ended) => return Err(Failure::failed("interrupted")),
        Err(error) => return Err(Failure::failed(error.to_string())),
    }
    names
        .finish()
        .map_err(|error| Failure::failed(format!("cannot write named chunks in {}: {error}", directory.display())))
}
