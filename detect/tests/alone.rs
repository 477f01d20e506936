//! Rounds of one machine against a map in memory, and their memory.

use std::collections::HashMap;

use dedupfs_detect::{
    ASKED_AT_ONCE, ASKS_OF_A_CALL, Answer, Ask, Chunk, Disks, Error, MemoryPlan, Pool, Record, Result, Tally, Verdict,
    alone,
};
use proptest::prelude::*;

/// Asks in memory, given in small steps.
struct Given<'a> {
    asks: &'a [Ask],
    step: usize,
}

impl Disks for Given<'_> {
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
        let (now, rest) = self.asks.split_at(self.step.min(self.asks.len()));
        asks.extend_from_slice(now);
        self.asks = rest;
        Ok(!rest.is_empty())
    }

    fn read(&mut self, disk: u32, _: u64, _: &mut [u8]) -> Result<()> {
        Err(Error::Disk { disk, why: "nobody reads it".into() })
    }

    fn fingerprint(&self, _: &[u8]) -> [u8; 32] {
        [0; 32]
    }
}

/// A pool that knows a chunk by its last byte, and counts questions.
#[derive(Default)]
struct Asked {
    times: HashMap<([u8; 32], u32), u64>,
}

fn is_known(fingerprint: &[u8; 32], len_bytes: u32) -> bool {
    (u32::from(fingerprint[31]) + len_bytes).is_multiple_of(3)
}

fn proof(fingerprint: &[u8; 32], len_bytes: u32) -> [u8; 20] {
    std::array::from_fn(|byte| fingerprint[byte + 12] ^ len_bytes as u8)
}

impl Pool for Asked {
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>> {
        assert!(chunks.len() <= ASKED_AT_ONCE);
        assert!(chunks.is_sorted_by_key(|chunk| (chunk.fingerprint, chunk.len_bytes)));
        let mut answers = Vec::new();
        for Chunk { fingerprint, len_bytes } in chunks {
            *self.times.entry((*fingerprint, *len_bytes)).or_default() += 1;
            answers.push(Answer { is_known: is_known(fingerprint, *len_bytes), proof: proof(fingerprint, *len_bytes) });
        }
        Ok(answers)
    }
}

fn plan(expected_asks: u64, memory_bytes: u64) -> MemoryPlan {
    MemoryPlan { directory: std::env::temp_dir(), expected_asks, memory_bytes }
}

/// Runs a round, and compares it with a map. Exactly, if all partitions fit into memory.
fn check(asks: &[Ask], step: usize, plan: &MemoryPlan) -> Tally {
    let mut pool = Asked::default();
    let mut landed: Vec<(u32, Record)> = Vec::new();
    let mut land = |disk, record: &Record| {
        landed.push((disk, *record));
        Ok(())
    };
    let tally = alone(&mut Given { asks, step }, &mut pool, plan, &mut land, &|| true).unwrap();
    assert_eq!(tally.asks, asks.len() as u64);
    assert_eq!((tally.known + tally.new + tally.repeated, landed.len()), (tally.asks, asks.len()));
    let is_exact = pool.times.values().all(|times| *times == 1);
    let mut seen: HashMap<([u8; 32], u32), u64> = HashMap::new();
    for (ask, (disk, record)) in asks.iter().zip(&landed) {
        assert_eq!(
            (ask.disk, ask.at, ask.len_bytes, ask.fingerprint),
            (*disk, record.at, record.len_bytes, record.fingerprint)
        );
        let chunk = (ask.fingerprint, ask.len_bytes);
        let proof = proof(&ask.fingerprint, ask.len_bytes);
        if is_known(&ask.fingerprint, ask.len_bytes) {
            assert_eq!(record.verdict, Verdict::Known(proof));
            continue;
        }
        let before = seen.entry(chunk).or_default();
        match record.verdict {
            Verdict::New(its_proof) => {
                assert_eq!(its_proof, proof);
                *before += 1;
                assert!(*before <= pool.times[&chunk]);
            }
            Verdict::Repeated => assert!(*before > 0, "nothing new comes before a place that repeats it"),
            Verdict::Known(_) => panic!("it is new"),
        }
        assert!(!is_exact || *before == 1);
    }
    tally
}

