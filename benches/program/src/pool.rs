//! The programs that are measured, and pools that they make and mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::command::Run;
use crate::options::PoolOptions;
use crate::{Outcome, cleanup, command, fail, figures, files, machine, say};

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Finds the programs in `DEDUPFS_BIN`, or builds them.
///
/// # Errors
/// A program of these is not there, or cannot be built.
pub fn find_programs(names: &[&str]) -> Outcome {
    let directory = match std::env::var_os("DEDUPFS_BIN").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(&directory)
            .canonicalize()
            .or_else(|_| fail(format!("DEDUPFS_BIN is not a directory: {}", directory.display())))?,
        None => build()?,
    };
    let directory = DIRECTORY.get_or_init(|| directory);
    match names.iter().find(|name| !program(name).is_file()) {
        Some(name) => fail(format!(
            "no program {name} in {}: examples belong into its directory examples, as Cargo puts them",
            directory.display()
        )),
        None => Ok(()),
    }
}

fn build() -> Outcome<PathBuf> {
    say!("building (set DEDUPFS_BIN to a directory with the programs to use those)");
    let cargo = || {
        let mut cargo = command!(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo
    };
    // Without this program, which runs.
    cargo().args(["build", "--release", "--locked", "--bins", "--examples"]).args(PACKAGES).run()?;
    let metadata = cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).text()?;
    let metadata: Value =
        serde_json::from_str(&metadata).or_else(|error| fail(format!("cannot read cargo metadata: {error}")))?;
    match metadata["target_directory"].as_str() {
        Some(target) => Ok(Path::new(target).join("release")),
        None => fail("cargo metadata names no target directory"),
    }
}

const PACKAGES: [&str; 8] = ["-p", "dedupfs", "-p", "dedupfs-detect", "-p", "dedupfs-fuse", "-p", "dedupfs-tools"];

/// Returns the path of a program or an example.
pub fn program(name: &str) -> PathBuf {
    let directory = DIRECTORY.get().cloned().unwrap_or_default();
    let path = directory.join(name);
    if path.is_file() { path } else { directory.join("examples").join(name) }
}

/// A pool, and the mountpoint for it.
pub struct Pool {
    /// Directory of the pool.
    pub path: PathBuf,
    /// Its mountpoint.
    pub mnt: PathBuf,
    mkfs: Vec<String>,
    mount: Vec<String>,
    /// The daemon, while it is mounted.
    pub daemon: Option<u32>,
}

impl Pool {
    /// Names a pool and makes its mountpoint. `mkfs` and `mount` are options of the commands.
    pub fn new(path: PathBuf, mnt: PathBuf, mkfs: &[String], mount: &[String]) -> Outcome<Self> {
        files::make_dir(&mnt)?;
        Ok(Self { path, mnt, mkfs: mkfs.to_vec(), mount: mount.to_vec(), daemon: None })
    }

    /// Returns a path in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    /// Formats the pool.
    pub fn format(&self) -> Outcome {
        dedupfs("mkfs").args(&self.mkfs).arg(&self.path).run()
    }

    /// Mounts the pool.
    pub fn mount(&mut self) -> Outcome {
        let options = self.mount.clone();
        self.mount_with(&options)
    }

