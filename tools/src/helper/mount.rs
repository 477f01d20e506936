//! `mount.dedupfs`.
//!
//! umount(8) sees only that a mount is of type FUSE, and then does not call our helper, unless the mount has options that only mount(8)
//! knows. So the mount gets such an option: `x-dedupfs`, recorded in `/run/mount/utab` by mount(8) itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::namespace;
use crate::args::MountArgs;
use crate::args::helpers::MountHelper;
use crate::control::Failure;
use crate::remount::{self, Origin};
use crate::{exit, mount, mount_options, target};

pub(crate) fn run(args: &MountHelper) -> Result<u8, Failure> {
    if let Some(which) = &args.namespace {
        namespace::enter(which)?;
    }
    let (known, unknown) = mount_options::parse_known(&args.pool, &args.options)?;
    let options = if args.sloppy {
        let kept = mount_options::split(&args.options).into_iter().filter(|option| !unknown.contains(option));
        // An option that contains a comma was quoted.
        kept.map(|option| if option.contains(',') { format!("\"{option}\"") } else { option }).collect()
    } else {
        args.options.clone()
    };
    if known.remount {
        // Before the pool is looked for: the mount, not the argument, names it.
        remount::run(&args.mountpoint, &options, Origin::Mount)?;
        tell(args, if known.mount.read_only { "remounted read-only" } else { "remounted" });
        return Ok(exit::OK);
    }
    let pool = pool_or_replica(&args.pool)?;
    mount_options::parse(&pool, &options)?;
    if args.fake {
        mount::examine(&pool, &args.mountpoint)?;
        tell(args, "could be mounted");
        return Ok(exit::OK);
    }
    let options = with_defaults(options);
    let is_netdev = mount_options::split(&options).iter().any(|option| option == "_netdev");
    mount::run(&MountArgs::with_options(pool.clone(), args.mountpoint.clone(), options))?;
    if !args.no_mtab && rustix::process::geteuid().is_root() {
        note_for_umount(&pool, &args.mountpoint, is_netdev);
    }
    tell(args, "mounted");
    Ok(exit::OK)
}

/// Resolves the pool, which may be a replica.
fn pool_or_replica(place: &Path) -> Result<PathBuf, Failure> {
    #[cfg(feature = "remote")]
    if crate::view::is_replica(place) {
        return Ok(place.to_owned());
    }
    target::pool(place)
}

/// Adds the defaults of mounts, which mount(8) does not pass on: of `-o dev,suid`, and of `defaults`, nothing arrives. So device files and
/// set-ID bits work unless forbidden, as on other filesystems. For ordinary users the kernel and fusermount3 allow neither. mount.fuse3
/// does the same.
fn with_defaults(mut options: Vec<String>) -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return options;
    }
    let given = mount_options::split(&options);
    let has = |names: &[&str]| given.iter().any(|option| names.contains(&option.as_str()));
    // `user` and similar options imply both opposites, and mount(8) passes those on. Other callers may rely on that.
    let is_for_users = has(&["user", "users", "owner", "group"]);
    for (default, opposite) in [("dev", "nodev"), ("suid", "nosuid")] {
        if !is_for_users && !has(&[default, opposite]) {
            options.push(default.to_owned());
        }
    }
    options
}

/// Records the mount for umount(8). Without the record, `umount` does not wait for the daemon; everything still becomes durable, only
/// later.
fn note_for_umount(pool: &Path, mountpoint: &Path, is_netdev: bool) {
    let Ok(mountpoint) = target::real_path(mountpoint) else { return };
    // A record left from an earlier mount serves as well.
    let target = format!("TARGET={} ", mountpoint.display());
    if std::fs::read_to_string("/run/mount/utab").is_ok_and(|noted| noted.contains(&target)) {
        return;
    }
    let options = if is_netdev { "x-dedupfs,_netdev" } else { "x-dedupfs" };
    let noted = Command::new("mount")
        .args(["--internal-only", "--fake", "-t", "fuse.dedupfs", "-o", options, "--"])
        .args([pool, &mountpoint])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !noted.is_ok_and(|status| status.success()) {
        eprintln!("mount.dedupfs: warning: umount(8) will not wait for the daemon; `dedupfs umount` does");
    }
}

fn tell(args: &MountHelper, what: &str) {
    if args.verbose {
        println!("mount.dedupfs: {} on {}: {what}", args.pool.display(), args.mountpoint.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_options_that_mount_8_leaves_out_are_the_defaults_of_mounts() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let with = |list: &str| with_defaults(vec![list.to_owned()]).join(",");
        assert_eq!(with("rw"), "rw,dev,suid");
        assert_eq!(with("rw,nosuid"), "rw,nosuid,dev");
        assert_eq!(with("rw,nodev,nosuid,noexec"), "rw,nodev,nosuid,noexec");
        assert_eq!(with("rw,user"), "rw,user");
    }
}