fn asks_of(fingerprints: &[(u8, u8, u8)], spread: bool) -> Vec<Ask> {
    let mut at = 0;
    let of = |(number, (first, last, len)): (usize, &(u8, u8, u8))| {
        let mut fingerprint = [if spread { first.wrapping_mul(97) } else { 5 }; 32];
        fingerprint[30] = *first;
        fingerprint[31] = *last;
        let disk = (number / 100) as u32;
        at += 1000;
        Ask { fingerprint, len_bytes: u32::from(*len) + 1, disk, at: at - 1000 }
    };
    fingerprints.iter().enumerate().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Few fingerprints, so that most repeat; all in one partition, or not; fewer expected than come, or more.
    #[test]
    fn every_ask_lands_once_in_order_with_the_verdict_of_a_map(
        fingerprints in proptest::collection::vec((0..4_u8, 0..40_u8, 0..2_u8), 0..3000),
        spread: bool,
        expected_asks in 0..20_000_u64,
        memory_bytes in 0..300_000_u64,
        step in 1..500_usize,
    ) {
        check(&asks_of(&fingerprints, spread), step, &plan(expected_asks, memory_bytes));
    }
}

#[test]
fn a_partition_that_does_not_fit_is_compared_in_parts() {
    let fingerprints: Vec<_> = (0..20_000_u32).map(|n| ((n / 7 % 250) as u8, (n % 256) as u8, 0)).collect();
    let asks = asks_of(&fingerprints, false);
    let small = check(&asks, 100, &plan(0, 0));
    assert!(small.parts > 50, "{small:?}");
    let large = check(&asks, 100, &plan(0, 8 << 20));
    assert_eq!(large.parts, 1);
    assert!(large.new < small.new);
}

#[test]
fn a_round_ends_when_it_is_asked_to() {
    let asks = asks_of(&[(1, 1, 1)], true);
    let looks = std::cell::Cell::new(0);
    for last in 0..3 {
        looks.set(0);
        let watch = || looks.replace(looks.get() + 1) < last;
        let mut given = Given { asks: &asks, step: 1 };
        let error = alone(&mut given, &mut Asked::default(), &plan(0, 0), &mut |_, _| Ok(()), &watch).unwrap_err();
        assert!(matches!(error, Error::Ended));
    }
}

#[test]
fn a_directory_that_is_not_there_is_told() {
    let plan = MemoryPlan::new("/nowhere", 1);
    let mut given = Given { asks: &[], step: 1 };
    let error = alone(&mut given, &mut Asked::default(), &plan, &mut |_, _| Ok(()), &|| true).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}

/// Asks without memory of their own.
struct Endless {
    made: u64,
    asks: u64,
}

impl Disks for Endless {
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
        let end = self.asks.min(self.made + ASKS_OF_A_CALL as u64);
        for number in self.made..end {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut fingerprint = [0; 32];
            fingerprint[..8].copy_from_slice(&(mixed ^ (mixed >> 29)).to_be_bytes());
            fingerprint[31] = mixed as u8;
            asks.push(Ask { fingerprint, len_bytes: 4096, disk: 0, at: number * 4096 });
        }
        self.made = end;
        Ok(end < self.asks)
    }

    fn read(&mut self, disk: u32, _: u64, _: &mut [u8]) -> Result<()> {
        Err(Error::Disk { disk, why: "nobody reads it".into() })
    }

    fn fingerprint(&self, _: &[u8]) -> [u8; 32] {
        [0; 32]
    }
}

/// A pool without memory.
struct Forgetful;

impl Pool for Forgetful {
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>> {
        let of = |chunk: &Chunk| Answer { is_known: is_known(&chunk.fingerprint, chunk.len_bytes), proof: [1; 20] };
        Ok(chunks.iter().map(of).collect())
    }
}

const CHILD: &str = "DEDUPFS_DETECT_MEMORY_OF";

/// The peak of this process's resident memory, bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs itself as another process, so that nothing else is in its memory.
#[test]
fn four_million_asks_need_no_more_memory_than_planned() {
    if let Ok(asks) = std::env::var(CHILD) {
        let asks = asks.parse().unwrap();
        let plan = MemoryPlan::new(std::env::temp_dir(), asks);
        let begin = std::time::Instant::now();
        let before_bytes = peak_bytes();
        let mut landed = 0;
        let mut land = |_, _: &Record| {
            landed += 1;
            Ok(())
        };
        let tally = alone(&mut Endless { made: 0, asks }, &mut Forgetful, &plan, &mut land, &|| true).unwrap();
        assert_eq!(landed, asks);
        println!("{} bytes before, {} at the peak, {:?}, {tally:?}", before_bytes, peak_bytes(), begin.elapsed());
        assert!(peak_bytes() < before_bytes + plan.memory_bytes + (4 << 20));
        assert!(peak_bytes() < 35_000_000);
        return;
    }
    let asks = if cfg!(debug_assertions) { "1000000" } else { "4000000" };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "four_million_asks_need_no_more_memory_than_planned", "--nocapture"]).env(CHILD, asks);
    let output = child.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    assert!(output.status.success(), "{told} {}", String::from_utf8_lossy(&output.stderr));
}
