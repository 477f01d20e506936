//! The cells of both indexes, compared with the facts: how often roots and nodes need them, and where containers have them.
//!
//! Facts and cells are those of one row, so that writers may go on meanwhile.
//!
//! The cells take more memory than there is, so they are compared by ranges of fingerprints: one range in memory at a time. Facts are kept in
//! spools until their range comes. If there is no room for spools, the pool is read again for each range.

use std::path::Path;

use dedupfs_base::Result;
use dedupfs_index::Prefixes;

use super::facts::Marks;
use super::gather::Gathered;
use super::marked::{MARK_BYTES, Marked};
use super::spools::{self, Spools};
use super::{CheckReport, Checker};
use crate::durability::commit::{CellsView, CountedView};
use crate::progress::Progress;
use crate::upkeep::affected::Lost;

/// Memory for the buffers of spools at most. They are gone before cells come into memory.
const BUFFERS_BYTES_MAX: u64 = 64 << 20;

/// Facts of all ranges, and the cells at the same moment.
struct Kept<'r> {
    spools: Spools<'r>,
    cells: CellsView,
}

/// Numbers of all ranges together, for one index.
#[derive(Default)]
struct Sums {
    /// Counts above the marks, while some unreadable nodes still count their children.
    surplus: u64,
    stored: u64,
    /// Stored cells that no container has where they say.
    misplaced: u64,
}

impl Checker<'_> {
    pub(super) fn check_cells(
        &self,
        scratch: Option<&Path>,
        report: &mut CheckReport,
        lost: &mut Lost,
        progress: &dyn Progress,
    ) -> Result<()> {
        let view = self.next_view()?;
        let ranges = self.ranges(&view.cells);
        let count = ranges.len() as u32;
        let mut gathered = Gathered::default();
        let scratch = scratch.filter(|_| count > 1);
        let has_room =
            |bytes| scratch.is_some_and(|scratch| spools::leaves_half(scratch, bytes)) && (self.has_room)(bytes);
        let (mut kept, mut unused) = match scratch {
            Some(at) => (self.spool((at, &has_room), &ranges, view, (report, &mut gathered), progress)?, None),
            None => (None, Some(view)),
        };
        let mut sums = [Sums::default(), Sums::default()];
        for (range, number) in ranges.iter().zip(1..) {
            self.check_ended()?;
            let mut marks = None;
            let pass = if count > 1 { format!(", pass {number} of {count}") } else { String::new() };
            if let Some(Kept { spools, cells }) = &kept {
                progress.start(&format!("comparing with the indexes{pass}"), 0);
                let marked = marks.insert(Marks::load(cells, *range, count)?);
                if let Err(error) = spools.mark(number - 1, marked) {
                    note_failure(report, &error.to_string());
                    (kept, marks) = (None, None);
                }
                progress.finish();
            }
            let marks = match marks {
                Some(marks) => marks,
                None => {
                    // Each pass has a view of its own: none is held for long.
                    let view = unused.take().map_or_else(|| self.next_view(), Ok)?;
                    let mut marks = Marks::load(&view.cells, *range, count)?;
                    self.gather((view.names, &view.cells), &mut marks, (report, &mut gathered), progress, &pass)?;
                    marks
                }
            };
            for ((what, marked), sums) in
                [("recipe node", &marks.nodes), ("chunk", &marks.chunks)].iter().zip(&mut sums)
            {
                compare(what, marked, gathered.is_surplus_known, sums, report);
            }
        }
        for (what, sums) in ["recipe node", "chunk"].iter().zip(sums) {
            sums.tell(what, report);
        }
        let tree_nodes = gathered.tree_nodes;
        if tree_nodes > 0 && !self.namespace.has_versions() {
            report.add(format!(
                "{tree_nodes} tree nodes lie in a pool that does not say that it has versions, and an older release would free what they \
                 name: mount it with this release, and run `dedupfs series set` on a directory"
            ));
        }
        lost.nodes.extend(gathered.unreadable);
        Ok(())
    }

    fn next_view(&self) -> Result<CountedView> {
        // No round takes place any more when the pool is closed.
        (self.counted_view)().or_else(|error| self.check_ended().and(Err(error)))
    }

    /// The ranges whose cells fit into memory, beside the view.
    fn ranges(&self, cells: &CellsView) -> Vec<Prefixes> {
        let free_bytes = self.memory_bytes.saturating_sub(cells.memory_bytes()).max(self.memory_bytes / 4);
        // Few in tests, so that small pools have several ranges.
        let at_once = if cfg!(test) { 200 } else { (free_bytes / MARK_BYTES).max(1) };
        Prefixes::split(u32::try_from(cells.len().div_ceil(at_once)).unwrap_or(u32::MAX)).collect()
    }

    /// Gathers all facts into spools in the directory. `None`: they did not fit there, and nothing was gathered.
    fn spool<'r>(
        &self,
        (scratch, has_room): (&Path, &'r dyn Fn(u64) -> bool),
        ranges: &'r [Prefixes],
        CountedView { names, cells }: CountedView,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
    ) -> Result<Option<Kept<'r>>> {
        let buffers_bytes = self.memory_bytes.min(BUFFERS_BYTES_MAX) as usize;
        let mut spools = match Spools::new(scratch, ranges, buffers_bytes, has_room) {
            Ok(spools) => spools,
            Err(why) => {
                note_failure(report, &why);
                return Ok(None);
            }
        };
        let before = report.clone();
        let outcome = self.gather((names, &cells), &mut spools, (report, gathered), progress, "");
        let outcome = outcome.and_then(|()| spools.finish());
        match spools.failure() {
            None => outcome.map(|()| Some(Kept { spools, cells })),
            Some(why) => {
                (*report, *gathered) = (before, Gathered::default());
                note_failure(report, &why);
                Ok(None)
            }
        }
    }
}

