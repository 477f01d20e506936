//! The scope of a put: in some series, new content is compared with the former version alone.

use std::sync::Arc;

use dedupfs_base::{Hold, Result};
use dedupfs_content::{FileContext, Neighbour};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Reference;

use super::super::super::tally::Tally;
use crate::engine::Core;
use crate::service::Service;
use crate::versions::read::for_each_reference;
use crate::versions::series::{SERIES_RECORD, Scope, SeriesRecord};
use crate::versions::work::WORK_MARK;

/// Memory of a chunk, twice for the time in which the list grows, and of a node that was walked.
const CHUNK_BYTES: u64 = 2 * 8;
const NODE_BYTES: u64 = 48;

/// The context of new content, and the memory that it holds.
pub(in super::super) struct Context {
    pub(in super::super) files: Arc<FileContext>,
    _held: Option<Hold>,
}

/// Returns the context of new content in the series `into`, or in a directory of work in it, whose former version is `base`.
pub(in super::super) fn context(
    core: &Core,
    service: &Service,
    tally: &Tally<'_>,
    (into, base): (Ino, Option<Ino>),
) -> Context {
    let found = neighbour(core, service, tally, (into, base)).unwrap_or_else(|error| {
        tracing::warn!(%error, "the former version cannot be walked: new content is compared with all of the pool");
        None
    });
    match found {
        Some((neighbour, held)) => Context { files: Arc::new(core.files.within(neighbour)), _held: Some(held) },
        None => Context { files: core.files.clone(), _held: None },
    }
}

fn neighbour(
    core: &Core,
    service: &Service,
    tally: &Tally<'_>,
    (into, base): (Ino, Option<Ino>),
) -> Result<Option<(Neighbour, Hold)>> {
    let mut record = core.namespace.xattr(into, SERIES_RECORD)?;
    // Tools put into a directory of work within the series.
    if record.is_none()
        && core.namespace.xattr(into, WORK_MARK)?.is_some()
        && let Some(work) = core.namespace.inode_shared(into)?
    {
        record = core.namespace.xattr(work.parent, SERIES_RECORD)?;
    }
    let Some(record) = record else { return Ok(None) };
    // Without a former version everything would be stored again.
    let (Scope::Neighbour, Some(base)) = (SeriesRecord::decode(&record)?.scope, base) else { return Ok(None) };
    let Some(top) = core.namespace.inode_shared(base)?.and_then(|version| version.root.reference()) else {
        return Ok(None);
    };
    let (memory_bytes, held) = service.take_memory_to_transfer();
    let (mut neighbour, mut left_bytes) = (Neighbour::new(core.indexes.chunks.clone()), Some(memory_bytes));
    for_each_reference(core.dedup.nodes(), top, &mut |reference| {
        let bytes = match reference {
            Reference::Chunk(child) => {
                neighbour.add(&child.fingerprint);
                CHUNK_BYTES
            }
            Reference::Node { .. } => NODE_BYTES,
        };
        left_bytes = left_bytes.and_then(|left| left.checked_sub(bytes));
        left_bytes.is_some() && tally.go_on().is_ok()
    })?;
    if left_bytes.is_none() {
        tracing::warn!(
            memory_bytes,
            "the former version has more chunks than --memory allows: new content is compared with all of the pool"
        );
        return Ok(None);
    }
    neighbour.complete();
    Ok(Some((neighbour, held)))
}
