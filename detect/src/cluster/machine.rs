//! The stages of a round at one machine.
//!
//! The worker of timely runs on the thread of the caller: one thread a machine, as in the paper. While a stage waits, [`Machine::pump`] does the
//! machine's part in the stages of others. It never waits for room in a lane, so machines cannot wait for each other in a circle.

use std::collections::VecDeque;
use std::hash::Hasher as _;
use std::time::Duration;

use timely::worker::Worker;
use twox_hash::XxHash3_64;

use super::lane::{Lane, Parcel};
use super::links::Links;
use super::{Cluster, Landing, RoundTally, Stage, Watch};
use crate::compare::{Parts, decide, first_bits, gather, share};
use crate::places::Places;
use crate::reading::Reading;
use crate::{Answer, Chunk, Disks, Error, Numbered, Place, Record, Result, Verdict};
use dedupfs_spool::{Spool, Spooled, take};

/// Bytes of all send buffers of a stage, and of one at most.
const BUFFERS_BYTES: usize = 1 << 20;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Chunks of a question at most, and questions of a machine under way.
const ASKED_OF_A_MACHINE: usize = 16_384;
const QUESTIONS: usize = 2;
/// Bytes of a chunk in a question, and of an answer.
const CHUNK_BYTES: usize = 36;
const ANSWER_BYTES: usize = 21;
/// The longest sleep between two looks whether to go on.
const LOOKS_AFTER: Duration = Duration::from_millis(100);

/// A machine in a round.
pub(super) struct Machine<'a, 'pool> {
    cluster: &'a Cluster,
    links: &'a Links,
    pool: Option<&'a mut (dyn Landing + 'pool)>,
    watch: &'a Watch<'a>,
    stage: Stage,
    worker: Worker,
    /// 1a: asks, to the owners of their fingerprints.
    asks: Lane,
    /// 1b: chunks, to the machine of the pool; and its answers.
    questions: Lane,
    answers: Lane,
    /// 2a: records, to the machines of their disks.
    verdicts: Lane,
    /// 2b: records with the bytes of new chunks, to the machine of the pool.
    records: Lane,
    /// 3: the end, to all.
    told: Lane,
    asked: Spool<Numbered>,
    places: Option<Places>,
    answered: VecDeque<Vec<Answer>>,
    /// By machine: the end of its last record that landed.
    landed: Vec<(u32, u64)>,
    chunk: Vec<u8>,
    is_committed: bool,
    tally: RoundTally,
    /// The chunks that were cut here.
    cut: Seen,
}

