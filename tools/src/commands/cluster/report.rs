//! Reports: a machine's part and, at the machine with the pool, the outcome of each disk.

use std::fmt::Write as _;

use dedupfs::transfer::TransferReport;
use dedupfs_batch::cluster::ClusterPlan;
use dedupfs_detect::RoundTally;
use serde::Serialize;

use crate::control::Failure;
use crate::size::show;

/// The outcome of a disk.
#[derive(Serialize)]
pub(super) struct DiskOutcome {
    name: String,
    /// It has its version.
    stored: bool,
    /// An attempt before this one put it.
    was_there: bool,
    size_bytes: u64,
    /// Bytes of new chunks that came.
    read_bytes: u64,
    new_bytes: u64,
    problem: Option<String>,
}

impl DiskOutcome {
    pub(super) fn new(name: &str, put: Result<Option<TransferReport>, Failure>) -> Self {
        let was_there = matches!(put, Ok(None));
        let (report, problem) = match put {
            Ok(report) => (report, None),
            Err(failure) => (None, Some(failure.message)),
        };
        let image = report.as_ref().and_then(|report| report.image.as_ref());
        Self {
            name: name.to_owned(),
            stored: problem.is_none(),
            was_there,
            size_bytes: image.map_or(0, |image| image.size_bytes),
            read_bytes: image.map_or(0, |image| image.read_bytes),
            new_bytes: report.as_ref().and_then(|report| report.version.as_ref()).map_or(0, |made| made.new_bytes),
            problem,
        }
    }
}

/// The rounds of this machine.
#[derive(Serialize)]
pub(super) struct ClusterReport {
    machine: String,
    rounds: u64,
    /// Chunks of its disks, and their bytes.
    chunks: u64,
    chunk_bytes: u64,
    /// Bytes that it sent to other machines.
    sent_bytes: u64,
    /// Disks of this machine, or of all at the machine with the pool, that have no version of this plan.
    pub(super) not_stored: u64,
    disks: Vec<DiskOutcome>,
}

impl ClusterReport {
    pub(super) fn new(plan: &ClusterPlan, me: usize) -> Self {
        let machine = plan.machines.get(me).map(|machine| machine.name.clone()).unwrap_or_default();
        Self { machine, rounds: 0, chunks: 0, chunk_bytes: 0, sent_bytes: 0, not_stored: 0, disks: Vec::new() }
    }

    pub(super) fn add(&mut self, tally: &RoundTally, disks: Vec<DiskOutcome>) {
        self.rounds += 1;
        self.chunks += tally.here.asks;
        self.chunk_bytes += tally.here.asks_bytes;
        self.sent_bytes += tally.sent_bytes;
        self.disks.extend(disks);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.not_stored == 0 && self.disks.iter().all(|disk| disk.stored)
    }
}

pub(super) fn text(report: &ClusterReport) -> String {
    let mut text = String::new();
    for disk in &report.disks {
        let _ = match &disk.problem {
            Some(problem) => writeln!(text, "{}: NOT STORED: {problem}", disk.name),
            None if disk.was_there => writeln!(text, "{}: stored by an attempt before", disk.name),
            None => writeln!(
                text,
                "{}: stored, {}, of which {} came, new {}",
                disk.name,
                show(disk.size_bytes),
                show(disk.read_bytes),
                show(disk.new_bytes)
            ),
        };
    }
    let (chunks, bytes, sent) = (report.chunks, show(report.chunk_bytes), show(report.sent_bytes));
    let rounds = report.rounds;
    let s = if rounds == 1 { "" } else { "s" };
    if rounds == 0 && report.is_complete() {
        let _ = writeln!(text, "machine {}: nothing is left to do: all disks are stored", report.machine);
        return text;
    }
    let _ = writeln!(
        text,
        "machine {}: {rounds} round{s} committed; cut {chunks} chunks ({bytes}), sent {sent}",
        report.machine
    );
    if report.not_stored > 0 {
        let _ = writeln!(
            text,
            "{} disks are not stored: the machine with the pool says why; run this again",
            report.not_stored
        );
    }
    text
}
