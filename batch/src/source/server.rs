//! A qemu-nbd that serves an image while a disk is read. It ends with the thread that started it at the latest, however that ends.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::names::percent_encoded;
use super::program::Complaint;

/// Time in which it listens.
const LISTENS_WITHIN_SECS: u64 = 60;
/// Connections at once.
const CONNECTIONS: &str = "--shared=4";

/// A server.
pub(super) struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    /// Serves an image that options name as `qemu-nbd --image-opts` takes them.
    pub(super) fn start(image: &str, gives_up: &dyn Fn() -> bool) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot start qemu-nbd: {error}");
        let directory = tempfile::tempdir().map_err(cannot)?;
        let socket = socket(&directory);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "qemu-nbd", "--read-only", "--persistent", CONNECTIONS, "--socket"]);
        command.arg(&socket).args(["--export-name", "disk", "--image-opts", image]);
        // It must live until the batch has let go of the disk, also if a signal of the terminal ends the batch.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
        let complaint = child.stderr.take().map(|stderr| Complaint::listen(stderr, None));
        // From here on its end is certain.
        let mut server = Self { child, directory };
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            let ended = server.child.try_wait().map_err(cannot)?;
            if ended.is_some() || gives_up() || begun.elapsed().as_secs() >= LISTENS_WITHIN_SECS {
                drop(server);
                let complaint = complaint.map(Complaint::rest).unwrap_or_default();
                return Err(format!(
                    "qemu-nbd does not serve {image} (it needs the package qemu-block-extra): {complaint}"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub(super) fn address(&self) -> String {
        format!("nbd+unix:///disk?socket={}", percent_encoded(&socket(&self.directory)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(directory: &TempDir) -> PathBuf {
    directory.path().join("nbd")
}
