//! `dedupfs sync`.

use crate::args::SyncArgs;
use crate::control::Failure;
use crate::{exit, mount, mountinfo, silence, target};

/// Syncs a mounted pool. In a pool that is not mounted, everything is durable already.
pub(crate) fn run(args: &SyncArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    // The pool may have another daemon by now, which does not know the writes through the dead mount.
    if let Some(mount) = target.mount.as_ref().filter(|mount| mount::is_dead(&mount.mountpoint)) {
        let others = mountinfo::others_of(&mountinfo::read()?, mount);
        let advice = match others.first() {
            Some(other) => format!("it is now mounted on {}", other.display()),
            None => "mount it again".to_owned(),
        };
        return Err(Failure::failed(format!(
            "the daemon of {} was killed: unsynced writes of its last seconds may be lost; pool {}: \
             {advice}",
            mount.mountpoint.display(),
            mount.source.display()
        )));
    }
    match (silence::connect(&target.pool)?, target.mount) {
        (Some(mut client), _) => client.sync()?,
        (None, None) => {}
        (None, Some(mount)) => {
            return Err(Failure::failed(format!(
                "the daemon of {} does not answer: if it was killed, mount pool {} again",
                mount.mountpoint.display(),
                target.pool.display()
            )));
        }
    }
    exit::print_done(args.json, "sync")?;
    Ok(exit::OK)
}
