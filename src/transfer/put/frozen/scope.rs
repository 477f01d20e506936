//! The scope of a put: in some series, new content is compared with the former version alone.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::{FileContext, Neighbour};
use dedupfs_service::Ino;

use crate::engine::Core;
use crate::versions::read::for_each_chunk;
use crate::versions::series::{SERIES_RECORD, Scope, SeriesRecord};

/// Part of `--memory` for the chunks of the former version, of 8 bytes each and as many again while they are listed.
const MEMORY_SHARE: u64 = 16;

/// Returns the context of new content in the series `into`, whose former version is `base`.
pub(super) fn context(core: &Core, into: Ino, base: Option<Ino>) -> Arc<FileContext> {
    neighbour(core, into, base)
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "the former version cannot be walked: new content is compared with all of the pool");
            None
        })
        .map_or_else(|| core.files.clone(), |neighbour| Arc::new(core.files.within(neighbour)))
}

fn neighbour(core: &Core, into: Ino, base: Option<Ino>) -> Result<Option<Neighbour>> {
    let Some(record) = core.namespace.xattr(into, SERIES_RECORD)? else { return Ok(None) };
    // Without a former version everything would be stored again.
    let (Scope::Neighbour, Some(base)) = (SeriesRecord::decode(&record)?.scope, base) else { return Ok(None) };
    let Some(top) = core.namespace.inode_shared(base)?.and_then(|version| version.root.reference()) else {
        return Ok(None);
    };
    let chunks_max = core.memory.total_bytes / MEMORY_SHARE / 8;
    let mut neighbour = Neighbour::new(core.indexes.chunks.clone());
    let mut left = chunks_max;
    for_each_chunk(core.dedup.nodes(), top, &mut |chunk| {
        neighbour.add(chunk);
        left = left.saturating_sub(1);
        left > 0
    })?;
    if left == 0 {
        tracing::warn!(
            chunks_max,
            "the former version has more chunks than --memory allows: new content is compared with all of the pool"
        );
        return Ok(None);
    }
    neighbour.complete();
    Ok(Some(neighbour))
}
