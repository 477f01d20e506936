//! The cells of both indexes, compared with the facts: how often roots and nodes need them, and where containers have them.
//!
//! Facts and cells are those of one row, so that writers may go on meanwhile.
//!
//! The cells take more memory than there is, so they are compared by ranges of fingerprints: one range in memory at a time. Facts are kept in
//! spools until their range comes: those of all ranges, or of as many as have room together. Then the pool is read once for each such group of
//! ranges, and without any room once for each range.

use std::ops::Range;
use std::path::Path;

use dedupfs_base::Result;
use dedupfs_index::Prefixes;

use super::facts::Marks;
use super::files::Files;
use super::gather::Gathered;
use super::marked::{MARK_BYTES, Marked};
use super::spools::{self, Spools};
use super::{CheckReport, Checker};
use crate::durability::commit::{CellsView, CountedView};
use crate::progress::Progress;
use crate::upkeep::affected::Lost;

/// Memory for the buffers of spools at most. They are gone before cells come into memory.
const BUFFERS_BYTES_MAX: u64 = 64 << 20;

/// Facts of some ranges, and the cells at the same moment.
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
        let scratch = scratch.filter(|_| count > 1);
        let has_room =
            |bytes| scratch.is_some_and(|scratch| spools::leaves_half(scratch, bytes)) && (self.has_room)(bytes);
        let fit = |bytes| scratch.is_some_and(|scratch| self.fits(scratch, bytes));
        let mut files = Files::of(scratch, (&has_room, &fit), (view.cells.len(), ranges.len()));
        // Each reading has a view of its own: none is held for long.
        let mut unused = Some(view);
        let (mut gathered, mut sums, mut readings) = (Gathered::default(), [Sums::default(), Sums::default()], 0);
        let mut next = 0;
        while let Some(range) = ranges.get(next) {
            self.check_ended()?;
            let view = unused.take().map_or_else(|| self.next_view(), Ok)?;
            let pass = pass_of(readings, readings + (ranges.len() - next).div_ceil(files.ranges));
            readings += 1;
            let together = next..ranges.len().min(next + files.ranges);
            if together.len() == 1 {
                let mut marks = Marks::load(&view.cells, *range, count)?;
                self.gather((view.names, &view.cells), &mut marks, (report, &mut gathered), progress, &pass)?;
                compare_both(&marks, gathered.is_surplus_known, &mut sums, report);
                next += 1;
                continue;
            }
            let some = (ranges.as_slice(), together);
            let Some(kept) = self.spool(&mut files, some, view, (report, &mut gathered), progress, &pass)? else {
                continue;
            };
            for range in &ranges[kept.spools.numbers()] {
                self.check_ended()?;
                progress.start(&format!("comparing with the indexes{}", pass_of(next, ranges.len())), 0);
                let mut marks = Marks::load(&kept.cells, *range, count)?;
                let outcome = kept.spools.mark(next, &mut marks);
                progress.finish();
                if let Err(error) = outcome {
                    files.fail(error.to_string(), 1);
                    break;
                }
                compare_both(&marks, gathered.is_surplus_known, &mut sums, report);
                next += 1;
            }
        }
        files.tell(readings, report);
        for (what, sums) in ["recipe node", "chunk"].iter().zip(sums) {
            sums.tell(what, report);
        }
        let tree_nodes = gathered.tree_nodes;
        if tree_nodes > 0 && !self.core.namespace.has_versions() {
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
        self.core.committer.counted_view().or_else(|error| self.check_ended().and(Err(error)))
    }

    /// The ranges whose cells fit into memory, beside the view.
    fn ranges(&self, cells: &CellsView) -> Vec<Prefixes> {
        let free_bytes = self.memory_bytes.saturating_sub(cells.memory_bytes()).max(self.memory_bytes / 4);
        // Few in tests, so that small pools have several ranges.
        let at_once = if cfg!(test) { 200 } else { (free_bytes / MARK_BYTES).max(1) };
        Prefixes::split(u32::try_from(cells.len().div_ceil(at_once)).unwrap_or(u32::MAX)).collect()
    }

    /// Gathers the facts of ranges that lie together into spools. `None`: they did not fit there, and nothing was gathered; fewer are to be
    /// kept the next time.
    fn spool<'r>(
        &self,
        files: &mut Files<'r>,
        (ranges, together): (&'r [Prefixes], Range<usize>),
        CountedView { names, cells }: CountedView,
        (report, gathered): (&mut CheckReport, &mut Gathered),
        progress: &dyn Progress,
        pass: &str,
    ) -> Result<Option<Kept<'r>>> {
        let Some(scratch) = files.scratch else { return Ok(None) };
        let buffers_bytes = self.memory_bytes.min(BUFFERS_BYTES_MAX) as usize;
        let kept = together.len();
        let mut spools = match Spools::new(scratch, (ranges, together), buffers_bytes, files.has_room) {
            Ok(spools) => spools,
            Err(why) => {
                files.fail(why, 1);
                return Ok(None);
            }
        };
        let before = (report.clone(), gathered.clone());
        let outcome = self.gather((names, &cells), &mut spools, (report, gathered), progress, pass);
        let outcome = outcome.and_then(|()| spools.finish());
        match spools.failure() {
            None => outcome.map(|()| Some(Kept { spools, cells })),
            Some(why) => {
                (*report, *gathered) = before;
                files.fail(why, kept.div_ceil(2));
                Ok(None)
            }
        }
    }
}

/// Names a pass of several.
fn pass_of(before: usize, all: usize) -> String {
    if all > 1 { format!(", pass {} of {all}", before + 1) } else { String::new() }
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

fn compare_both(marks: &Marks, is_surplus_known: bool, sums: &mut [Sums; 2], report: &mut CheckReport) {
    for ((what, marked), sums) in [("recipe node", &marks.nodes), ("chunk", &marks.chunks)].iter().zip(sums) {
        compare(what, marked, is_surplus_known, sums, report);
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
