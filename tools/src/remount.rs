//! `mount -o remount,ro MNT` and `remount,rw`: switches the kernel and the daemon in an order that lets no write slip through.
//!
//! The kernel does not tell a FUSE daemon of a remount. To read-only:
//! 1. The daemon is asked whether it would refuse.
//! 2. The kernel is switched. It refuses while files are open for writing, and writes back its cache.
//! 3. The daemon makes everything durable and writes nothing more.
//!
//! To writable, the daemon is switched first, because it may refuse. If the last step fails, the one before is taken back.
//!
//! Other flags that the kernel keeps of a mount (nodev, nosuid, noexec, noatime, sync, dirsync) can be changed as well. Memory, filters,
//! limits and threads stay those of the daemon until it ends. Other values cause a warning only, since mount(8) repeats the options in
//! fstab.

use std::path::Path;

use dedupfs::SpaceLimits;
use dedupfs::stats::PoolStats;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::control::{Failure, FailureKind};
use crate::mount_options::{self, Options};
use crate::mountinfo::MountEntry;
use crate::{silence, target};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The user typed them.
    CommandLine,
    /// mount(8), which adds the options in fstab.
    Mount,
}

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

fn apply<'a>(flags: MountFlags, options: impl IntoIterator<Item = &'a str>) -> MountFlags {
    options.into_iter().fold(flags, |mut flags, option| {
        if let Some((_, flag, is_set)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            flags.set(*flag, *is_set);
        }
        flags
    })
}

/// Changes the mount at `mountpoint`. `lists` are the options from mount(8), which include the present ones.
pub(crate) fn run(mountpoint: &Path, lists: &[String], origin: Origin) -> Result<(), Failure> {
    let mount = target::mounted_at(mountpoint)?.ok_or_else(|| {
        FailureKind::MountpointUnusable.because(format!("no dedupfs is mounted on {}", mountpoint.display()))
    })?;
    // Check the options first: one that makes no sense changes nothing.
    let given = mount_options::parse(&mount.source, lists)?;
    let before = apply(MountFlags::empty(), mount.options.split(','));
    let options = mount_options::split(lists);
    let mut wanted = apply(before, options.iter().map(String::as_str));
    if origin == Origin::Mount {
        // mount(8) repeats the mount's options and leaves out defaults. So a flag that is not named must be cleared.
        let is_named = |name: &str| options.iter().any(|option| option == name);
        wanted.set(MountFlags::NODEV, is_named("nodev"));
        wanted.set(MountFlags::NOSUID, is_named("nosuid"));
    }
    if wanted.contains(MountFlags::RDONLY) {
        if !before.contains(MountFlags::RDONLY) {
            prepare_read_only(&mount)?;
        }
        change(&mount, wanted)?;
        make_read_only(&mount).inspect_err(|_| take_back(&mount, before))?;
    } else {
        make_writable(&mount)?;
        change(&mount, wanted).inspect_err(|_| {
            if before.contains(MountFlags::RDONLY)
                && let Err(failure) = make_read_only(&mount)
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
            "dedupfs: warning: a remount does not change {}: unmount and mount again to change that",
            kept.join(", ")
        );
    }
    Ok(())
}

/// Asks the daemon whether it would refuse. Otherwise the kernel's mount could be read-only for a moment while the daemon works.
fn prepare_read_only(mount: &MountEntry) -> Result<(), Failure> {
    let Some(mut client) = silence::connect(&mount.source)? else { return Ok(()) };
    match client.prepare_read_only() {
        // A daemon of an older version does not know this request, and refuses later.
        Err(failure) if failure.kind == FailureKind::Usage => Ok(()),
        answer => answer,
    }
}

/// Returns statistics for a warning. A daemon that does not answer is no failure.
fn stats_of(pool: &Path) -> Option<PoolStats> {
    silence::connect(pool).ok()??.stats().ok()
}

/// Returns the names of options given with a value other than the one in effect. If the value in effect is unknown, a user's option counts
/// as changed.
fn kept(given: &Options, options: &[String], origin: Origin, stats: Option<&PoolStats>) -> Vec<&'static str> {
    let is_given = |name: &str| options.iter().any(|option| option.split('=').next() == Some(name));
    // The value in effect may be unknown. mount(8) repeats the options in fstab, so they are no request.
    let is_changed = |is_other: Option<bool>| is_other.unwrap_or(origin == Origin::CommandLine);
    let is_other_limit = |name: &str, limit_bytes: Option<u64>| {
        stats.map(|stats| stats.roots.iter().any(|root| root.name == name && root.limit_bytes != limit_bytes))
    };
    let unknown =
        "no_open threads keep_awake filters log_file gc gc_threshold gc_leave gc_share gc_window gc_interval arrange"
            .split(' ');
    [
        ("memory", stats.map(|stats| given.memory_bytes.is_some_and(|bytes| bytes != stats.memory.limit_bytes))),
        ("data_limit", is_other_limit("data", given.limits.data_bytes)),
        ("meta_limit", is_other_limit("meta", given.limits.meta_bytes)),
    ]
    .into_iter()
    .chain(unknown.map(|name| (name, None)))
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
                format!("files on {shown} are open for writing: `fuser -vm {shown}` lists the processes"),
            ),
            Errno::PERM | Errno::ACCESS => {
                (FailureKind::FuseUnavailable, format!("only root may change the mount on {shown}"))
            }
            error => (FailureKind::Failed, format!("the kernel does not change the mount on {shown}: {error}")),
        };
        kind.because(text)
    })
}

fn make_read_only(mount: &MountEntry) -> Result<(), Failure> {
    match silence::connect(&mount.source)? {
        Some(mut client) => client.make_read_only(),
        // On such a disk there is no socket, and nothing to write.
        None if cannot_be_written(&mount.source) => Ok(()),
        None if !crate::mount::is_dead(&mount.mountpoint) => Err(Failure::failed(format!(
            "the daemon of {} does not answer: recent writes may not be durable",
            mount.mountpoint.display()
        ))),
        None => Err(no_daemon(mount)),
    }
}

fn make_writable(mount: &MountEntry) -> Result<(), Failure> {
    silence::connect(&mount.source)?.ok_or_else(|| no_daemon(mount))?.make_writable()
}

fn no_daemon(mount: &MountEntry) -> Failure {
    Failure::failed(format!(
        "the daemon of {} does not answer: unmount pool {}, and mount it again",
        mount.mountpoint.display(),
        mount.source.display()
    ))
}

/// Whether the pool's disk is mounted read-only here.
pub(crate) fn cannot_be_written(pool: &Path) -> bool {
    rustix::fs::statvfs(pool).is_ok_and(|space| space.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs::stats::RootSpace;

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
        let others = "memory=1G,data_limit=1T,meta_limit=1G,filters=open:sealed,log_file=/log";
        assert_eq!(kept(others, Origin::Mount, Some(&stats)), ["memory", "data_limit", "meta_limit"]);
        assert_eq!(kept(others, Origin::CommandLine, None).len(), 5);
        assert!(kept(others, Origin::Mount, None).is_empty());
    }
}
