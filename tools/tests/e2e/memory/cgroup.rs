//! A memory cgroup for one program: the kernel kills a program that exceeds the limit.
//!
//! Uses version 2 if it has the memory controller, else version 1. Without a usable cgroup, standard error says so, and
//! only the process's own figures are checked.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A memory cgroup with a limit, removed when dropped.
pub struct Cgroup {
    path: PathBuf,
    /// Whether the group is of version 2.
    is_unified: bool,
}

impl Cgroup {
    /// Makes a group that may use `limit_bytes` of all kinds of memory. The page cache counts too, and the kernel takes
    /// it back first.
    pub fn with_limit(limit_bytes: u64) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("dedupfs-e2e-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let made = [(unified(), true), (of_version_1(), false)].into_iter().find_map(|(parent, is_unified)| {
            let path = parent?.join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path, is_unified };
            let limit = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
            group.write(limit, &limit_bytes.to_string()).ok().map(|()| group)
        });
        if made.is_none() {
            // The test harness swallows eprintln.
            let _ = writeln!(
                std::io::stderr(),
                "no memory cgroup: neither version 2 nor version 1 of cgroups gives this machine's root a memory controller here. \
                 Memory is measured, but not limited"
            );
        }
        made
    }

    /// Returns the file to which a program writes its process id to join the group.
    pub fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns the version of cgroups.
    pub fn version(&self) -> u32 {
        if self.is_unified { 2 } else { 1 }
    }

    /// Returns the group's anonymous memory from memory.stat.
    pub fn anonymous_bytes(&self) -> u64 {
        let name = if self.is_unified { "anon " } else { "rss " };
        let stat = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        stat.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or(0)
    }

    fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.path.join(file), value)
    }
}

impl Drop for Cgroup {
    /// Removes the group, which is possible once its last process has ended.
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} stays", self.path.display());
    }
}

/// Returns the mountpoint of version 2, if groups below it get the memory controller.
fn unified() -> Option<PathBuf> {
    let mount = mounted("cgroup2", "")?;
    let controls = |file: &str| {
        let controllers = fs::read_to_string(mount.join(file)).unwrap_or_default();
        controllers.split_whitespace().any(|controller| controller == "memory")
    };
    if controls("cgroup.controllers") && !controls("cgroup.subtree_control") {
        // The kernel refuses this where processes are in the group: then version 2 cannot be used here.
        let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
    }
    controls("cgroup.subtree_control").then_some(mount)
}

fn of_version_1() -> Option<PathBuf> {
    mounted("cgroup", "memory")
}

/// Returns the mountpoint of a filesystem with this type and option.
fn mounted(kind: &str, option: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let &[_, place, of_kind, options, ..] = fields.as_slice() else { return None };
        let fits = of_kind == kind && (option.is_empty() || options.split(',').any(|one| one == option));
        fits.then(|| Path::new(place).to_owned())
    })
}
