//! From photographs to verdicts: chooses the power losses at each photograph, counts them, and crashes the recovery
//! itself.
//!
//! A crash point is one image: a possible state of the disks after a power loss at one operation. An image that was
//! examined before is not counted or opened again. Its recorded state is judged anew, because more may be durable by
//! now.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::device::observed::Observer;

use crate::camera::{Camera, Ledger, Photograph};
use crate::disks::{Disks, observed};
use crate::random::Random;
use crate::verdict;

/// Depth of power losses during recovery: one in the recovery, and one in the recovery of that.
const DEPTH_MAX: usize = 2;
/// One in this many images of the work has its recovery photographed.
const RECOVERY_ONE_IN: u64 = 600;
/// One in this many images of a recovery has its own recovery photographed.
const RECOVERY_OF_RECOVERY_ONE_IN: u64 = 500;
/// One in this many images is worked on afterwards.
const GO_ON_ONE_IN: u64 = 10;

/// Counts of the work so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub workloads: u64,
    pub operations: u64,
    /// Different images, opened and verified.
    pub points: u64,
    /// The points after a power loss during recovery, at both depths. They are part of `points`.
    pub recoveries: [u64; DEPTH_MAX],
    /// Images that had been seen before.
    pub repeated: u64,
    /// Images that were worked on afterwards.
    pub gone_on: u64,
    /// Images of disks of which only what had changed was read.
    pub images_by_map: u64,
    pub images_by_name: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.operations += other.operations;
        self.points += other.points;
        self.recoveries.iter_mut().zip(other.recoveries).for_each(|(sum, more)| *sum += more);
        self.repeated += other.repeated;
        self.gone_on += other.gone_on;
        self.images_by_map += other.images_by_map;
        self.images_by_name += other.images_by_name;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash points in {} workloads of {} operations; {} of them in recoveries, {} in recoveries of those; \
             {} gone on with; {} images of disks put by a map, {} by the names of chunks; {} images repeated and not counted",
            self.points,
            self.workloads,
            self.operations,
            self.recoveries[0],
            self.recoveries[1],
            self.gone_on,
            self.images_by_map,
            self.images_by_name,
            self.repeated
        )
    }
}

/// A moment and a choice of losses: `operation:variant`. Those of recoveries follow, each after a slash.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point(pub Vec<(u64, u32)>);

impl Point {
    fn then(&self, operation: u64, variant: u32) -> Self {
        Self(self.0.iter().copied().chain([(operation, variant)]).collect())
    }

    pub fn parse(text: &str) -> Option<Self> {
        let step = |step: &str| {
            let (operation, variant) = step.split_once(':')?;
            Some((operation.parse().ok()?, variant.parse().ok()?))
        };
        text.split('/').map(step).collect::<Option<_>>().map(Self)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.0.iter().map(|(operation, variant)| format!("{operation}:{variant}")).collect();
        f.write_str(&steps.join("/"))
    }
}

/// An image from which a pool does not recover correctly.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub point: Point,
    pub what: String,
    pub call: String,
    pub image: PathBuf,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, point, image) = (self.seed, &self.point, self.image.display());
        let command = "cargo test --test crash power_loss";
        writeln!(f, "power lost at {seed}:{point}, before {}: {}", self.call, self.what)?;
        writeln!(f, "the same work again: DEDUPFS_CRASH={seed}:{point} {command}")?;
        write!(f, "the very image: DEDUPFS_CRASH_IMAGE={image} {command}")
    }
}

/// Examines the photographs of a workload's camera.
pub struct Inspector {
    seed: u64,
    seen: HashMap<(u128, u128), Arc<str>>,
    images: PathBuf,
    pub tally: Tally,
    /// Examines only this point, with everything that can be done at it; `None`: all points.
    only: Option<Point>,
}

impl Inspector {
    /// Creates an inspector that writes images of failures into the directory `images`.
    pub fn new(seed: u64, images: &Path, only: Option<Point>) -> Self {
        Self { seed, seen: HashMap::new(), images: images.to_owned(), tally: Tally::default(), only }
    }

    pub fn inspect(&mut self, photographs: Vec<Photograph>) -> Result<(), Box<Failure>> {
        self.tally.operations += photographs.len() as u64;
        photographs.iter().try_for_each(|photograph| self.photograph(photograph, &Point::default()))
    }

    /// Chooses the losses to try at a photograph. An operation that makes nothing durable needs only one partial loss,
    /// because the next operation shows the same unsynced changes and one more.
    fn variants(&self, photograph: &Photograph, at: &Point) -> Vec<u32> {
        if let Some(only) = &self.only {
            return match only.0.get(at.0.len()) {
                Some(&(operation, variant)) if operation == photograph.operation => vec![variant],
                _ => Vec::new(),
            };
        }
        let two = photograph.disks.data.is_some();
        match (photograph.is_barrier, two) {
            (true, true) => vec![0, 1, 2, 3, 4, 5, 6],
            (true, false) => vec![0, 1, 4, 5, 6],
            (false, _) => vec![1, 4],
        }
    }

