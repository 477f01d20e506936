//! Reports the daemon's state to systemd (sd_notify(3)): datagrams of lines `NAME=value` to the socket in `$NOTIFY_SOCKET`.
//!
//! Without that variable, or without a listener, nothing happens. A failure never harms the mount.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

const VARIABLE: &str = "NOTIFY_SOCKET";
/// Time to wait for a service manager that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    pub(crate) fn from_env() -> Self {
        std::env::var_os(VARIABLE).map_or_else(Self::default, |name| Self::to(&name))
    }

    /// The socket at an absolute path, or, with `@` in front, in the abstract namespace.
    pub(crate) fn to(name: &OsStr) -> Self {
        Self(
            connect(name.as_bytes())
                .inspect_err(|error| tracing::warn!(%error, name = %name.display(), "cannot reach systemd"))
                .ok(),
        )
    }

    pub(crate) fn ready(&self, status: &str) {
        self.tell("READY=1", status);
    }

    pub(crate) fn status(&self, status: &str) {
        self.tell("", status);
    }

    pub(crate) fn stopping(&self, status: &str) {
        self.tell("STOPPING=1", status);
    }

    fn tell(&self, state: &str, status: &str) {
        let Some(socket) = &self.0 else { return };
        // Each value must stay on one line.
        let text = format!("{state}\nSTATUS={}\n", status.replace('\n', " "));
        if let Err(error) = socket.send(text.trim_start().as_bytes()) {
            tracing::debug!(%error, "systemd was not told");
        }
    }
}

fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some((b'/', _)) => SocketAddr::from_pathname(OsStr::from_bytes(name))?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok(socket)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    #[test]
    fn states_reach_the_socket() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(path.as_os_str());
        notifier.status("recovering\nthe pool");
        notifier.ready("serving");
        notifier.stopping("ending");
        assert_eq!(received(&socket), "STATUS=recovering the pool\n");
        assert_eq!(received(&socket), "READY=1\nSTATUS=serving\n");
        assert_eq!(received(&socket), "STOPPING=1\nSTATUS=ending\n");
    }

    #[test]
    fn abstract_names_are_understood() {
        let name = format!("dedupfs-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notifier::to(OsStr::new(&format!("@{name}"))).ready("serving");
        assert_eq!(received(&socket), "READY=1\nSTATUS=serving\n");
    }

    #[test]
    fn nobody_is_no_error() {
        for name in ["", "relative", "/no/such/socket", "@dedupfs-nobody"] {
            Notifier::to(OsStr::new(name)).ready("serving");
        }
        Notifier::default().stopping("ending");
    }
}
