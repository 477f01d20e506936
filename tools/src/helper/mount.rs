//! `mount.dedupfs`.

use dedupfs::control::Failure;

use super::namespace;
use crate::args::MountArgs;
use crate::args::helpers::MountHelper;
use crate::{exit, mount, mount_options, remount, target};

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
        remount::run(&args.mountpoint, &options)?;
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
    mount::start_daemon(&MountArgs::with_options(pool, args.mountpoint.clone(), options))?;
    tell(args, "mounted");
    Ok(exit::OK)
}

fn tell(args: &MountHelper, what: &str) {
    if args.verbose {
        println!("mount.dedupfs: {} on {}: {what}", args.pool.display(), args.mountpoint.display());
    }
}
