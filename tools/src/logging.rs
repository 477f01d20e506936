//! Where the daemon's log goes: the terminal at first, a file with a size limit once it runs in the background.
//!
//! The file is no part of the pool's durable state, so it is written with plain `std::fs`, and a log that cannot be
//! written (a full disk) never stops the daemon: its lines are lost. At the limit it becomes `NAME.1`, replacing an
//! older one, and a new file begins. The process' standard error output follows the file, so that what other code
//! prints is kept too.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Default name in the pool's meta root.
pub const LOG_NAME: &str = "dedupfs.log";
/// At this size a new file begins; with the one before it a log takes at most twice that.
pub const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// What to log, in the words of `tracing_subscriber::EnvFilter`.
pub const LOG_VARIABLE: &str = "DEDUPFS_LOG";

/// Where the log goes; can be switched while it is written.
#[derive(Clone, Default)]
pub struct LogSink(Arc<Mutex<Option<LogFile>>>);

impl LogSink {
    /// Sets this process' log up, on the standard error output for now.
    #[must_use]
    pub fn install() -> Self {
        let sink = Self::default();
        let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
        let set = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .with_writer(sink.clone())
            // It would tell on the standard error output, and panic if that cannot be written either.
            .log_internal_errors(false)
            .try_init();
        if let Err(error) = set {
            eprintln!("dedupfs: no log: {error}");
        }
        std::panic::set_hook(Box::new(|panic| match dedupfs::panics::is_caught() {
            true => tracing::debug!(%panic, "caught"),
            false => tracing::error!(%panic, "panicked"),
        }));
        sink
    }

    /// Continues in the file at `path`.
    pub fn switch_to(&self, path: &Path) -> io::Result<()> {
        *self.0.lock() = Some(LogFile::open(path, LOG_BYTES_MAX)?);
        Ok(())
    }

    /// From now on the standard error output goes to the file as well, if there is one.
    pub fn take_stderr(&self) -> io::Result<()> {
        match &mut *self.0.lock() {
            Some(file) => file.take_stderr(),
            // A daemon without a log must not keep the terminal, or the pipe, of whoever started it.
            None => rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?).map_err(Into::into),
        }
    }
}

impl<'a> MakeWriter<'a> for LogSink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut *self.0.lock() {
            Some(file) => file.write(bytes),
            None => io::stderr().write(bytes),
        };
        Ok(written.ok().filter(|&written| written > 0).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A log file with a limit.
struct LogFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    limit_bytes: u64,
    has_stderr: bool,
}

impl LogFile {
    fn open(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let (file, len_bytes) = open_append(path)?;
        Ok(Self { path: path.to_owned(), file, len_bytes, limit_bytes, has_stderr: false })
    }

    fn take_stderr(&mut self) -> io::Result<()> {
        rustix::stdio::dup2_stderr(&self.file)?;
        self.has_stderr = true;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len_bytes > 0 && self.len_bytes + bytes.len() as u64 > self.limit_bytes {
            self.rotate();
        }
        let written = self.file.write(bytes)?;
        self.len_bytes += written as u64;
        Ok(written)
    }

    /// A failure leaves the old file in use.
    fn rotate(&mut self) {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        let rotated = std::fs::rename(&self.path, old).and_then(|()| open_append(&self.path));
        if let Ok((file, len_bytes)) = rotated {
            self.file = file;
            self.len_bytes = len_bytes;
            if self.has_stderr {
                // The old file keeps it otherwise: still better than nowhere.
                let _ = self.take_stderr();
            }
        }
    }
}

fn open_append(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let len_bytes = file.metadata()?.len();
    Ok((file, len_bytes))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn regression_a_full_disk_costs_the_lines_and_nothing_else() {
        let mut sink = LogSink::default();
        sink.switch_to(Path::new("/dev/full")).unwrap();
        assert!(LogFile::open(Path::new("/dev/full"), 100).unwrap().write(b"line\n").is_err(), "it is not full");
        sink.write_all(b"line\n").unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(sink).log_internal_errors(false).finish();
        tracing::subscriber::with_default(subscriber, || tracing::error!("the disk is full"));
    }

    #[test]
    fn a_full_file_is_moved_aside_and_lines_stay_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let mut log = LogFile::open(&path, 100).unwrap();
        for number in 0..25 {
            assert_eq!(log.write(format!("line {number:04}\n").as_bytes()).unwrap(), 10);
        }
        drop(log);
        let old = std::fs::read_to_string(root.path().join("log.1")).unwrap();
        let new = std::fs::read_to_string(&path).unwrap();
        assert_eq!((old.len(), new.len()), (100, 50));
        assert!(old.starts_with("line 0010\n") && new.ends_with("line 0024\n"), "{old}{new}");
        let mut log = LogFile::open(&path, 100).unwrap();
        log.write(&[b'x'; 200]).unwrap();
        assert_eq!(std::fs::metadata(root.path().join("log.1")).unwrap().len(), 50);
    }
}
