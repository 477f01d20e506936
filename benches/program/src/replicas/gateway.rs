//! A store that speaks the protocol of S3, on this machine.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::command::Run;
use crate::{Outcome, command, fail, files};

/// The bucket of all copies.
pub const BUCKET: &str = "copies";
/// Time to begin.
const START: Duration = Duration::from_secs(30);

/// A running versitygw, ended when dropped.
pub struct Gateway {
    process: Child,
    /// Where it listens.
    pub port: u16,
}

impl Gateway {
    /// Starts it on a new directory.
    pub fn start(directory: &Path) -> Outcome<Self> {
        files::make_dir(directory)?;
        files::make_dir(&directory.join(BUCKET))?;
        let port = free_port()?;
        let address = format!("127.0.0.1:{port}");
        let mut command = command!(
            "versitygw",
            "--access",
            "key",
            "--secret",
            "secret",
            "--port",
            address,
            "--quiet",
            "posix",
            directory
        );
        let process = command.quiet().stderr(std::process::Stdio::null()).start()?;
        let gateway = Self { process, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begun.elapsed() > START {
                return fail("versitygw does not listen");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(gateway)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// Returns a port where nobody listens.
pub fn free_port() -> Outcome<u16> {
    let found = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    found.map(|address| address.port()).or_else(|error| fail(format!("no free port: {error}")))
}
