//! The end of a round at the machine with the pool: new chunks and records land in files, one pair for each disk. When all have landed, each disk
//! is put, in the order of the plan: so a chunk that several disks have new is stored before it is named. Then the round is committed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use dedupfs::transfer::{Change, Changes, Cutting, ImageBase, ImageOptions, NamedImage, TransferReport, VerifyImage};
use dedupfs::{Origin, Progress, is_frozen};
use dedupfs_batch::cluster::{ClusterDisk, ClusterPlan};
use dedupfs_detect::{Answer, Chunk, Error, Landing, Pool, Record, Result, Rounds};

use super::report::DiskOutcome;
use crate::changes;
use crate::control::{ControlClient, Failure, FailureKind, PutImageRequest};
use crate::hidden::HiddenDirectory;
use crate::image_version::ImageVersion;
use crate::inside::{self, NewName};
use crate::staged::index::DaemonIndex;
use crate::staged::names::Names;
use crate::versions::Directory;

/// The step that helps where what was read is not enough.
const READ_IT: &str = "leave `changed` out, or put it with `dedupfs put --image`";

/// Bytes of named chunks that are written at once: there are many disks.
const BUFFER_BYTES: usize = 4 << 10;
/// Bytes of the job's hash in a token.
const JOB_BYTES: usize = 8;

/// What has landed of a disk.
struct Landed {
    names: Names,
    /// The new chunks at their places, and nothing else.
    new: File,
    /// The ranges of all records, in order.
    ranges: Vec<Change>,
}

impl Landed {
    fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.to)
    }
}

/// Takes a round into a pool.
pub(super) struct PoolLanding<'a> {
    plan: &'a ClusterPlan,
    rounds: &'a Rounds,
    round: ([u8; 32], u64),
    index: DaemonIndex<ControlClient>,
    pool: PathBuf,
    landed: BTreeMap<u32, Landed>,
    outcomes: Vec<DiskOutcome>,
    progress: &'a dyn Progress,
}

impl<'a> PoolLanding<'a> {
    pub(super) fn new(
        plan: &'a ClusterPlan,
        rounds: &'a Rounds,
        round: ([u8; 32], u64),
        disks: &[usize],
        progress: &'a dyn Progress,
    ) -> std::result::Result<Self, Failure> {
        let (index, pool) = check_pool(plan)?;
        let mut landed = BTreeMap::new();
        for &disk in disks {
            let new = tempfile::tempfile_in(&plan.work)
                .map_err(|error| Failure::failed(format!("cannot make a file in {}: {error}", plan.work.display())))?;
            let number = u32::try_from(disk).unwrap_or(u32::MAX);
            landed.insert(number, Landed { names: Names::new(&plan.work, BUFFER_BYTES)?, new, ranges: Vec::new() });
        }
        Ok(Self { plan, rounds, round, index, pool, landed, outcomes: Vec::new(), progress })
    }

    pub(super) fn into_outcomes(self) -> Vec<DiskOutcome> {
        self.outcomes
    }

    /// Puts a disk. Returns none if its version, with its token, is there already: a round that was not committed put it.
    fn put(&self, disk: &ClusterDisk, landed: Landed) -> std::result::Result<Option<TransferReport>, Failure> {
        let directory = self.plan.pool.join(&disk.name);
        let destination = directory.join(&self.plan.night);
        if let Some(is_ours) = is_stored(self.plan, &self.round.0, disk) {
            return match is_ours {
                true => Ok(None),
                false => Err(Failure::failed(format!(
                    "{} is there already, and is another version: choose another night",
                    destination.display()
                ))),
            };
        }
        let failed =
            |error: std::io::Error| Failure::failed(format!("cannot put into {}: {error}", directory.display()));
        std::fs::create_dir_all(&directory).map_err(failed)?;
        landed.new.set_len(landed.end()).map_err(failed)?;
        // What was read is what changed.
        let changes = disk.changed.is_some().then(|| Changes::new(landed.ranges)).transpose();
        let map = changes.map_err(|error| Failure::failed(error.to_string()))?;
        let map = map.as_ref().map(changes::as_file).transpose().map_err(failed)?;
        let named = landed.names.finish().map_err(failed)?;
        let to = NewName::at(&destination)?;
        let place = inside::find(&to.directory)?.ok_or_else(|| Failure::failed("the pool is not mounted any more"))?;
        let source = disk.source.as_os_str().as_bytes().to_vec();
        let origin = Origin { source, host: disk.machine.clone().into_bytes() };
        let hidden = HiddenDirectory::make(&to.directory, Some(&origin))?;
        let options = ImageOptions {
            base: ImageBase::LastIn(place.ino),
            default_file_name: disk.source.file_name().map_or(b"image".to_vec(), |name| name.as_bytes().to_vec()),
            token_from: disk.token_from.clone(),
            token: Some(token(&self.round.0, disk)),
            named: NamedImage::IsAll,
            verify: VerifyImage::None,
            origin,
            ..ImageOptions::default()
        };
        let request = PutImageRequest { into: hidden.ino, name: to.name.as_bytes().to_vec(), options };
        let files = (landed.new.as_fd(), Some(named.as_fd()), map.as_ref().map(AsFd::as_fd));
        let mut daemon = inside::daemon(&self.pool, inside::COPIES_NEED_NO_DAEMON)?;
        let put = daemon.put_image(request, files, self.progress);
        let advised = |failure: Failure| match disk.changed {
            Some(_) if failure.kind == FailureKind::Failed => {
                failure.kind.because(format!("{}: {READ_IT}", failure.message))
            }
            _ => failure,
        };
        let put = put.map_err(advised).and_then(|report| {
            hidden.give_name(&to.name, &destination)?;
            to.directory.sync_all().map_err(failed)?;
            Ok(report)
        });
        hidden.remove_or_tell(&destination);
        put.map(Some)
    }
}

