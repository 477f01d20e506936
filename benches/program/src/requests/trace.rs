//! The kernel's trace of the requests that it sends to one FUSE mount.
//!
//! An instance of the trace of its own, so that others who trace are not disturbed. The trace point `fuse_request_send` has the number of
//! the connection, which is the device number of the mount, and the kind of the request.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Counts;
use crate::{Outcome, fail, files};

const TRACING: &str = "/sys/kernel/tracing";
const EVENT: &str = "events/fuse/fuse_request_send";
/// Room for each processor's part of the trace: 40 bytes a request.
const BUFFER_KIB: u32 = 65_536;

/// Fails if the kernel has no such trace point, or this user may not use it.
pub fn check() -> Outcome {
    match Path::new(TRACING).join(EVENT).join("enable").is_file() {
        true => Ok(()),
        false => {
            fail(format!("no trace of requests: as root, `mount -t tracefs tracefs {TRACING}` (Linux 6.11 or later)"))
        }
    }
}

/// A trace that runs, until it is dropped.
pub struct Trace {
    instance: PathBuf,
}

impl Trace {
    /// Begins to trace the requests to the mount at `mnt`.
    pub fn begin(mnt: &Path) -> Outcome<Self> {
        let device = fs::metadata(mnt).or_else(files::at("look at", mnt))?.dev();
        let trace =
            Self { instance: Path::new(TRACING).join(format!("instances/dedupfs-bench-{}", std::process::id())) };
        files::make_dir(&trace.instance)?;
        trace.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        trace.set(&format!("{EVENT}/filter"), &format!("connection == {}", rustix::fs::minor(device)))?;
        trace.set(&format!("{EVENT}/enable"), "1")?;
        Ok(trace)
    }

    fn set(&self, name: &str, value: &str) -> Outcome {
        let path = self.instance.join(name);
        fs::write(&path, value).or_else(files::at("write", &path))
    }

    /// Ends the trace, and returns the number of requests of each kind.
    ///
    /// # Errors
    /// The trace had no room for all.
    pub fn end(self) -> Outcome<Counts> {
        self.set("tracing_on", "0")?;
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).or_else(files::at("read", &path))?;
        let counts = counts(&text);
        match counts {
            Some(counts) => Ok(counts),
            None => fail("the trace had no room for all requests: choose fewer files"),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
    }
}

/// Counts the kinds of requests in a trace; nothing if some were lost.
fn counts(text: &str) -> Option<Counts> {
    let mut counts = Counts::new();
    for line in text.lines() {
        // "# entries-in-buffer/entries-written: 12/12   #P:2"
        if let Some(entries) = line.strip_prefix("# entries-in-buffer/entries-written: ") {
            let (kept, written) = entries.split_whitespace().next()?.split_once('/')?;
            if kept != written {
                return None;
            }
        }
        let kind = line.split_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')'));
        if let Some((kind, _)) = kind {
            *counts.entry(kind.to_lowercase()).or_default() += 1;
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_unless_some_were_lost() {
        let trace = |kept| {
            format!(
                "# tracer: nop\n#\n# entries-in-buffer/entries-written: {kept}/3   #P:2\n\
                 cp-1 [000] ..... 1.0: fuse_request_send: connection 45 req 2 opcode 1 (FUSE_LOOKUP) len 44 \n\
                 cp-1 [000] ..... 1.1: fuse_request_send: connection 45 req 4 opcode 3 (FUSE_GETATTR) len 56 \n\
                 cp-1 [001] ..... 1.2: fuse_request_send: connection 45 req 6 opcode 1 (FUSE_LOOKUP) len 44 \n"
            )
        };
        let expected = Counts::from([("getattr".to_owned(), 1), ("lookup".to_owned(), 2)]);
        assert_eq!((counts(&trace(3)), counts(&trace(2))), (Some(expected), None));
    }
}