impl<'a, 'pool> Machine<'a, 'pool> {
    pub(super) fn new(
        cluster: &'a Cluster,
        links: &'a Links,
        pool: Option<&'a mut (dyn Landing + 'pool)>,
        watch: &'a Watch<'a>,
        mut worker: Worker,
    ) -> Result<Self> {
        let (window, plan) = (&cluster.window, &cluster.memory);
        let asks = Lane::open(&mut worker, window.turn_bytes, window.turns);
        // There are never more of them than questions.
        let questions = Lane::open(&mut worker, 1, u64::MAX);
        let answers = Lane::open(&mut worker, 1, u64::MAX);
        let verdicts = Lane::open(&mut worker, window.turn_bytes, window.turns);
        let records = Lane::open(&mut worker, window.turn_bytes, window.turns);
        let told = Lane::open(&mut worker, 1, u64::MAX);
        let asked = Spool::new(&plan.directory, plan.asks_partitions(), plan.asks_buffers_bytes())?;
        let landed = vec![(0, 0); cluster.machines.len()];
        Ok(Self {
            cluster,
            links,
            pool,
            watch,
            stage: Stage::Read,
            worker,
            asks,
            questions,
            answers,
            verdicts,
            records,
            told,
            asked,
            places: None,
            answered: VecDeque::new(),
            landed,
            chunk: Vec::new(),
            is_committed: false,
            tally: RoundTally::default(),
            cut: Seen::default(),
        })
    }

    /// Runs all stages.
    pub(super) fn round(mut self, disks: &mut dyn Disks) -> Result<RoundTally> {
        self.read(disks)?;
        self.stage = Stage::Compare;
        self.compare()?;
        self.stage = Stage::Verdict;
        self.verdicts.close();
        self.questions.close();
        self.until(|machine| machine.verdicts.is_done())?;
        self.stage = Stage::Store;
        self.transfer(disks)?;
        self.records.close();
        self.until(|machine| machine.records.is_done())?;
        self.stage = Stage::Finish;
        self.finish()?;
        self.links.commit();
        let lanes = [&self.asks, &self.questions, &self.answers, &self.verdicts, &self.records, &self.told];
        self.tally.parcels = lanes.iter().map(|lane| lane.parcels).sum();
        self.tally.sent_bytes = lanes.iter().map(|lane| lane.bytes).sum();
        Ok(self.tally)
    }

    /// Goes on with all that others ask of this machine. Sleeps for a moment if there is nothing.
    fn pump(&mut self) -> Result<()> {
        if !(self.watch)(self.stage) {
            return Err(Error::Ended);
        }
        self.links.check()?;
        self.worker.step_or_park(Some(LOOKS_AFTER));
        if self.told.take().is_some() {
            self.is_committed = true;
            return Ok(());
        }
        self.links.check()?;
        while let Some(parcel) = self.asks.take() {
            self.take_asks(&parcel.whole()?)?;
        }
        while let Some(parcel) = self.questions.take() {
            self.take_question(&parcel.whole()?)?;
        }
        while let Some(parcel) = self.answers.take() {
            self.take_answers(&parcel.whole()?)?;
        }
        while let Some(parcel) = self.verdicts.take() {
            self.take_verdicts(&parcel.whole()?)?;
        }
        while let Some(parcel) = self.records.take() {
            self.take_records(&parcel.whole()?)?;
        }
        Ok(())
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        loop {
            self.pump()?;
            if is_so(self) {
                return Ok(());
            }
        }
    }

    /// Sends a parcel when the lane has room for it.
    fn send(&mut self, lane: fn(&mut Self) -> &mut Lane, to: usize, bytes: Vec<u8>) -> Result<()> {
        while !lane(self).is_free() {
            self.pump()?;
        }
        lane(self).send(to, bytes);
        Ok(())
    }

    // Stage 1a.

    fn read(&mut self, disks: &mut dyn Disks) -> Result<()> {
        let machines = self.cluster.machines.len();
        let (mut reading, mut segment, mut calls) = (Reading::default(), Vec::new(), 0);
        let mut buffers = Buffers::new(machines);
        loop {
            self.links.check()?;
            let first = reading.asks;
            let is_more = reading.next(disks, &mut segment)?;
            for (number, ask) in (first..).zip(segment.iter()) {
                self.cluster.check_disk(ask.disk, self.cluster.me)?;
                self.cut.add(ask.disk, ask.at, ask.len_bytes, &ask.fingerprint);
                let (owner, _) = share(first_bits(&ask.fingerprint), machines);
                if let Some(full) = buffers.push(owner, &Numbered { ask: *ask, number }) {
                    self.send(|machine| &mut machine.asks, owner, full)?;
                }
            }
            calls += 1;
            if !is_more || calls % self.cluster.window.turn_calls == 0 {
                for (owner, bytes) in buffers.rest() {
                    self.send(|machine| &mut machine.asks, owner, bytes)?;
                }
                self.asks.end_turn();
                self.pump()?;
            }
            if !is_more {
                break;
            }
        }
        // Verdicts come when all machines have read, so not before this is there.
        self.places = Some(Places::new(&self.cluster.memory, 0, reading.asks)?);
        (self.tally.here.asks, self.tally.here.asks_bytes) = (reading.asks, reading.bytes);
        self.asks.close();
        self.until(|machine| machine.asks.is_done())?;
        self.asked.finish()?;
        self.tally.here.spooled_bytes += self.asked.written_bytes();
        Ok(())
    }

    fn take_asks(&mut self, parcel: &Parcel) -> Result<()> {
        let machines = self.cluster.machines.len();
        for asked in records::<Numbered>(parcel)? {
            let asked = asked?;
            self.cluster.check_disk(asked.ask.disk, parcel.from as usize)?;
            let (owner, rest) = share(first_bits(&asked.ask.fingerprint), machines);
            if owner != self.cluster.me {
                return Err(foreign(parcel));
            }
            let (partition, _) = share(rest, self.asked.partitions());
            self.asked.push(partition, &asked)?;
        }
        Ok(())
    }

    // Stages 1b and 2a.

    fn compare(&mut self) -> Result<()> {
        let mut part = Vec::new();
        let mut buffers = Buffers::new(self.cluster.machines.len());
        for partition in 0..self.asked.partitions() {
            let mut parts = Parts::of(&self.asked, partition);
            while parts.next_into(&self.asked, self.cluster.memory.asks_at_once(), &mut part)? {
                self.tally.here.parts += 1;
                self.compare_part(&part, &mut buffers)?;
            }
        }
        for (machine, bytes) in buffers.rest() {
            self.send(|machine| &mut machine.verdicts, machine, bytes)?;
        }
        // Its room on disk is free for the records.
        let plan = &self.cluster.memory;
        self.asked = Spool::new(&plan.directory, 1, 0)?;
        Ok(())
    }

    fn compare_part(&mut self, part: &[Numbered], buffers: &mut Buffers) -> Result<()> {
        let chunks_max = self.cluster.memory.chunks_at_once().min(ASKED_OF_A_MACHINE);
        let (mut unasked, mut undecided, mut under_way) = (part, part, VecDeque::new());
        let mut chunks = Vec::new();
        loop {
            while under_way.len() < QUESTIONS && !unasked.is_empty() {
                let covered = gather(unasked, chunks_max, &mut chunks);
                unasked = unasked.get(covered..).unwrap_or_default();
                under_way.push_back(covered);
                self.tally.here.chunks += chunks.len() as u64;
                self.questions.send(0, question(&chunks));
            }
            let Some(covered) = under_way.pop_front() else { return Ok(()) };
            let answers = loop {
                if let Some(answers) = self.answered.pop_front() {
                    break answers;
                }
                self.pump()?;
            };
            let (batch, behind) = undecided.split_at_checked(covered).unwrap_or((undecided, &[]));
            undecided = behind;
            decide(batch, &answers, &mut |place| {
                self.tally.here.count(&place.record);
                let machine = self.cluster.machine_of(place.disk)?;
                match buffers.push(machine, &place) {
                    Some(full) => self.send(|machine| &mut machine.verdicts, machine, full),
                    None => Ok(()),
                }
            })?;
        }
    }

    fn take_question(&mut self, parcel: &Parcel) -> Result<()> {
        let pool = self.pool.as_mut().ok_or_else(|| foreign(parcel))?;
        let mut chunks = Vec::with_capacity(parcel.bytes.len() / CHUNK_BYTES);
        for mut bytes in parcel.bytes.chunks(CHUNK_BYTES) {
            let (fingerprint, len) = (take(&mut bytes), take(&mut bytes));
            let (Some(fingerprint), Some(len)) = (fingerprint, len) else { return Err(foreign(parcel)) };
            chunks.push(Chunk { fingerprint, len_bytes: u32::from_le_bytes(len) });
        }
        let key = |chunk: &Chunk| (chunk.fingerprint, chunk.len_bytes);
        if chunks.len() > ASKED_OF_A_MACHINE || !chunks.is_sorted_by(|one, other| key(one) < key(other)) {
            return Err(foreign(parcel));
        }
        let answers = pool.ask(&chunks)?;
        if answers.len() != chunks.len() {
            return Err(Error::Pool("it gave another number of answers than it was asked for".into()));
        }
        let mut bytes = Vec::with_capacity(answers.len() * ANSWER_BYTES);
        for answer in &answers {
            bytes.push(u8::from(answer.is_known));
            bytes.extend_from_slice(&answer.proof);
        }
        self.answers.send(parcel.from as usize, bytes);
        Ok(())
    }

    fn take_answers(&mut self, parcel: &Parcel) -> Result<()> {
        let mut answers = Vec::with_capacity(parcel.bytes.len() / ANSWER_BYTES);
        for mut bytes in parcel.bytes.chunks(ANSWER_BYTES) {
            let (known, proof) = (take(&mut bytes), take(&mut bytes));
            let (Some([is_known @ 0..=1]), Some(proof)) = (known, proof) else { return Err(foreign(parcel)) };
            answers.push(Answer { is_known: is_known == 1, proof });
        }
        if parcel.from != 0 || self.answered.len() >= QUESTIONS {
            return Err(foreign(parcel));
        }
        self.answered.push_back(answers);
        Ok(())
    }

    fn take_verdicts(&mut self, parcel: &Parcel) -> Result<()> {
        let places = self.places.as_mut().ok_or_else(|| foreign(parcel))?;
        for place in records::<Place>(parcel)? {
            let place = place?;
            self.cluster.check_disk(place.disk, self.cluster.me)?;
            places.push(&place)?;
        }
        Ok(())
    }

    // Stages 2b and 3.

    fn transfer(&mut self, disks: &mut dyn Disks) -> Result<()> {
        let places = self.places.take().ok_or_else(|| Error::Broken("it has no records".into()))?;
        self.tally.here.spooled_bytes += places.written_bytes();
        let mut order = places.into_order(self.cluster.memory.clone())?;
        let mut full = Vec::with_capacity(BUFFER_BYTES_MAX);
        let mut sent = Seen::default();
        while let Some(place) = order.next()? {
            let Record { at, len_bytes, fingerprint, .. } = &place.record;
            sent.add(place.disk, *at, *len_bytes, fingerprint);
            let bytes = match place.record.verdict {
                Verdict::New(_) => self.read_again(disks, &place)?,
                Verdict::Known(_) | Verdict::Repeated => &[],
            };
            place.encode(&mut full);
            full.extend_from_slice(bytes);
            if full.len() >= BUFFER_BYTES_MAX {
                let room = Vec::with_capacity(BUFFER_BYTES_MAX);
                self.send(|machine| &mut machine.records, 0, std::mem::replace(&mut full, room))?;
            }
        }
        // Before the last ones go: without them nothing is committed.
        if sent.0.finish() != self.cut.0.finish() {
            return Err(Error::Broken("the chunks that came back are not those that were asked for".into()));
        }
        if full.is_empty() { Ok(()) } else { self.send(|machine| &mut machine.records, 0, full) }
    }

    fn read_again(&mut self, disks: &mut dyn Disks, place: &Place) -> Result<&[u8]> {
        let (disk, record) = (place.disk, &place.record);
        if record.len_bytes > crate::CHUNK_BYTES_MAX {
            return Err(Error::Broken(format!(
                "a verdict about disk {disk} has a chunk of {} bytes",
                record.len_bytes
            )));
        }
        self.chunk.resize(record.len_bytes as usize, 0);
        disks.read(disk, record.at, &mut self.chunk)?;
        if disks.fingerprint(&self.chunk) != record.fingerprint {
            let why = format!("it changed at byte {} while it was read: read from a snapshot", record.at);
            return Err(Error::Disk { disk, why });
        }
        Ok(&self.chunk)
    }

    fn take_records(&mut self, parcel: &Parcel) -> Result<()> {
        let pool = self.pool.as_mut().ok_or_else(|| foreign(parcel))?;
        let landed = self.landed.get_mut(parcel.from as usize).ok_or_else(|| foreign(parcel))?;
        let mut rest = parcel.bytes.as_slice();
        while !rest.is_empty() {
            let (record, behind) = rest.split_at_checked(Place::BYTES).ok_or_else(|| foreign(parcel))?;
            let Place { disk, record, .. } = Place::decode(record).ok_or_else(|| foreign(parcel))?;
            let len_bytes = if matches!(record.verdict, Verdict::New(_)) { record.len_bytes as usize } else { 0 };
            let (bytes, behind) = behind.split_at_checked(len_bytes).ok_or_else(|| foreign(parcel))?;
            rest = behind;
            self.cluster.check_disk(disk, parcel.from as usize)?;
            if (disk, record.at) < *landed {
                return Err(foreign(parcel));
            }
            *landed = (disk, record.at.saturating_add(u64::from(record.len_bytes)));
            pool.land(disk, &record, (len_bytes > 0).then_some(bytes))?;
            self.tally.landed += 1;
            self.tally.landed_bytes += len_bytes as u64;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.cluster.me == 0 {
            self.pump()?;
            // A loss that is seen now, or later, is none of this round.
            if let Some(pool) = self.pool.as_mut() {
                pool.finish()?;
            }
            for machine in 0..self.cluster.machines.len() {
                self.told.send(machine, Vec::new());
            }
            // The connections end in order behind the round, so they still carry this.
            self.worker.step();
            return Ok(());
        }
        while !self.is_committed {
            self.pump()?;
        }
        Ok(())
    }
}

