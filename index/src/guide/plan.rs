//! Which tankers and guides become the next guide.
//!
//! Tankers become guided in groups; the newest group stays with the filter array, which finds recent chunks without a read more.
//! A new guide takes those in that are not far larger, so guides grow by a factor from one to the next: there are few of them, and a cell
//! is written again only as often as the pool grows by that factor (as in an LSM-tree; O'Neil et al., 1996).

/// Tankers that become guided together, and tankers that are left to the array. Few in tests, so that they get there.
pub(super) const GROUP: usize = if cfg!(test) { 2 } else { 4 };
/// A guide is taken in by newer ones that have at least its cells divided by this.
const RATIO: u64 = 4;

/// A guide as the plan sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Cells that it was made for.
    pub(super) cells: u64,
    /// Cells of its tankers that are still there.
    pub(super) living: u64,
}

/// The next guide.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Plan {
    /// Tankers that no guide leads to, by their numbers.
    pub(super) tankers: Vec<usize>,
    /// Guides that it takes the place of, as far as their tankers are still there.
    pub(super) taken: Vec<usize>,
    /// Guides most of whose cells are gone: it is made from their tankers.
    pub(super) renewed: Vec<usize>,
}

/// Makes the plan. `unguided`: the cells of tankers without a guide, oldest first, of which at least `group` are left to the array. `None`:
/// nothing is to be done.
pub(super) fn plan(unguided: &[u64], guides: &[Size], group: usize) -> Option<Plan> {
    let is_spent = |size: &Size| size.living < size.cells / 2;
    let renewed: Vec<usize> = (0..).zip(guides).filter(|(_, size)| is_spent(size)).map(|(number, _)| number).collect();
    let count = if unguided.len() >= 2 * group { unguided.len() - group } else { 0 };
    if count == 0 && renewed.is_empty() {
        return None;
    }
    let living = |number: &usize| guides.get(*number).map_or(0, |size| size.living);
    let mut cells = unguided.iter().take(count).sum::<u64>() + renewed.iter().map(living).sum::<u64>();
    let mut others: Vec<(usize, &Size)> = (0..).zip(guides).filter(|(_, size)| !is_spent(size)).collect();
    others.sort_by_key(|(_, size)| size.cells);
    let mut taken = Vec::new();
    for (number, size) in others {
        if size.cells > RATIO * cells {
            break;
        }
        cells += size.cells;
        taken.push(number);
    }
    Some(Plan { tankers: (0..count).collect(), taken, renewed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes guides as tankers come; returns the most guides that there were, and how often each cell was written.
    fn grow(tankers: u64) -> (usize, f64) {
        let (mut unguided, mut guides) = (0_usize, Vec::<Size>::new());
        let (mut most, mut written) = (0, 0);
        for _ in 0..tankers {
            unguided += 1;
            let Some(plan) = plan(&vec![1; unguided], &guides, 4) else { continue };
            let cells = plan.tankers.len() as u64 + plan.taken.iter().map(|number| guides[*number].cells).sum::<u64>();
            unguided -= plan.tankers.len();
            let mut number = 0;
            guides.retain(|_| {
                number += 1;
                !plan.taken.contains(&(number - 1))
            });
            guides.push(Size { cells, living: cells });
            most = most.max(guides.len());
            written += cells;
        }
        (most, written as f64 / tankers as f64)
    }

    #[test]
    fn there_are_few_guides_and_few_cells_are_written_again() {
        for (tankers, guides, times) in [(16, 2, 2.5), (128, 3, 6.0), (1280, 5, 9.0), (12_800, 7, 13.0)] {
            let (most, written) = grow(tankers);
            assert!(most <= guides && written <= times, "{tankers} tankers: {most} guides, written {written} times");
        }
    }

    #[test]
    fn the_newest_tankers_stay_with_the_array() {
        assert_eq!(plan(&[1; 15], &[], 8), None);
        let made = plan(&[1; 16], &[Size { cells: 33, living: 33 }], 8).expect("is due");
        assert_eq!(made, Plan { tankers: (0..8).collect(), ..Plan::default() });
        assert_eq!(plan(&[1; 16], &[Size { cells: 32, living: 17 }], 8).expect("is due").taken, [0]);
    }

    #[test]
    fn a_guide_to_what_is_gone_is_renewed() {
        let sizes = [Size { cells: 10, living: 4 }, Size { cells: 100, living: 100 }, Size { cells: 16, living: 16 }];
        assert_eq!(plan(&[], &sizes, 8), Some(Plan { renewed: vec![0], taken: vec![2], ..Plan::default() }));
    }
}
