//! Holding the export of a mounted pool, through its daemon.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;

use dedupfs::export::ExportPosition;
use dedupfs_replica::{Held, ReplicaError, Result, Source};
use dedupfs_store::device::{Device, FileDevice};

use crate::control::Failure;
use crate::silence;

/// A mounted pool.
pub(super) struct Mounted {
    pub(super) pool: PathBuf,
    pub(super) data: FileDevice,
}

struct Hold {
    position: ExportPosition,
    stream: UnixStream,
    /// Waits for the daemon's answer, which comes at the end.
    asking: Option<JoinHandle<std::result::Result<(), Failure>>>,
}

impl Source for Mounted {
    fn data(&self) -> &dyn Device {
        &self.data
    }

    fn hold(&self) -> Result<Box<dyn Held + '_>> {
        let failed = |error: &dyn std::fmt::Display| ReplicaError::NotNow(error.to_string());
        let client = silence::connect(&self.pool).map_err(|failure| failed(&failure))?;
        let mut client = client.ok_or(ReplicaError::HoldLost)?;
        let (own, other) = UnixStream::pair().map_err(|error| failed(&error))?;
        let ask = move || client.hold_export(other.as_fd());
        let asking = std::thread::Builder::new().name("hold".to_owned()).spawn(ask).map_err(|error| failed(&error))?;
        let mut line = String::new();
        let read = BufReader::new(&own).read_line(&mut line);
        let mut hold = Hold { position: ExportPosition::default(), stream: own, asking: Some(asking) };
        if read.is_ok_and(|len| len > 0) {
            hold.position = serde_json::from_str(&line).map_err(|error| failed(&error))?;
            hold.stream.set_nonblocking(true).map_err(|error| failed(&error))?;
            return Ok(Box::new(hold));
        }
        // The daemon's answer has the reason.
        match hold.end() {
            Err(failure) => Err(failed(&failure)),
            Ok(()) => Err(ReplicaError::HoldLost),
        }
    }
}

impl Held for Hold {
    fn position(&self) -> ExportPosition {
        self.position
    }

    fn check(&self) -> Result<()> {
        match (&self.stream).read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            _ => Err(ReplicaError::HoldLost),
        }
    }
}

impl Hold {
    /// Ends the hold; returns the daemon's answer.
    fn end(&mut self) -> std::result::Result<(), Failure> {
        // Fails if the other end is gone, and then there is no hold.
        let _gone = self.stream.shutdown(Shutdown::Both);
        match self.asking.take().map(JoinHandle::join) {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(Failure::failed("the thread that holds the export panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(failure) = self.end() {
            tracing::debug!(%failure, "a hold ended");
        }
    }
}
