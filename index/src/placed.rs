//! The last question before containers are freed: does any cell name them? Answered without the garbage map.

use std::collections::HashSet;

use dedupfs_store::{ContainerId, Result, StoreError};

use crate::index::Index;
use crate::open::SHARDS;

impl Index {
    /// Returns those of `containers` that any cell names, according to the lists of the sealed tankers' files and to
    /// memory. A cell that was moved or removed since the last checkpoint still counts, so ask right after a
    /// checkpoint.
    ///
    /// # Errors
    /// A tanker's list is missing, because the list and the cells are damaged.
    ///
    /// Cost: no I/O; a search in each tanker's list for each container, and a walk through memory, some 10 ms for a
    /// million cells.
    pub fn placed_in(&self, containers: &HashSet<ContainerId>) -> Result<HashSet<ContainerId>> {
        self.consistently(|set| {
            let mut placed = HashSet::new();
            for tanker in set.tankers() {
                // A tanker without a list would seem to name no container.
                let (cells, listed) = (tanker.cells(), tanker.containers.cells());
                if listed != u64::from(cells) {
                    let what = format!("list of containers of tanker {}", tanker.id);
                    return Err(StoreError::corrupt(what, format!("{cells} cells"), listed));
                }
                placed.extend(containers.iter().filter(|container| tanker.containers.of(**container).is_some()));
            }
            for shard in 0..SHARDS {
                let shard = self.open.read(shard);
                let cells = shard.cells.iter().map(|(_, cell)| cell.location);
                let patched = shard.patches.iter().filter_map(|(_, patch)| patch.cell).map(|cell| cell.location);
                let staged = shard.recent.iter().map(|(_, location)| *location);
                let all = cells.chain(patched).chain(staged).map(|location| location.container());
                placed.extend(all.filter(|container| containers.contains(container)));
            }
            Ok(placed)
        })
    }
}
