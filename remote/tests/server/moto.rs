//! The server of the tests.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to start.
const START: Duration = Duration::from_secs(60);

/// A running moto, ended when dropped.
pub struct Moto {
    process: Child,
    pub port: u16,
}

impl Moto {
    /// Starts the server; `None` if it is not installed.
    pub fn start() -> Option<Self> {
        let program = std::env::var("DEDUPFS_MOTO").unwrap_or_else(|_| "moto_server".to_owned());
        // Nobody listens there any more when the server begins to.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        let process = match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(process) => process,
            Err(error) => {
                assert!(std::env::var_os("DEDUPFS_REQUIRE_MOTO").is_none(), "moto does not start: {error}");
                eprintln!("skipped: moto is not installed");
                return None;
            }
        };
        let moto = Self { process, port };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < START, "moto does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    /// Creates a bucket.
    pub fn create_bucket(&self, name: &str) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(connection, "PUT /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}