fn note_failure(report: &mut CheckReport, why: &str) {
    report.note(format!(
        "the check kept nothing on disk and read the pool several times ({why}): name another place with --scratch DIR, or give it more --memory"
    ));
}

impl Sums {
    fn tell(&self, what: &str, report: &mut CheckReport) {
        if self.surplus > 0 {
            report.note(format!("{} {what} counts include those of recipe nodes that cannot be read", self.surplus));
        }
        if self.misplaced > 0 {
            report.needs_rebuild = true;
            let (misplaced, stored) = (self.misplaced, self.stored);
            report.add(format!("{misplaced} of {stored} {what} cells name a container that does not hold them"));
        }
    }
}

/// Compares the cells of an index with their marks. With `is_surplus_known` some unreadable nodes still count their children, so counts
/// above the marks are no error: their number is added up.
fn compare(what: &str, marked: &Marked, is_surplus_known: bool, sums: &mut Sums, report: &mut CheckReport) {
    for cell in marked.cells() {
        let (fingerprint, needs) = (cell.fingerprint, cell.needs);
        sums.stored += u64::from(!cell.is_lost());
        sums.misplaced += u64::from(!cell.is_lost() && !cell.is_placed);
        if cell.references > needs && is_surplus_known {
            sums.surplus += 1;
        } else if cell.references != needs {
            report.needs_rebuild = true;
            report.add_to(&format!("{what}s whose references are counted differently by index and marking"), || {
                format!("{what} {fingerprint}: the index counts {}, marking finds {needs}", cell.references)
            });
        }
        if cell.is_lost() && needs > 0 {
            report.add_to(
                &format!("{what}s that are lost and needed: backing the same data up again heals them"),
                || {
                    format!(
                        "{what} {fingerprint} is lost and {needs} times needed: backing the same data up again heals it"
                    )
                },
            );
        }
    }
    for fingerprint in marked.doubled() {
        report.needs_rebuild = true;
        report.add_to(&format!("{what}s with several cells"), || {
            format!("{what} {fingerprint} has several cells in the index")
        });
    }
    report.needs_rebuild |= !marked.unknown().is_empty();
    for (fingerprint, needs) in marked.unknown() {
        report.add_to(&format!("{what}s that are referred to, but the index does not have them"), || {
            format!("{what} {fingerprint} is referred to {needs} times, but the index does not have it")
        });
    }
}