/// A sum over the chunks of this machine, in their order: those that were cut, and those that come back with verdicts.
#[derive(Default)]
struct Seen(XxHash3_64);

impl Seen {
    fn add(&mut self, disk: u32, at: u64, len_bytes: u32, fingerprint: &[u8; 32]) {
        self.0.write(&disk.to_le_bytes());
        self.0.write(&at.to_le_bytes());
        self.0.write(&len_bytes.to_le_bytes());
        self.0.write(fingerprint);
    }
}

/// The paper's send buffers: one for each machine.
struct Buffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    fn new(machines: usize) -> Self {
        let bytes = (BUFFERS_BYTES / machines.max(1)).clamp(Place::BYTES, BUFFER_BYTES_MAX);
        Self { buffers: vec![Vec::new(); machines], bytes }
    }

    /// Adds a record. Returns the buffer when it is full.
    fn push<T: Spooled>(&mut self, machine: usize, record: &T) -> Option<Vec<u8>> {
        let buffer = self.buffers.get_mut(machine)?;
        if buffer.capacity() == 0 {
            buffer.reserve_exact(self.bytes);
        }
        record.encode(buffer);
        (buffer.len() + T::BYTES > self.bytes).then(|| std::mem::take(buffer))
    }

    /// Empties all buffers.
    fn rest(&mut self) -> Vec<(usize, Vec<u8>)> {
        let filled = self.buffers.iter_mut().enumerate().filter(|(_, buffer)| !buffer.is_empty());
        filled.map(|(machine, buffer)| (machine, std::mem::take(buffer))).collect()
    }
}

fn question(chunks: &[Chunk]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(chunks.len() * CHUNK_BYTES);
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.fingerprint);
        bytes.extend_from_slice(&chunk.len_bytes.to_le_bytes());
    }
    bytes
}

/// The records of a parcel.
fn records<T: Spooled>(parcel: &Parcel) -> Result<impl Iterator<Item = Result<T>>> {
    let records = parcel.bytes.chunks_exact(T::BYTES);
    if records.remainder().is_empty() {
        Ok(records.map(|record| T::decode(record).ok_or_else(|| foreign(parcel))))
    } else {
        Err(foreign(parcel))
    }
}

fn foreign(parcel: &Parcel) -> Error {
    Error::Refused(format!("machine {} sends parcels that it should not; run the same release everywhere", parcel.from))
}
