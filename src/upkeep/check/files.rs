//! The temporary files of a check: how many ranges of fingerprints have their facts there together.

use std::path::Path;

use dedupfs_spool::Spooled;

use super::facts::{Need, Place};
use super::spools::check_place;
use super::{CheckReport, read_again};

/// The reason why a place does not take files.
pub(super) const NO_ROOM: &str = "its files may take half of the room on their disk at most";

pub(super) struct Files<'f> {
    /// Their directory, if they are allowed.
    pub(super) scratch: Option<&'f Path>,
    /// Tells whether others have room beside so many bytes.
    pub(super) has_room: &'f dyn Fn(u64) -> bool,
    /// Ranges whose facts are kept together. A range alone needs no file.
    pub(super) ranges: usize,
    /// The first reason why these are not all.
    failure: Option<String>,
}

impl<'f> Files<'f> {
    /// Files for as many of `count` ranges of `cells` as `fit`, by their bytes.
    pub(super) fn of(
        scratch: Option<&'f Path>,
        (has_room, fit): (&'f dyn Fn(u64) -> bool, &dyn Fn(u64) -> bool),
        (cells, count): (u64, usize),
    ) -> Self {
        let mut files = Self { scratch, has_room, ranges: 1, failure: None };
        match scratch.map(check_place) {
            None => {}
            Some(Err(why)) => files.failure = Some(why),
            Some(Ok(())) => {
                // A need and a place for each cell, and a quarter more.
                let range_bytes = cells / count.max(1) as u64 * (Need::BYTES + Place::BYTES) as u64 / 4 * 5;
                let halves =
                    std::iter::successors(Some(count), |ranges| Some(ranges.div_ceil(2)).filter(|_| *ranges > 1));
                files.ranges = { halves }.find(|ranges| fit(range_bytes * *ranges as u64)).unwrap_or(1);
            }
        }
        files
    }

    /// Keeps fewer ranges together from now on.
    pub(super) fn fail(&mut self, why: String, ranges: usize) {
        self.failure.get_or_insert(why);
        self.ranges = ranges;
    }

    /// Tells why the pool was read several times.
    pub(super) fn tell(self, readings: usize, report: &mut CheckReport) {
        if self.scratch.is_some() && readings > 1 {
            let why = self.failure.unwrap_or_else(|| NO_ROOM.to_owned());
            report.note(read_again("the pool", readings as u64, &why));
        }
    }
}
