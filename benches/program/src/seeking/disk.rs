//! A disk with one arm that a program emulates in real time, and a filesystem on it.
//!
//! nbdkit with the plugin `disk.c` → nbdfuse, which makes a file of it → loop device → ext4.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::Run;
use crate::figures::timed;
use crate::{Outcome, cleanup, command, fail, files, nbdkit};

const PLUGIN: &str = include_str!("disk.c");
const PROGRAMS: [&str; 6] = ["nbdfuse", "mkfs.ext4", "losetup", "mount", "umount", "setsid"];

/// Fails if this process cannot emulate disks.
pub fn need_prerequisites() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return fail("loop devices need root");
    }
    nbdkit::need_prerequisites(&PROGRAMS)
}

/// A disk with a fresh ext4, which is mounted.
pub struct Disk {
    /// The mountpoint.
    pub root: PathBuf,
    /// The disk as a file.
    device: PathBuf,
    /// Content and counters.
    image: PathBuf,
    counters: PathBuf,
    process: PathBuf,
}

/// Work of the disk, and the time that it took with everything else.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// Seconds on the clock.
    pub seconds: f64,
    /// Seconds of the arm.
    pub arm_seconds: f64,
    pub seeks: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
}

impl Disk {
    /// Makes a disk of so many bytes, whose content lies in memory.
    pub fn new(ram: &Path, bytes: u64) -> Outcome<Self> {
        let at = |name: &str| ram.join(name);
        // Beside the file of the disk.
        let plugin = nbdkit::build("plugin", PLUGIN, ram)?;
        let (root, device) = (at("hdd"), at("disk"));
        let disk = Self { root, device, image: at("image"), counters: at("counters"), process: at("process") };
        File::create(&disk.image).and_then(|file| file.set_len(bytes)).or_else(files::at("make", &disk.image))?;
        command!("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=1", &disk.image).run()?;
        File::create(&disk.device).or_else(files::at("make", &disk.device))?;
        files::make_dir(&disk.root)?;
        let parameter = |name: &str, path: &Path| format!("{name}={}", path.display());
        cleanup::will_mount_plain(&disk.device);
        // In a session of its own, so that it outlives the mounts. Requests reach the disk one by one, in their order.
        command!("setsid", "--fork", "nbdfuse", "-s", "-P", &disk.process, &disk.device, "[", "nbdkit")
            .args(["--exit-with-parent", "-f"])
            .arg(&plugin)
            .arg(parameter("file", &disk.image))
            .arg(parameter("counters", &disk.counters))
            .args([&format!("size={bytes}"), "]"])
            .run()?;
        disk.wait("nbdfuse does not mount", || cleanup::is_mounted(&disk.device) && disk.process.exists())?;
        cleanup::will_mount_plain(&disk.root);
        // The loop device ends with the mount.
        command!("mount", "-o", "loop,noatime,noinit_itable", &disk.device, &disk.root).run()?;
        let attached = command!("losetup", "-n", "-O", "NAME", "-j", &disk.device).text()?;
        command!("losetup", "--direct-io=on", attached.trim()).run()?;
        // As of a real disk.
        let read_ahead =
            Path::new("/sys/block").join(attached.trim().trim_start_matches("/dev/")).join("queue/read_ahead_kb");
        fs::write(&read_ahead, "128").or_else(files::at("write", &read_ahead))?;
        Ok(disk)
    }

    fn wait(&self, failure: &str, is_done: impl Fn() -> bool) -> Outcome {
        for _ in 0..200 {
            cleanup::check().or_else(files::at("use", &self.device))?;
            if is_done() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        fail(failure)
    }

    /// Does some work, makes what was written durable, and tells the cost of both.
    pub fn measure(&self, work: impl FnOnce() -> Outcome) -> Outcome<Cost> {
        let before = self.counts()?;
        let seconds = timed(|| {
            work()?;
            let synced = File::open(&self.root).and_then(|root| Ok(rustix::fs::syncfs(root)?));
            synced.or_else(files::at("sync", &self.root))
        })?;
        let after = self.counts()?;
        let of = |at: usize| (after[at] - before[at]) as f64;
        Ok(Cost { seconds, arm_seconds: of(5) / 1e9, seeks: of(0), read_bytes: of(1), written_bytes: of(2) })
    }

    fn counts(&self) -> Outcome<[u64; 6]> {
        let bytes = fs::read(&self.counters).or_else(files::at("read", &self.counters))?;
        let mut counts = [0; 6];
        for (count, bytes) in counts.iter_mut().zip(bytes.as_chunks().0) {
            *count = u64::from_ne_bytes(*bytes);
        }
        Ok(counts)
    }

    /// Unmounts and removes the disk.
    pub fn end(self) -> Outcome {
        let pid = fs::read_to_string(&self.process).or_else(files::at("read", &self.process))?;
        command!("umount", &self.root).run()?;
        cleanup::forget_mount(&self.root);
        // The loop device may need a moment.
        self.wait("the disk stays in use", || command!("umount", "-q", &self.device).run().is_ok())?;
        cleanup::forget_mount(&self.device);
        let process = Path::new("/proc").join(pid.trim());
        self.wait("nbdfuse does not end", || !process.exists())?;
        [&self.root, &self.device, &self.image, &self.process, &self.counters]
            .into_iter()
            .try_for_each(|path| files::remove(path))
    }
}
