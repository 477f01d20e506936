//! Repair of recipe nodes and tree nodes: a node whose copy is bad is stored again from the copy of its container that
//! the export keeps on the data root.
//!
//! One leaf of a tree has the names of some ten entries for all versions, and one recipe node the places of some
//! megabytes for all files. So a sound copy elsewhere is looked for before either is called lost.
//!
//! A copy counts only as far as it is read back and verified: its frame is of this container, and the decoded node has
//! the fingerprint. The new copy is a move ([`LogOp::NodeMoved`](dedupfs_store::LogOp::NodeMoved)): children stay
//! counted. After a crash before the next commit the index places the node where it was, and the next scrub repairs it.
//!
//! Memory: one container and its nodes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use dedupfs_base::Result;
use dedupfs_content::{RECLAIM_STREAM, WholeContainer};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint};

use super::quarantine::BadCopy;
use crate::durability::space::Demand;
use crate::engine::Core;
use crate::upkeep::inspect::judge;

impl Core {
    /// Stores those bad nodes again of which the export has a sound copy, durably; returns them. The caller holds
    /// losses, and has noted the damage of these containers.
    ///
    /// # Errors
    /// The index cannot be read; a commit failed. A full disk is none: nodes without room are left to be lost.
    pub(super) fn repair_nodes(&self, bad: &[BadCopy]) -> Result<Vec<BadCopy>> {
        let mut repaired = Vec::new();
        // While counts are in doubt, nobody knows which nodes are needed, and a recovery may be the better way.
        if self.namespace.has_doubt() {
            return Ok(repaired);
        }
        let mut wanted: BTreeMap<ContainerId, HashSet<Fingerprint>> = BTreeMap::new();
        for copy in bad.iter().filter(|copy| copy.kind == ContainerKind::Recipe) {
            let cell = self.indexes.nodes.get(&copy.fingerprint)?;
            if self.places(copy)? || cell.is_some_and(|cell| cell.location.is_quarantined()) {
                wanted.entry(copy.container).or_default().insert(copy.fingerprint);
            }
        }
        let mut whole = WholeContainer::default();
        for (container, wanted) in wanted {
            let Some(record) = self.stores.recipes.closed_record(container) else { continue };
            if !self.exporter.read_copy(&record, &mut whole) {
                continue;
            }
            let sound = self.sound_nodes(&record, &whole, &wanted);
            let meta_bytes = sound.values().map(|bytes| bytes.len() as u64).sum();
            let Ok(_room) = self.admit(Demand { data_bytes: 0, meta_bytes }) else { break };
            self.dedup.wait_for_room()?;
            let before = repaired.len();
            for (fingerprint, bytes) in sound {
                if self.dedup.replace_node(RECLAIM_STREAM, fingerprint, container, &bytes)? {
                    repaired.push(BadCopy { kind: ContainerKind::Recipe, container, fingerprint });
                }
            }
            let nodes = repaired.len() - before;
            if nodes > 0 {
                tracing::warn!(%container, nodes, "recipe nodes were bad, and were stored again from the data root");
            }
            self.committer.pace()?;
        }
        if !repaired.is_empty() {
            self.committer.settle()?;
        }
        Ok(repaired)
    }

    /// Returns the wanted nodes that these bytes of a container hold and prove.
    fn sound_nodes(
        &self,
        record: &ContainerRecord,
        whole: &WholeContainer,
        wanted: &HashSet<Fingerprint>,
    ) -> HashMap<Fingerprint, Vec<u8>> {
        let sound = RefCell::new(HashMap::new());
        let fingerprinter = self.dedup.fingerprinter();
        let _bad_here_too = self.stores.recipes.inspect(record, whole, &|entries, raw| {
            let verdicts = judge(ContainerKind::Recipe, fingerprinter, entries, raw);
            let mut rest = raw;
            for (entry, is_sound) in entries.iter().zip(&verdicts) {
                let (bytes, behind) = rest.split_at_checked(entry.len_bytes as usize).unwrap_or_default();
                rest = behind;
                if *is_sound && wanted.contains(&entry.fingerprint) {
                    sound.borrow_mut().insert(entry.fingerprint, bytes.to_vec());
                }
            }
            verdicts
        });
        sound.into_inner()
    }
}
