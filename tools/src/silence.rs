//! Reports that a tool waits for a daemon. Without it the tool would seem to hang when the daemon was stopped or its disk hangs.

use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use dedupfs_store::device::PoolLock;

use crate::control::{ControlClient, Failure};
use crate::mountinfo;

/// Time without an answer after which the user is told why.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to the daemon of a pool, by the socket in the meta root or by a mount; `None` if there is none. The client reports a silent
/// daemon.
pub(crate) fn connect(pool: &Path) -> Result<Option<ControlClient>, Failure> {
    let found = match ControlClient::connect(pool) {
        Ok(Some(client)) => Some(client),
        // The disk under the pool has failed, or had no room for a socket.
        without => match by_mount(pool) {
            Some(client) => Some(client),
            None => without?,
        },
    };
    Ok(found.map(|client| client.on_silence(PATIENCE, tell)))
}

fn by_mount(pool: &Path) -> Option<ControlClient> {
    let mounts = mountinfo::read().ok()?;
    let mut of_pool = mounts.iter().filter(|mount| mount.is_dedupfs() && mount.source == pool);
    of_pool.find_map(|mount| {
        let client = ControlClient::connect_beside(pool, &mount.device, mount.user()?)?;
        // If not allowed, the socket in the pool has given the reason.
        client.is_allowed().then_some(client)
    })
}

/// Reports, once in each process, that the daemon of a pool does not answer.
pub(crate) fn tell(pool: &Path) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| eprintln!("dedupfs: {}", describe(pool, PoolLock::holder(pool).as_deref())));
}

fn describe(pool: &Path, holder: Option<&str>) -> String {
    let shown = pool.display();
    let process = holder.and_then(|holder| holder.strip_prefix("process ")).and_then(|rest| rest.split(' ').next());
    let (who, resume) = match (holder, process) {
        (Some(holder), Some(process)) => (holder.to_owned(), format!("`kill -CONT {process}`")),
        _ => ("its daemon".to_owned(), "`kill -CONT` with its process number".to_owned()),
    };
    format!(
        "still waiting for {who}, which has pool {shown} and has not answered for {} s: it may have much to write, its disk may \
         hang (see `dmesg`), or it was stopped (continue it with {resume})",
        PATIENCE.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_named_if_it_is_known() {
        let told = |holder| describe(Path::new("/p"), holder);
        let named = told(Some("process 12 (dedupfs mount on /m)"));
        assert!(named.contains("process 12 (dedupfs mount on /m)") && named.contains("`kill -CONT 12`"), "{named}");
        for holder in [None, Some("another process")] {
            assert!(told(holder).contains("its daemon, which has pool /p"), "{}", told(holder));
        }
    }
}
