//! Gathers the facts: the needs of roots and nodes, and the places of containers' tables.

use std::collections::HashSet;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::AnyView;
use dedupfs_index::Moment;
use dedupfs_namespace::CommittedView;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::facts::{Facts, Need, Place};
use super::{CheckReport, Checker};
use crate::durability::commit::CellsView;
use crate::progress::Progress;

/// Nodes that are read together, in the order of their containers: 40 bytes for each.
const NODES_AT_ONCE: usize = if cfg!(test) { 50 } else { 1 << 18 };

/// The results of reading the pool, but for its facts and findings.
#[derive(Clone, Default)]
pub(super) struct Gathered {
    /// It was read as a whole before. What is found again is not told again.
    is_again: bool,
    pub(super) tree_nodes: u64,
    /// Some nodes count children that nobody knows.
    pub(super) is_surplus_known: bool,
    /// Nodes that cannot be read.
    pub(super) unreadable: HashSet<Fingerprint>,
}

impl Checker<'_> {
    /// Reads the roots and nodes of a view, and all tables, once. Tables may have more by now: nothing leaves them while a check runs.
    ///
    /// # Errors
    /// The namespace or the index of nodes cannot be read, `facts` cannot keep a fact, or the check is to end.
    pub(super) fn gather(
        &self,
        (names, cells): (CommittedView, &CellsView),
        facts: &mut dyn Facts,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
        pass: &str,
    ) -> Result<()> {
        let once = u64::from(!gathered.is_again);
        progress.start(&format!("counting references{pass}"), cells.nodes.len());
        names.for_each_inode(&mut |inode| {
            report.inodes += once;
            inode.root.reference().iter().try_for_each(|reference| facts.need(Need::from(reference)))
        })?;
        drop(names);
        self.gather_of_nodes(&cells.nodes, facts, (report, gathered), progress)?;
        progress.finish();
        self.gather_places(facts, (report, gathered), progress, pass)?;
        gathered.is_again = true;
        Ok(())
    }

    /// Gathers what the nodes of the index need. Every one counts its children, even one without references.
    fn gather_of_nodes(
        &self,
        nodes: &Moment,
        facts: &mut dyn Facts,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
    ) -> Result<()> {
        let (mut waiting, mut ended) = (Vec::new(), Ok(()));
        nodes.for_each(&mut |fingerprint, cell| {
            // A damaged copy still counts its children, but they are unknown.
            gathered.is_surplus_known |= cell.location.is_quarantined();
            // A lost node without a damaged copy counts nothing; the comparison reports it.
            if !cell.location.is_lost() && ended.is_ok() {
                waiting.push((cell.location.container(), fingerprint));
            }
            if waiting.len() >= NODES_AT_ONCE {
                ended = self.read_nodes(&mut waiting, facts, (report, gathered), progress);
            }
            Ok(())
        })?;
        ended?;
        self.read_nodes(&mut waiting, facts, (report, gathered), progress)
    }

    /// Gathers what these nodes need, and forgets them.
    fn read_nodes(
        &self,
        waiting: &mut Vec<(ContainerId, Fingerprint)>,
        facts: &mut dyn Facts,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
    ) -> Result<()> {
        let once = u64::from(!gathered.is_again);
        waiting.sort_unstable();
        for (container, fingerprint) in waiting.drain(..) {
            self.check_ended()?;
            progress.advance(1);
            report.nodes += once;
            match self.core.dedup.nodes().node_of(&fingerprint, container) {
                Ok(view) => {
                    gathered.tree_nodes += if matches!(view, AnyView::Tree(_)) { once } else { 0 };
                    view.references().iter().try_for_each(|reference| facts.need(Need::from(reference)))?;
                }
                // Also one that could be read before.
                Err(error) => {
                    gathered.is_surplus_known = true;
                    if gathered.unreadable.insert(fingerprint) {
                        report.bad_copies += 1;
                        report.add(format!("recipe node {fingerprint} in container {container}: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn gather_places(
        &self,
        facts: &mut dyn Facts,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
        pass: &str,
    ) -> Result<()> {
        let once = u64::from(!gathered.is_again);
        for store in [&self.core.stores.data, &self.core.stores.recipes] {
            let records = store.containers();
            progress.start(&format!("checking containers{pass}"), records.len() as u64);
            for record in records {
                self.check_ended()?;
                progress.advance(1);
                report.containers += once;
                let table = match store.table(record.id) {
                    Ok(Some(table)) => table,
                    Ok(None) => continue,
                    Err(_) if gathered.is_again => continue,
                    Err(error) => {
                        report.add(format!("container {}: {error}", record.id));
                        continue;
                    }
                };
                if record.kind == ContainerKind::Data {
                    report.chunks += once * table.entries.len() as u64;
                }
                let place = |entry| Place { kind: record.kind, container: record.id, entry };
                table.entries.iter().try_for_each(|entry| facts.place(place(*entry)))?;
            }
            progress.finish();
        }
        Ok(())
    }

    pub(super) fn check_ended(&self) -> Result<()> {
        if (self.is_ended)() { Err(EngineError::Ended("the check")) } else { Ok(()) }
    }
}
