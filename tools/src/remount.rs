//! `mount -o remount,ro MNT` and `remount,rw`: the kernel and the daemon are switched in the order in which nothing can slip
//! through.
//!
//! The kernel tells a FUSE daemon nothing of a remount. Read-only: the daemon is asked whether it would refuse; then the kernel, which
//! refuses while files are open for writing and writes back what it caches; then the daemon makes everything durable and writes
//! nothing more. Writable: the daemon first, which may refuse. When the last step fails, the one before is taken back.
//!
//! What else the kernel keeps of a mount (nodev, nosuid, noexec, noatime, sync, dirsync) can be changed as well. Memory, filters,
//! limits and threads are those of the daemon until it ends: other values are named in a warning and passed over, since mount(8)
//! repeats what stands in fstab.

use std::path::Path;

use dedupfs::control::{Failure, FailureKind};
use dedupfs::pool::{PoolStats, SpaceLimits};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::mount_options::{self, Options};
use crate::mountinfo::MountEntry;
use crate::{silence, target};

/// Who gave the options of a remount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Whoever typed them.
    CommandLine,
    /// mount(8), which adds what stands in fstab.
    Mount,
}

/// Options that set or clear a flag of the kernel.
const FLAGS: [(&str, MountFlags, bool); 15] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("relatime", MountFlags::RELATIME, true),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
];

/// Flags with options applied in their order.
fn apply<'a>(flags: MountFlags, options: impl IntoIterator<Item = &'a str>) -> MountFlags {
    options.into_iter().fold(flags, |mut flags, option| {
        if let Some((_, flag, is_set)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            flags.set(*flag, *is_set);
        }
        flags
    })
}

/// Changes the mount at `mountpoint`; `lists` are the options that mount(8) gives, those that it has already included.
///
/// # Errors
/// Nothing of ours is mounted there; the user may not; files are open for writing; not everything could be made durable.
pub fn run(mountpoint: &Path, lists: &[String], origin: Origin) -> Result<(), Failure> {
    let mount = target::mounted_at(mountpoint)?.ok_or_else(|| {
        Failure::new(FailureKind::MountpointUnusable, format!("no dedupfs is mounted on {}", mountpoint.display()))
    })?;
    // An option that makes no sense changes nothing.
    let given = mount_options::parse(&mount.source, lists)?;
    let before = apply(MountFlags::empty(), mount.options.split(','));
    let options = mount_options::split(lists);
    let mut wanted = apply(before, options.iter().map(String::as_str));
    if origin == Origin::Mount {
        // It repeats what the mount has, and leaves out what is the default: the flags that are not named are to be cleared.
        let is_named = |name: &str| options.iter().any(|option| option == name);
        wanted.set(MountFlags::NODEV, is_named("nodev"));
        wanted.set(MountFlags::NOSUID, is_named("nosuid"));
    }
    if wanted.contains(MountFlags::RDONLY) {
        if !before.contains(MountFlags::RDONLY) {
            prepare_read_only(&mount)?;
        }
        change(&mount, wanted)?;
        set_read_only(&mount, true).inspect_err(|_| take_back(&mount, before))?;
    } else {
        set_read_only(&mount, false)?;
        change(&mount, wanted).inspect_err(|_| {
            if before.contains(MountFlags::RDONLY)
                && let Err(failure) = set_read_only(&mount, true)
            {
                eprintln!("dedupfs: warning: the pool stays writable below its mount: {failure}");
            }
        })?;
    }
    let is_stated = given.memory_bytes.is_some() || given.limits != SpaceLimits::default();
    let stats = if is_stated { stats_of(&mount.source) } else { None };
    let kept = kept(&given, &options, origin, stats.as_ref());
    if !kept.is_empty() {
        eprintln!(
            "dedupfs: warning: a remount does not change {}: what the mount began with holds until it is unmounted and mounted again",
            kept.join(", ")
        );
    }
    Ok(())
}

/// Asks the daemon whether it would refuse: the kernel's mount must not become read-only for a moment, beside the daemon's own work.
fn prepare_read_only(mount: &MountEntry) -> Result<(), Failure> {
    let Some(mut client) = silence::connect(&mount.source)? else { return Ok(()) };
    match client.prepare_read_only() {
        // A daemon of an older version does not know the question, and refuses later.
        Err(failure) if failure.kind == FailureKind::Usage => Ok(()),
        answer => answer,
    }
}

/// Only for a warning: a daemon that cannot be asked is no failure.
fn stats_of(pool: &Path) -> Option<PoolStats> {
    silence::connect(pool).ok()??.stats().ok()
}