/// The token of a version. Without one in the plan, the job tells this version from others.
fn token(job: &[u8; 32], disk: &ClusterDisk) -> String {
    let of_job = || job.iter().take(JOB_BYTES).fold("job-".to_owned(), |text, byte| text + &format!("{byte:02x}"));
    disk.token.clone().unwrap_or_else(of_job)
}

/// Whether a disk has its version, with its token; `None` if nothing has that name.
pub(super) fn is_stored(plan: &ClusterPlan, job: &[u8; 32], disk: &ClusterDisk) -> Option<bool> {
    let version = plan.pool.join(&disk.name).join(&plan.night);
    version.symlink_metadata().ok()?;
    let is_frozen = version.metadata().is_ok_and(|metadata| is_frozen(metadata.ino()));
    let image = ImageVersion::of(&version).ok().flatten().filter(|_| is_frozen);
    Some(image.and_then(|image| image.token).is_some_and(|found| found == token(job, disk)))
}

/// Opens the pool of a plan, if it cuts content as the plan says, and trusts fingerprints.
pub(super) fn check_pool(plan: &ClusterPlan) -> std::result::Result<(DaemonIndex<ControlClient>, PathBuf), Failure> {
    let directory = Directory::open(&plan.pool).map_err(|failure| {
        let (shown, why) = (plan.pool.display(), &failure.message);
        FailureKind::Usage.because(format!("the pool of the plan, {shown}: is it mounted? {why}"))
    })?;
    let mut daemon = directory.daemon()?;
    let (cutting, planned) = (daemon.cutting()?, Cutting::new(&plan.chunker, plan.chunk_bytes, &plan.fingerprint));
    if cutting != planned {
        let why = format!("the pool cuts content in another way than the plan says: write {cutting}");
        return Err(FailureKind::Usage.because(why));
    }
    let mut index = DaemonIndex::new(daemon)?;
    // A pool that takes no chunks by name says so before disks are read.
    let nobody = Chunk { fingerprint: [1; 32], len_bytes: 1 };
    index.ask(&[nobody]).map_err(|error| Failure::failed(error.to_string()))?;
    Ok((index, directory.place.pool))
}

impl Pool for PoolLanding<'_> {
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>> {
        self.index.ask(chunks)
    }
}

impl Landing for PoolLanding<'_> {
    fn land(&mut self, disk: u32, record: &Record, bytes: Option<&[u8]>) -> Result<()> {
        let landed = self.landed.get_mut(&disk);
        let landed = landed.ok_or_else(|| Error::Disk { disk, why: "it is not of this round".to_owned() })?;
        let failed = |source| Error::Io { step: "land new chunks", directory: self.plan.work.clone(), source };
        landed.names.add(record).map_err(failed)?;
        if let Some(bytes) = bytes {
            landed.new.write_all_at(bytes, record.at).map_err(failed)?;
        }
        let to = record.at + u64::from(record.len_bytes);
        match landed.ranges.last_mut() {
            Some(last) if last.to == record.at => last.to = to,
            _ => landed.ranges.push(Change { from: record.at, to, is_zero: false }),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let mut stored = Vec::new();
        for (number, landed) in std::mem::take(&mut self.landed) {
            let Some(disk) = self.plan.disks.get(number as usize) else { continue };
            if self.progress.is_cancelled() {
                return Err(Error::Ended);
            }
            let put = self.put(disk, landed);
            if self.progress.is_cancelled() && put.is_err() {
                return Err(Error::Ended);
            }
            if put.is_ok() {
                stored.push(disk.name.clone());
            }
            self.outcomes.push(DiskOutcome::new(&disk.name, put));
        }
        let (job, round) = &self.round;
        self.rounds.commit(job, *round, &stored)
    }
}
