//! Disks and a pool that are made up from a seed, and an oracle that knows the right verdicts.

use std::time::{Duration, Instant};

use dedupfs_detect::{Answer, Ask, Chunk, Disks, Error, Landing, Pool, Record, Result, Rounds, Verdict};

/// Contents that several places of a round share.
const SHARED: u64 = 4096;
/// Chunks of a call: a segment of 2 MiB.
const SEGMENT: u64 = 512;
/// Of a thousand chunks, those that the pool knows (the paper's 74.5%), and those that share new content.
const KNOWN: u64 = 745;
const REPEATED: u64 = 55;

/// A content: a number with its kind in the last two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Known,
    Shared(u64),
}

impl Content {
    fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::New,
            1 => Kind::Known,
            _ => Kind::Shared(self.0 >> 2),
        }
    }

    fn fingerprint(self) -> [u8; 32] {
        let mut fingerprint = [0; 32];
        for (number, part) in fingerprint.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&mix(self.0 ^ ((number as u64) << 60)).to_be_bytes());
        }
        // The pool knows a chunk by this.
        fingerprint[31] = (self.0 & 3) as u8;
        fingerprint
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first_chunk::<8>()?;
        bytes.chunks(8).all(|part| first.starts_with(part)).then_some(Self(u64::from_le_bytes(first)))
    }
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// All disks of a round.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    pub seed: u64,
    pub disks: u32,
    pub chunks: u64,
    pub chunk_bytes: u32,
}

impl Synthetic {
    fn content(&self, disk: u32, chunk: u64) -> Content {
        let place = (u64::from(disk) << 40) | chunk;
        let drawn = mix(mix(self.seed) ^ place);
        Content(match drawn % 1000 {
            ..KNOWN => ((drawn >> 20) << 2) | 1,
            drawn_kind if drawn_kind < KNOWN + REPEATED => (((drawn >> 20) % SHARED) << 2) | 2,
            _ => place << 2,
        })
    }

    fn at(&self, chunk: u64) -> u64 {
        // Two segments of three are clean.
        (chunk / SEGMENT * 3 * SEGMENT + chunk % SEGMENT) * u64::from(self.chunk_bytes)
    }

    fn chunk(&self, at: u64) -> u64 {
        let number = at / u64::from(self.chunk_bytes);
        number / (3 * SEGMENT) * SEGMENT + number % (3 * SEGMENT)
    }

    fn fold(&self, disk: u32, chunk: u64, content: Content, verdict: u64) -> u64 {
        mix(mix(mix((u64::from(disk) << 40) | chunk) ^ content.0) ^ verdict)
    }

    /// The sum of all right records, whatever their order.
    fn oracle(&self) -> u64 {
        let mut has_come = vec![false; SHARED as usize];
        let mut sum = 0_u64;
        for disk in 0..self.disks {
            for chunk in 0..self.chunks {
                let content = self.content(disk, chunk);
                let verdict = match content.kind() {
                    Kind::Known => 1,
                    Kind::New => 2,
                    Kind::Shared(number) if !std::mem::replace(&mut has_come[number as usize], true) => 2,
                    Kind::Shared(_) => 0,
                };
                sum = sum.wrapping_add(self.fold(disk, chunk, content, verdict));
            }
        }
        sum
    }
}

/// The disks of one machine.
pub struct SyntheticDisks {
    all: Synthetic,
    disks: Vec<u32>,
    disk: usize,
    chunk: u64,
    slow: Duration,
    changes: bool,
}

impl SyntheticDisks {
    pub fn new(all: Synthetic, disks: Vec<u32>, slow: Duration, changes: bool) -> Self {
        Self { all, disks, disk: 0, chunk: 0, slow, changes }
    }
}

