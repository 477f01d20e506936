//! A round on one machine.

use crate::compare::{Parts, decide, first_bits, gather, share};
use crate::places::Places;
use crate::reading::Reading;
use crate::{Ask, Disks, Error, MemoryPlan, Numbered, Pool, Record, Result, Tally, Verdict};
use dedupfs_spool::Spool;

/// Records between two looks whether to go on.
const RECORDS_BETWEEN_LOOKS: u64 = 4096;

/// Detects the duplicates of one machine's disks, and lands each record in the order of (disk, offset).
///
/// `land` reads the bytes of new chunks itself. `watch` is asked now and then whether to go on.
///
/// # Errors
/// Those of the disks, the pool, the spools and `land`; [`Error::Ended`] if `watch` says no. All that has landed has landed.
pub fn alone(
    disks: &mut dyn Disks,
    pool: &mut dyn Pool,
    plan: &MemoryPlan,
    land: &mut dyn FnMut(u32, &Record) -> Result<()>,
    watch: &dyn Fn() -> bool,
) -> Result<Tally> {
    let go_on = || if watch() { Ok(()) } else { Err(Error::Ended) };
    let mut tally = Tally::default();
    let asks = spool_asks(disks, plan, &go_on, &mut tally)?;
    let places = compare(&asks, pool, plan, &go_on, &mut tally)?;
    // Its room on disk is free for the records that are spooled again.
    drop(asks);
    let mut order = places.into_order(plan.clone())?;
    let mut landed = 0_u64;
    while let Some(place) = order.next()? {
        if landed.is_multiple_of(RECORDS_BETWEEN_LOOKS) {
            go_on()?;
        }
        landed += 1;
        land(place.disk, &place.record)?;
    }
    Ok(tally)
}

fn spool_asks(
    disks: &mut dyn Disks,
    plan: &MemoryPlan,
    go_on: &dyn Fn() -> Result<()>,
    tally: &mut Tally,
) -> Result<Spool<Numbered>> {
    let mut spool = Spool::new(&plan.directory, plan.asks_partitions(), plan.asks_buffers_bytes())?;
    let (mut reading, mut segment) = (Reading::default(), Vec::<Ask>::new());
    loop {
        go_on()?;
        let first = reading.asks;
        let is_more = reading.next(disks, &mut segment)?;
        for (number, ask) in (first..).zip(segment.iter()) {
            let (partition, _) = share(first_bits(&ask.fingerprint), spool.partitions());
            spool.push(partition, &Numbered { ask: *ask, number })?;
        }
        if !is_more {
            break;
        }
    }
    spool.finish()?;
    (tally.asks, tally.asks_bytes) = (reading.asks, reading.bytes);
    tally.spooled_bytes += spool.written_bytes();
    Ok(spool)
}

fn compare(
    asks: &Spool<Numbered>,
    pool: &mut dyn Pool,
    plan: &MemoryPlan,
    go_on: &dyn Fn() -> Result<()>,
    tally: &mut Tally,
) -> Result<Places> {
    let mut places = Places::new(plan, 0, tally.asks)?;
    let (mut part, mut chunks) = (Vec::new(), Vec::new());
    for partition in 0..asks.partitions() {
        let mut parts = Parts::of(asks, partition);
        while parts.next_into(asks, plan.asks_at_once(), &mut part)? {
            tally.parts += 1;
            let mut rest = part.as_slice();
            while !rest.is_empty() {
                go_on()?;
                let covered = gather(rest, plan.chunks_at_once(), &mut chunks);
                let (batch, behind) = rest.split_at_checked(covered).unwrap_or((rest, &[]));
                tally.chunks += chunks.len() as u64;
                decide(batch, &pool.ask(&chunks)?, &mut |place| {
                    tally.count(&place.record);
                    places.push(&place)
                })?;
                rest = behind;
            }
        }
    }
    tally.spooled_bytes += places.written_bytes();
    Ok(places)
}

impl Tally {
    /// Counts a verdict.
    pub(crate) fn count(&mut self, record: &Record) {
        match record.verdict {
            Verdict::Known(_) => self.known += 1,
            Verdict::New(_) => {
                self.new += 1;
                self.new_bytes += u64::from(record.len_bytes);
            }
            Verdict::Repeated => self.repeated += 1,
        }
    }
}
