//! Checking that a guide leads to all cells of its tankers.

use std::sync::Arc;

use dedupfs_store::{Result, StoreError};

use super::file::Place;
use super::{GONE, Guided, Key};
use crate::prefixes::Prefixes;
use crate::sealed::SealedTanker;

/// Pages of a guide that are compared at a time at most: two million cells. Few in tests, so that a bucket has several ranges.
const PAGES_AT_ONCE: u32 = if cfg!(test) { 8 } else { 1 << 10 };

impl Guided {
    /// Checks that each cell of its tankers has its place in the guide. A damaged guide is to be made anew, which is no finding.
    ///
    /// Cost: the cells of its tankers and the guide are read by ranges of fingerprints: once, or several times if the buckets of all tankers
    /// together are larger than a range. Memory: 32 bytes for each cell of a range, 64 MiB for two million.
    ///
    /// # Errors
    /// A cell has no place; a tanker cannot be read.
    pub(crate) fn check_places(&self, tankers: &[Arc<SealedTanker>]) -> Result<()> {
        let file = &self.guide.file;
        let positions = (0_u16..).zip(&self.positions).filter(|(_, position)| **position != GONE);
        let led_to = positions.filter_map(|(number, position)| Some((number, tankers.get(*position as usize)?)));
        let led_to: Vec<(u16, &Arc<SealedTanker>)> = led_to.collect();
        let buckets = led_to.iter().map(|(_, tanker)| tanker.buckets()).min().unwrap_or(1);
        let ranges = buckets.max(file.pages() / PAGES_AT_ONCE).min(file.pages());
        let (mut needed, mut found) = (Vec::<Place>::new(), Vec::<Place>::new());
        for range in 0..ranges {
            let prefixes = Prefixes::part(range, ranges);
            needed.clear();
            for (number, tanker) in &led_to {
                tanker.for_each_prefix(prefixes, &mut |prefix| needed.push((Key::of_prefix(prefix), *number)))?;
            }
            found.clear();
            if let Err(error) = file.for_each_place(prefixes, &mut |place| found.push(place)) {
                self.guide.note_damage(&error);
                return Ok(());
            }
            needed.sort_unstable();
            found.sort_unstable();
            let mut rest = found.iter().peekable();
            for place in &needed {
                while rest.next_if(|found| *found < place).is_some() {}
                if rest.peek() != Some(&place) {
                    let what = format!("guide {} to {} tankers", self.guide.id(), led_to.len());
                    return Err(StoreError::corrupt(what, format!("a place for {place:?}"), "none"));
                }
            }
        }
        Ok(())
    }
}