    /// Mounts the pool with other options.
    pub fn mount_with(&mut self, options: &[String]) -> Outcome {
        cleanup::will_mount(&self.mnt);
        dedupfs("mount").args([&self.path, &self.mnt]).args(options).run()?;
        if !cleanup::is_mounted(&self.mnt) {
            return fail("dedupfs mount returned without a mount");
        }
        let lock = std::fs::read_to_string(self.path.join("lock")).unwrap_or_default();
        self.daemon = lock.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|pid| pid.parse().ok());
        Ok(())
    }

    /// Unmounts the pool.
    pub fn unmount(&mut self) -> Outcome {
        dedupfs("umount").arg(&self.mnt).run()?;
        if cleanup::is_mounted(&self.mnt) {
            return fail("dedupfs umount returned with the mount still there");
        }
        cleanup::forget_mount(&self.mnt);
        self.daemon = None;
        Ok(())
    }

    /// Copies the pool, which is not mounted and is one directory, to `path`, and makes the copy durable. Both have one mountpoint: mount one
    /// at a time.
    pub fn copy(&self, path: PathBuf) -> Outcome<Self> {
        command!("cp", "-a", &self.path, &path).run()?;
        command!("sync", "-f", &path).run()?;
        let (mnt, mkfs, mount) = (self.mnt.clone(), self.mkfs.clone(), self.mount.clone());
        Ok(Self { path, mnt, mkfs, mount, daemon: None })
    }

    /// Unmounts, drops the caches of the pool (or all of them), and mounts again.
    pub fn remount_cold(&mut self, drop_caches: bool) -> Outcome {
        self.unmount()?;
        files::cold(&self.path, drop_caches)?;
        self.mount()
    }

    /// Makes everything in the mount durable.
    pub fn sync(&self) -> Outcome {
        dedupfs("sync").arg(&self.mnt).run()
    }

    /// Checks the pool, which is not mounted.
    pub fn fsck(&self) -> Outcome {
        dedupfs("fsck").arg(&self.path).run()
    }

    /// Reclaims in the mounted pool.
    pub fn reclaim(&self) -> Outcome {
        command!(program("dedupfs-gc"), &self.mnt).run()
    }

    /// Returns bytes of memory of the daemon; see [`figures::memory_bytes`].
    pub fn memory_bytes(&self, field: &str) -> f64 {
        self.daemon.and_then(|pid| figures::memory_bytes(pid, field)).unwrap_or(0.0)
    }

    /// Returns the bytes that the daemon has read; see [`figures::read_bytes`].
    pub fn read_bytes(&self) -> Option<f64> {
        self.daemon.and_then(figures::read_bytes)
    }

    /// Returns the bytes that a thread of the daemon has read; see [`figures::read_bytes_of`].
    pub fn read_bytes_of(&self, thread: &str) -> Option<f64> {
        self.daemon.and_then(|pid| figures::read_bytes_of(pid, thread))
    }

    /// Reads the statistics.
    pub fn stats(&self) -> Outcome<Stats> {
        let target = if self.daemon.is_some() { &self.mnt } else { &self.path };
        let text = command!(program("dedupfs-stats"), "--json", target).text()?;
        let value = serde_json::from_str(&text);
        value.map(Stats).or_else(|error| fail(format!("cannot read the output of dedupfs-stats --json: {error}")))
    }
}

/// Returns a command of `dedupfs`.
pub fn dedupfs(name: &str) -> Command {
    command!(program("dedupfs"), name)
}

/// The statistics of a pool.
pub struct Stats(pub Value);

impl Stats {
    /// Returns a number; one of an object is named `object.name`.
    ///
    /// # Errors
    /// It is not there.
    pub fn number(&self, name: &str) -> Outcome<u64> {
        let found = self.0.pointer(&format!("/{}", name.replace('.', "/"))).and_then(Value::as_u64);
        found.map_or_else(|| fail(format!("dedupfs-stats --json has no {name}")), Ok)
    }

    /// Returns how often a component was at work since the mount, and its milliseconds; nothing if it was not.
    pub fn profile(&self, component: &str) -> Option<(f64, f64)> {
        let listed = self.0.pointer("/profile/components")?.as_array()?;
        let found = listed.iter().find(|one| one["name"] == component)?;
        Some((found["times"].as_f64()?, found["total_ms"].as_f64()?))
    }
}

/// Places of a measurement, and its pool.
pub struct Bench {
    /// Scratch directory on the filesystem to measure.
    pub work: PathBuf,
    /// Scratch directory in memory.
    pub ram: PathBuf,
    /// The pool and its mountpoint, in `work`.
    pub pool: Pool,
}

impl Bench {
    /// Makes them, if the machine has the programs and the bytes of memory and disk that are needed.
    pub fn new(programs: &[&str], commands: &[&str], options: &PoolOptions, memory: u64, disk: u64) -> Outcome<Self> {
        find_programs(programs)?;
        machine::need_commands(commands)?;
        machine::need_memory(memory)?;
        let (work, ram) = (cleanup::scratch(&options.dir)?, cleanup::scratch("/dev/shm".as_ref())?);
        machine::need_room(&work, disk)?;
        let pool = Pool::new(work.join("pool"), work.join("mnt"), &options.mkfs.0, &options.mount.0)?;
        Ok(Self { work, ram, pool })
    }
}
