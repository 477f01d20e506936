//! Records by position: spooled by ranges of the numbers of their asks, and read again in order.

use crate::{Error, MemoryPlan, Place, Result};
use dedupfs_spool::Spool;

/// Numbers of a range at most: their product with the number of partitions fits into 64 bits.
const COUNT_MAX: u64 = 1 << 51;

/// A spool of all records with numbers of one range.
pub(crate) struct Places {
    spool: Spool<Place>,
    first: u64,
    count: u64,
    next: usize,
}

impl Places {
    /// Makes an empty one for as many numbers, from the first on.
    ///
    /// # Errors
    /// There are more than any disk has; or those of spools.
    pub(crate) fn new(plan: &MemoryPlan, first: u64, count: u64) -> Result<Self> {
        if count > COUNT_MAX {
            return Err(Error::Refused(format!("{count} asks are too many for a round; back up fewer disks at once")));
        }
        let partitions = plan.places_partitions(count);
        let spool = Spool::new(&plan.directory, partitions, plan.places_buffers_bytes())?;
        Ok(Self { spool, first, count, next: 0 })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Its number is not in the range; or those of spools.
    pub(crate) fn push(&mut self, place: &Place) -> Result<()> {
        let of_range = place.number.checked_sub(self.first).filter(|number| *number < self.count);
        let number = of_range.ok_or_else(|| Error::Broken(format!("ask {} was never made", place.number)))?;
        let partition = number * self.spool.partitions() as u64 / self.count;
        Ok(self.spool.push(partition as usize, place)?)
    }

    /// First number behind the partitions before this one.
    fn begin_of(&self, partition: usize) -> u64 {
        self.first + (partition as u64 * self.count).div_ceil(self.spool.partitions() as u64)
    }

    /// Bytes written to disk.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.spool.written_bytes()
    }

    /// Reads them in order, once all are there.
    ///
    /// # Errors
    /// Those of spools.
    pub(crate) fn into_order(mut self, plan: MemoryPlan) -> Result<InOrder> {
        self.spool.finish()?;
        Ok(InOrder { plan, levels: vec![self], ready: Vec::new() })
    }
}

/// Records in the order of their numbers.
pub(crate) struct InOrder {
    plan: MemoryPlan,
    /// A partition that does not fit into memory is spooled again in smaller ones, one level deeper.
    levels: Vec<Places>,
    /// Records in memory, the next one last.
    ready: Vec<Place>,
}

impl InOrder {
    /// Gives the next record. Each number of the range comes once.
    ///
    /// # Errors
    /// A number is missing or was there twice; or those of spools.
    pub(crate) fn next(&mut self) -> Result<Option<Place>> {
        loop {
            if let Some(place) = self.ready.pop() {
                return Ok(Some(place));
            }
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let partition = level.next;
            if partition == level.spool.partitions() {
                self.levels.pop();
                continue;
            }
            level.next += 1;
            let (begin, end) = (level.begin_of(partition), level.begin_of(partition + 1));
            let records = level.spool.records(partition);
            if records != end - begin {
                return Err(Error::Broken(format!("asks {begin} to {end} got {records} verdicts")));
            }
            let mut blocks = level.spool.blocks(partition);
            if records > self.plan.places_at_once() as u64 {
                let mut deeper = Places::new(&self.plan, begin, records)?;
                let mut block = Vec::new();
                while level.spool.next_into(&mut blocks, &mut block)? {
                    block.drain(..).try_for_each(|place| deeper.push(&place))?;
                }
                deeper.spool.finish()?;
                self.levels.push(deeper);
                continue;
            }
            self.ready.reserve_exact(records as usize);
            while level.spool.next_into(&mut blocks, &mut self.ready)? {}
            self.ready.sort_unstable_by_key(|place| std::cmp::Reverse(place.number));
            let numbers = self.ready.iter().rev().map(|place| place.number);
            if !numbers.eq(begin..end) {
                return Err(Error::Broken(format!("an ask of {begin} to {end} got two verdicts")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record, Verdict};

    fn place(number: u64) -> Place {
        let record = Record { at: number, len_bytes: 1, fingerprint: [0; 32], verdict: Verdict::Repeated };
        Place { number, disk: 0, record }
    }

    fn plan() -> MemoryPlan {
        MemoryPlan { directory: std::env::temp_dir(), expected_asks: 0, memory_bytes: 0 }
    }

    fn in_order(first: u64, numbers: &[u64], count: u64) -> Result<Vec<u64>> {
        let mut places = Places::new(&plan(), first, count)?;
        numbers.iter().try_for_each(|number| places.push(&place(*number)))?;
        let mut order = places.into_order(plan())?;
        let mut seen = Vec::new();
        while let Some(place) = order.next()? {
            seen.push(place.number);
        }
        Ok(seen)
    }

    #[test]
    fn records_come_in_the_order_of_their_numbers_even_if_they_need_two_levels() {
        assert!(
            plan().places_at_once() * plan().places_partitions(u64::MAX) < 5000,
            "this is too small for two levels"
        );
        for (first, count) in [(0, 0), (0, 1), (7, 3), (1 << 40, 1000), (5, 5000)] {
            let expected: Vec<_> = (first..first + count).collect();
            // 7919 is prime: each number comes once.
            let mixed: Vec<_> = (0..count).map(|number| first + number * 7919 % count.max(1)).collect();
            assert_eq!(in_order(first, &mixed, count).unwrap(), expected);
        }
    }

    #[test]
    fn a_number_that_is_missing_or_comes_twice_or_is_foreign_is_found() {
        assert!(in_order(0, &[0, 2], 3).is_err());
        assert!(in_order(0, &[0, 1, 1], 3).is_err());
        assert!(in_order(0, &[0, 1, 2, 2], 3).is_err());
        assert!(in_order(0, &[3], 3).is_err());
        assert!(in_order(5, &[4], 3).is_err());
    }
}
