//! `mount.dedupfs`.
//!
//! umount(8) looks at no more than that a mount is of FUSE, and then calls no helper of ours, unless the mount has options that
//! only mount(8) knows. So it gets one: `x-dedupfs`, noted in `/run/mount/utab` by mount(8) itself.

use std::path::Path;
use std::process::{Command, Stdio};

use dedupfs::control::Failure;

use super::namespace;
use crate::args::MountArgs;
use crate::args::helpers::MountHelper;
use crate::remount::{self, Origin};
use crate::{exit, mount, mount_options, target};

/// Mounts, or changes a mount that is there.
pub fn run(args: &MountHelper) -> Result<u8, Failure> {
    if let Some(which) = &args.namespace {
        namespace::enter(which)?;
    }
    let (known, unknown) = mount_options::parse_known(&args.pool, &args.options)?;
    let options = if args.sloppy {
        let kept = mount_options::split(&args.options).into_iter().filter(|option| !unknown.contains(option));
        // What has a comma in it was quoted.
        kept.map(|option| if option.contains(',') { format!("\"{option}\"") } else { option }).collect()
    } else {
        args.options.clone()
    };
    if known.remount {
        // Before the pool is looked for: what is mounted is what counts.
        remount::run(&args.mountpoint, &options, Origin::Mount)?;
        tell(args, if known.mount.read_only { "remounted read-only" } else { "remounted" });
        return Ok(exit::OK);
    }
    let pool = target::pool(&args.pool)?;
    mount_options::parse(&pool, &options)?;
    if args.fake {
        mount::examine(&pool, &args.mountpoint)?;
        tell(args, "could be mounted");
        return Ok(exit::OK);
    }
    let is_netdev = mount_options::split(&options).iter().any(|option| option == "_netdev");
    mount::start_daemon(&MountArgs::with_options(pool.clone(), args.mountpoint.clone(), options))?;
    if !args.no_mtab && rustix::process::geteuid().is_root() {
        note_for_umount(&pool, &args.mountpoint, is_netdev);
    }
    tell(args, "mounted");
    Ok(exit::OK)
}

/// Without it, `umount` does not wait for the daemon: everything becomes durable all the same, only later.
fn note_for_umount(pool: &Path, mountpoint: &Path, is_netdev: bool) {
    let Ok(mountpoint) = target::real_path(mountpoint) else { return };
    // One that nobody took away when the mount ended otherwise is as good.
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