impl Disks for SyntheticDisks {
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
        let Some(disk) = self.disks.get(self.disk).copied() else { return Ok(false) };
        let end = self.all.chunks.min(self.chunk + SEGMENT);
        for chunk in self.chunk..end {
            let fingerprint = self.all.content(disk, chunk).fingerprint();
            asks.push(Ask { fingerprint, len_bytes: self.all.chunk_bytes, disk, at: self.all.at(chunk) });
        }
        self.chunk = end;
        if end == self.all.chunks {
            self.disk += 1;
            self.chunk = 0;
        }
        std::thread::sleep(self.slow);
        Ok(self.disk < self.disks.len())
    }

    fn read(&mut self, disk: u32, at: u64, into: &mut [u8]) -> Result<()> {
        let content = self.all.content(disk, self.all.chunk(at)).0 ^ u64::from(self.changes);
        for part in into.chunks_mut(8) {
            part.copy_from_slice(&content.to_le_bytes()[..part.len()]);
        }
        Ok(())
    }

    fn fingerprint(&self, bytes: &[u8]) -> [u8; 32] {
        Content::of_bytes(bytes).map_or([0; 32], Content::fingerprint)
    }
}

/// A pool that compares all that lands with the oracle.
pub struct SyntheticPool {
    all: Synthetic,
    rounds: Option<Rounds>,
    job: [u8; 32],
    round: u64,
    next: Vec<u64>,
    sum: u64,
    pub oracle_time: Duration,
}

impl SyntheticPool {
    pub fn new(all: Synthetic, rounds: Option<Rounds>, job: [u8; 32], round: u64) -> Self {
        Self { all, rounds, job, round, next: vec![0; all.disks as usize], sum: 0, oracle_time: Duration::ZERO }
    }
}

fn proof(fingerprint: &[u8; 32], len_bytes: u32) -> [u8; 20] {
    std::array::from_fn(|place| fingerprint[place] ^ len_bytes.to_le_bytes()[place % 4])
}

fn wrong(what_is: impl Into<String>) -> Error {
    Error::Pool(format!("the oracle disagrees: {}", what_is.into()))
}

impl Pool for SyntheticPool {
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>> {
        let answer = |chunk: &Chunk| Answer {
            is_known: chunk.fingerprint[31] == 1,
            proof: proof(&chunk.fingerprint, chunk.len_bytes),
        };
        Ok(chunks.iter().map(answer).collect())
    }
}

impl Landing for SyntheticPool {
    fn land(&mut self, disk: u32, record: &Record, bytes: Option<&[u8]>) -> Result<()> {
        // Each chunk of a disk comes once, in order.
        let next = &mut self.next[disk as usize];
        let chunk = *next;
        *next += 1;
        let content = self.all.content(disk, chunk);
        if record.at != self.all.at(chunk) || record.fingerprint != content.fingerprint() {
            return Err(wrong(format!("disk {disk} has something else at {}", record.at)));
        }
        let seal = proof(&record.fingerprint, record.len_bytes);
        let verdict = match record.verdict {
            Verdict::Known(proof) if proof == seal && bytes.is_none() => 1,
            Verdict::New(proof) if proof == seal => {
                let is_right = |bytes: &[u8]| bytes.len() == record.len_bytes as usize;
                let content_of = |bytes| Content::of_bytes(bytes).filter(|_| is_right(bytes));
                if bytes.and_then(content_of) != Some(content) {
                    return Err(wrong(format!("other bytes of disk {disk} at {}", record.at)));
                }
                2
            }
            Verdict::Repeated if bytes.is_none() => 0,
            other => return Err(wrong(format!("disk {disk} at {} is {other:?}", record.at))),
        };
        self.sum = self.sum.wrapping_add(self.all.fold(disk, chunk, content, verdict));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let begin = Instant::now();
        if self.next.iter().any(|next| *next != self.all.chunks) {
            return Err(wrong("a disk is not whole"));
        }
        if self.sum != self.all.oracle() {
            return Err(wrong("a verdict is another one"));
        }
        self.oracle_time = begin.elapsed();
        let names: Vec<_> = (0..self.all.disks).map(|disk| format!("disk-{disk}")).collect();
        self.rounds.as_ref().map_or(Ok(()), |rounds| rounds.commit(&self.job, self.round, &names))
    }
}