    fn photograph(&mut self, photograph: &Photograph, at: &Point) -> Result<(), Box<Failure>> {
        for variant in self.variants(photograph, at) {
            let point = at.then(photograph.operation, variant);
            let seed = self.seed ^ (photograph.operation << 8) ^ ((at.0.len() as u64) << 60);
            let image = photograph.disks.crash(variant, seed);
            self.image(photograph, &image, &point).map_err(|what| self.failure(photograph, &image, &point, what))??;
        }
        Ok(())
    }

    /// Examines one image. The outer error is about this image, the inner one about a recovery of it.
    fn image(
        &mut self,
        photograph: &Photograph,
        image: &Disks,
        point: &Point,
    ) -> Result<Result<(), Box<Failure>>, String> {
        let hash = image.content_hash();
        if let Some(seen) = self.seen.get(&hash) {
            self.tally.repeated += 1;
            return verdict::judge(seen, &photograph.allowed).map(Ok);
        }
        let depth = point.0.len() - 1;
        let seen: Arc<str> = verdict::examine(&image.fork().roots())?.into();
        self.tally.points += 1;
        if depth > 0 {
            self.tally.recoveries[depth - 1] += 1;
        }
        self.seen.insert(hash, seen.clone());
        verdict::judge(&seen, &photograph.allowed)?;
        // The image's hash makes the choices, so that equal images are treated equally.
        let mut random = Random::new(hash.0 as u64 ^ hash.1 as u64);
        let is_only = self.only.as_ref().is_some_and(|only| only == point);
        if random.one_in(GO_ON_ONE_IN) || is_only {
            self.tally.gone_on += 1;
            verdict::go_on(&image.fork(), &seen)?;
        }
        let one_in = if depth == 0 { RECOVERY_ONE_IN } else { RECOVERY_OF_RECOVERY_ONE_IN };
        let is_on_the_way =
            self.only.as_ref().is_some_and(|only| only.0.len() > point.0.len() && only.0.starts_with(&point.0));
        let is_chosen = self.only.is_none() && random.one_in(one_in) || is_on_the_way;
        if depth < DEPTH_MAX && is_chosen {
            return self.recovery(image, &seen, point);
        }
        Ok(Ok(()))
    }

    /// Lets the power fail during the recovery and the close after it. Every image of that must show the same state.
    fn recovery(&mut self, image: &Disks, seen: &Arc<str>, point: &Point) -> Result<Result<(), Box<Failure>>, String> {
        let disks = image.fork();
        let camera = Arc::new(Camera::new(&disks, Ledger { states: vec![seen.clone()], durable: 0 }, None));
        let observer: Arc<dyn Observer> = camera.clone();
        verdict::mount_and_close(&observed(&disks.roots(), &observer))?;
        camera.photograph_now();
        Ok(camera.develop().iter().try_for_each(|photograph| self.photograph(photograph, point)))
    }

    fn failure(&self, photograph: &Photograph, image: &Disks, point: &Point, what: String) -> Box<Failure> {
        // Tests of one process may reach the same point at the same time.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("crash-{}-{}-{number}", self.seed, point.to_string().replace([':', '/'], "-"));
        let place = self.images.join(name);
        let what = match save(&place, image, &photograph.allowed) {
            Ok(()) => what,
            Err(error) => format!("{what} (and the image cannot be written to {}: {error})", place.display()),
        };
        Box::new(Failure { seed: self.seed, point: point.clone(), what, call: photograph.call.clone(), image: place })
    }
}

const ALLOWED: &str = "allowed";
const BETWEEN_STATES: &str = "----\n";

/// Writes an image and its allowed states to a directory.
fn save(place: &Path, image: &Disks, allowed: &[Arc<str>]) -> std::io::Result<()> {
    let _may_be_absent = std::fs::remove_dir_all(place);
    std::fs::create_dir_all(place)?;
    let states: Vec<&str> = allowed.iter().map(|state| &**state).collect();
    std::fs::write(place.join(ALLOWED), states.join(BETWEEN_STATES))?;
    image.save(place).map_err(std::io::Error::other)
}

/// Examines an image that a failed run has saved.
pub fn examine_saved(place: &Path) -> Result<(), String> {
    let disks = Disks::load(place).map_err(|error| format!("{} cannot be loaded: {error}", place.display()))?;
    let states = std::fs::read_to_string(place.join(ALLOWED)).map_err(|error| error.to_string())?;
    let allowed: Vec<Arc<str>> = states.split(BETWEEN_STATES).map(Arc::from).collect();
    let seen = verdict::examine(&disks.fork().roots())?;
    verdict::judge(&seen, &allowed)?;
    verdict::go_on(&disks, &seen)
}
