//! `dedupfs sync`.

use dedupfs::control::{ControlClient, Failure};

use crate::args::SyncArgs;
use crate::{exit, target};

/// Syncs a mounted pool; in one that is not mounted everything is durable already.
pub fn run(args: &SyncArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    match (ControlClient::connect(&target.pool)?, target.mount) {
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
    Ok(exit::OK)
}
