//! The disks that a machine reads in a round.

use std::collections::VecDeque;

use dedupfs::Progress;
use dedupfs::transfer::{Cutter, Cutting};
use dedupfs_batch::cluster::ClusterPlan;
use dedupfs_detect::{Ask, Disks, Error, Result};

use crate::changes::Format;
use crate::control::{Failure, FailureKind};
use crate::image_source::{ImageSource, Wanted};
use crate::staged::disk::SegmentReader;

/// An open disk, with its number in the plan.
pub(super) type Opened = (u32, ImageSource);

/// Opens those of these disks that a machine has.
pub(super) fn open(plan: &ClusterPlan, me: usize, disks: &[usize]) -> std::result::Result<Vec<Opened>, Failure> {
    let mut opened = Vec::new();
    for &number in disks {
        let Some(disk) = plan.disks.get(number).filter(|disk| plan.machine(&disk.machine) == Some(me)) else {
            continue;
        };
        let wanted = Wanted { source: &disk.source, changed: disk.changed.as_deref(), format: Format::default() };
        let source = ImageSource::open(&wanted)
            .map_err(|failure| FailureKind::Failed.because(format!("disk {}: {}", disk.name, failure.message)))?;
        if let Some(why) = &source.without_map {
            return Err(Failure::failed(format!("disk {}: {why}: leave `changed` out to read all of it", disk.name)));
        }
        opened.push((u32::try_from(number).unwrap_or(u32::MAX), source));
    }
    Ok(opened)
}

/// A disk that is read.
type Reading<'a> = (SegmentReader<'a>, &'a ImageSource);

/// The disks, one after the other. Those that were cut stay open for the second reading.
pub(super) struct MachineDisks<'a> {
    cutter: Cutter,
    waiting: VecDeque<Reading<'a>>,
    cut: Vec<Reading<'a>>,
}

impl<'a> MachineDisks<'a> {
    pub(super) fn new(
        plan: &ClusterPlan,
        opened: &'a [Opened],
        progress: &'a dyn Progress,
    ) -> std::result::Result<Self, Failure> {
        let cutting = Cutting::new(&plan.chunker, plan.chunk_bytes, &plan.fingerprint);
        let cutter = cutting.cutter().map_err(|why| FailureKind::Usage.because(format!("the plan: {why}")))?;
        let reader = |(number, source): &'a Opened| {
            let segments = (source.to_detect(), source.reader());
            (SegmentReader::new(*number, cutter.clone(), segments, None, progress), source)
        };
        let waiting = opened.iter().map(reader).collect();
        Ok(Self { waiting, cut: Vec::new(), cutter })
    }
}

impl MachineDisks<'_> {
    /// The number of chunks of these disks, roughly.
    pub(super) fn expected_chunks(&self) -> u64 {
        let bytes: u64 = self.waiting.iter().map(|(disk, _)| disk.bytes_to_cut()).sum();
        bytes / self.cutter.mean_bytes().max(1) as u64
    }
}

/// Fails if a disk was changed since it was opened.
fn check(disk: u32, source: &ImageSource) -> Result<()> {
    match source.has_changed() {
        true => Err(Error::Disk { disk, why: "it was changed while it was read: read from a snapshot".to_owned() }),
        false => Ok(()),
    }
}

impl Disks for MachineDisks<'_> {
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
        while let Some((disk, source)) = self.waiting.front_mut() {
            if disk.next(asks)? {
                return Ok(true);
            }
            check(disk.disk, source)?;
            self.cut.extend(self.waiting.pop_front());
        }
        Ok(false)
    }

    fn read(&mut self, disk: u32, at: u64, into: &mut [u8]) -> Result<()> {
        let found = self.cut.iter_mut().find(|(reader, _)| reader.disk == disk);
        let missing = || Error::Disk { disk, why: "this machine does not have it".to_owned() };
        let (reader, source) = found.ok_or_else(missing)?;
        reader.read(disk, at, into)?;
        check(disk, source)
    }

    fn fingerprint(&self, bytes: &[u8]) -> [u8; 32] {
        self.cutter.fingerprint(bytes).0
    }
}
