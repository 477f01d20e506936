//! The occupancy of containers by cells: sums, and differences of sums.

use dedupfs_store::ContainerId;

use crate::cell::Cell;
use crate::map::ContainerMap;

/// The occupancy of one container, or of all of them, by committed cells.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Occupied {
    /// Cells that name the container.
    pub cells: u64,
    /// The part of them with references.
    pub live_cells: u64,
    /// Uncompressed bytes of all cells.
    pub bytes: u64,
    /// Uncompressed bytes of the cells with references.
    pub live_bytes: u64,
}

impl Occupied {
    /// Cells without references.
    pub const fn dead_cells(&self) -> u64 {
        self.cells.saturating_sub(self.live_cells)
    }

    /// Bytes of cells without references.
    pub const fn dead_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.live_bytes)
    }

    pub(crate) fn of(cell: Cell) -> Self {
        let (bytes, live) = (u64::from(cell.location.len_bytes()), u64::from(cell.references > 0));
        Self { cells: 1, live_cells: live, bytes, live_bytes: live * bytes }
    }

    // A difference may be below zero. Numbers wrap, so it can still be added.

    pub(crate) fn add(&mut self, other: Self) {
        self.cells = self.cells.wrapping_add(other.cells);
        self.live_cells = self.live_cells.wrapping_add(other.live_cells);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
    }

    pub(crate) fn negated(self) -> Self {
        self.map(u64::wrapping_neg)
    }

    /// Replaces numbers below zero by 0.
    pub(crate) fn clamped(self) -> Self {
        self.map(|number| if number > u64::MAX / 2 { 0 } else { number })
    }

    fn map(self, change: impl Fn(u64) -> u64) -> Self {
        let [cells, live_cells, bytes, live_bytes] =
            [self.cells, self.live_cells, self.bytes, self.live_bytes].map(change);
        Self { cells, live_cells, bytes, live_bytes }
    }
}

/// The occupancy of each container by some cells, or by changes of cells. [`ContainerId::NONE`] is an ordinary
/// container here.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tally {
    containers: ContainerMap<Occupied>,
}

impl Tally {
    pub(crate) fn of(cells: impl Iterator<Item = Cell>) -> Self {
        let mut tally = Self::default();
        cells.for_each(|cell| tally.change(None, Some(cell)));
        tally
    }

    pub(crate) fn change(&mut self, before: Option<Cell>, after: Option<Cell>) {
        if let (Some(before), Some(after)) = (before, after)
            && before.location.container() == after.location.container()
        {
            // Most changes are of this kind, and most of them have no effect here.
            let mut difference = Occupied::of(before).negated();
            difference.add(Occupied::of(after));
            self.add(after.location.container(), difference);
            return;
        }
        if let Some(before) = before {
            self.add(before.location.container(), Occupied::of(before).negated());
        }
        if let Some(after) = after {
            self.add(after.location.container(), Occupied::of(after));
        }
    }

    pub(crate) fn add(&mut self, container: ContainerId, difference: Occupied) {
        if difference != Occupied::default() {
            self.containers.entry(container).add(difference);
        }
    }

    /// All containers that are not empty, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ContainerId, Occupied)> + '_ {
        self.containers.iter().copied().filter(|(_, occupied)| *occupied != Occupied::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;
    use crate::tests::cell;

    #[test]
    fn changes_add_up_in_any_order() {
        let steps = [
            (None, Some(cell(1, 0))),
            (Some(cell(1, 0)), Some(cell(1, 2))),
            (Some(cell(1, 2)), Some(cell(1, 1))),
            (Some(cell(1, 1)), Some(cell(2, 1))),
            (None, Some(cell(2, 0))),
            (None, Some(Cell { location: Location::quarantined(70), references: 1 })),
            (None, Some(cell(3, 4))),
            (Some(cell(3, 4)), None),
        ];
        let expected = [
            (ContainerId::NONE, Occupied { cells: 1, live_cells: 1, bytes: 70, live_bytes: 70 }),
            (ContainerId(2), Occupied { cells: 2, live_cells: 1, bytes: 2004, live_bytes: 1002 }),
        ];
        for backwards in [false, true] {
            let mut tally = Tally::default();
            for number in 0..steps.len() {
                let (before, after) = steps[if backwards { steps.len() - 1 - number } else { number }];
                tally.change(before, after);
            }
            let mut found: Vec<_> = tally.iter().collect();
            found.sort_unstable_by_key(|(container, _)| *container);
            assert_eq!(found, expected);
        }
        let dead = expected[1].1;
        assert_eq!((dead.dead_cells(), dead.dead_bytes()), (1, 1002));
    }

    #[test]
    fn what_is_below_zero_shows_as_nothing() {
        let mut tally = Tally::default();
        tally.change(Some(cell(5, 1)), None);
        let (_, below) = tally.iter().next().unwrap();
        assert_eq!(below.clamped(), Occupied::default());
        assert_eq!(below.negated().clamped(), Occupied::of(cell(5, 1)));
    }
}