/// Names of options that were given another value than the one that stays in effect; and of those that may be, if it is not known.
fn kept(given: &Options, options: &[String], origin: Origin, stats: Option<&PoolStats>) -> Vec<&'static str> {
    let is_given = |name: &str| options.iter().any(|option| option.split('=').next() == Some(name));
    // What the daemon does not tell: mount(8) repeats what stands in fstab, which then is no request.
    let is_changed = |is_other: Option<bool>| is_other.unwrap_or(origin == Origin::CommandLine);
    let is_other_limit = |name: &str, limit_bytes: Option<u64>| {
        stats.map(|stats| stats.roots.iter().any(|root| root.name == name && root.limit_bytes != limit_bytes))
    };
    [
        ("memory", stats.map(|stats| given.memory_bytes.is_some_and(|bytes| bytes != stats.memory.limit_bytes))),
        ("data_limit", is_other_limit("data", given.limits.data_bytes)),
        ("meta_limit", is_other_limit("meta", given.limits.meta_bytes)),
        ("threads", None),
        ("keep_awake", None),
        ("filters", None),
        ("log_file", None),
        ("gc", None),
        ("gc_threshold", None),
        ("gc_leave", None),
        ("gc_share", None),
        ("gc_window", None),
        ("gc_interval", None),
    ]
    .into_iter()
    .filter(|(name, is_other)| is_given(name) && is_changed(*is_other))
    .map(|(name, _)| name)
    .collect()
}

fn take_back(mount: &MountEntry, before: MountFlags) {
    if let Err(failure) = change(mount, before) {
        eprintln!("dedupfs: warning: the mount stays read-only: {failure}");
    }
}

fn change(mount: &MountEntry, flags: MountFlags) -> Result<(), Failure> {
    let shown = mount.mountpoint.display();
    rustix::mount::mount_remount(&mount.mountpoint, flags, c"").map_err(|error| {
        let (kind, text) = match error {
            Errno::BUSY => (
                FailureKind::MountpointUnusable,
                format!("files on {shown} are open for writing: `fuser -vm {shown}` tells by whom"),
            ),
            Errno::PERM | Errno::ACCESS => {
                (FailureKind::FuseUnavailable, format!("only root may change the mount on {shown}"))
            }
            error => (FailureKind::Failed, format!("the kernel does not change the mount on {shown}: {error}")),
        };
        Failure::new(kind, text)
    })
}

fn set_read_only(mount: &MountEntry, read_only: bool) -> Result<(), Failure> {
    let (pool, shown) = (&mount.source, mount.mountpoint.display());
    match silence::connect(pool)? {
        Some(mut client) => client.set_read_only(read_only),
        // There is no socket, nor anything to write.
        None if read_only && cannot_be_written(pool) => Ok(()),
        None if read_only && !crate::mount::is_dead(&mount.mountpoint) => {
            Err(Failure::failed(format!("the daemon of {shown} does not answer: is everything durable there?")))
        }
        None => Err(Failure::failed(format!(
            "the daemon of {shown} does not answer: unmount pool {}, and mount it again",
            pool.display()
        ))),
    }
}

/// Whether the disk of a pool is read-only as it is mounted here.
#[must_use]
pub fn cannot_be_written(pool: &Path) -> bool {
    rustix::fs::statvfs(pool).is_ok_and(|space| space.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs::pool::RootSpace;

    use super::*;

    #[test]
    fn flags_follow_the_options_in_their_order() {
        let shown = apply(MountFlags::empty(), "rw,nosuid,nodev,noatime,relatime".split(','));
        assert_eq!(shown, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME | MountFlags::RELATIME);
        let wanted = apply(shown, ["rw", "remount", "dev", "noexec", "ro"]);
        let kept = MountFlags::NOSUID | MountFlags::NOATIME | MountFlags::RELATIME;
        assert_eq!(wanted, kept | MountFlags::NOEXEC | MountFlags::RDONLY);
        assert!(!apply(wanted, ["rw"]).contains(MountFlags::RDONLY));
    }

    #[test]
    fn options_that_a_remount_does_not_change_are_named() {
        let mut stats = PoolStats::default();
        stats.memory.limit_bytes = 256 << 20;
        stats.roots = ["data", "meta"].map(|name| RootSpace { name: name.to_owned(), ..RootSpace::default() }).into();
        stats.roots[0].limit_bytes = Some(2 << 40);
        let kept = |list: &str, origin, stats| {
            let lists = [list.to_owned()];
            let given = mount_options::parse(Path::new("/pool"), &lists).unwrap();
            kept(&given, &mount_options::split(&lists), origin, stats)
        };
        let in_effect = "remount,ro,memory=256M,data_limit=2T,threads=4";
        assert!(kept(in_effect, Origin::Mount, Some(&stats)).is_empty());
        assert_eq!(kept(in_effect, Origin::CommandLine, Some(&stats)), ["threads"]);
        let others = "memory=1G,data_limit=1T,meta_limit=1G,filters=zero:sealed,log_file=/log";
        assert_eq!(kept(others, Origin::Mount, Some(&stats)), ["memory", "data_limit", "meta_limit"]);
        assert_eq!(kept(others, Origin::CommandLine, None).len(), 5);
        assert!(kept(others, Origin::Mount, None).is_empty());
    }
}
