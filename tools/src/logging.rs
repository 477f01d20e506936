//! The daemon's log: on the terminal at first, in a file with a size limit once the daemon runs in the background.
//!
//! The file is not part of the pool's durable state, so it is written with plain `std::fs`. A log that cannot be written (a full disk)
//! never stops the daemon: its lines are lost. At the limit the file becomes `NAME.1`, replacing an older one, and a new file begins. The
//! process's standard error follows the file, so output of other code is kept too. If standard error is the journal's, lines have the form
//! that the [`journal`] wants.

mod answers;
mod journal;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs_store::device::owner;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::answers::UnwantedAnswers;

pub(crate) const LOG_NAME: &str = "dedupfs.log";
/// Size at which a new file begins. With the one before it, a log takes at most twice this.
pub(crate) const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Environment variable with the log filter, in the syntax of `tracing_subscriber::EnvFilter`.
pub(crate) const LOG_VARIABLE: &str = "DEDUPFS_LOG";

/// Limit of lines held by a daemon that has no log yet. Lines that do not fit are lost.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// ```text
/// Held ──switch_to()──> File
///   └──release()──> Stderr ──switch_to()──> File
/// ```
#[derive(Default)]
enum Place {
    #[default]
    Stderr,
    Held(Vec<u8>),
    File(LogFile),
}

/// The form of lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Coloured,
    Journal,
}

/// The place of the log. It can be switched while the log is written.
#[derive(Clone, Default)]
pub(crate) struct LogSink(Arc<Mutex<Place>>);

impl LogSink {
    /// Installs this process's log on standard error. If it `stays` there, it may take the journal's form.
    pub(crate) fn install(stays: bool) -> Self {
        let form = match stays && journal::has_stderr() {
            true => Form::Journal,
            false if io::stderr().is_terminal() => Form::Coloured,
            false => Form::Plain,
        };
        Self::install_at(Place::Stderr, form)
    }

    /// Installs the log of a daemon whose caller must not see its lines. They are held back until there is a file for them, or until
    /// [`release`](Self::release).
    pub(crate) fn install_held() -> Self {
        Self::install_at(Place::Held(Vec::new()), Form::Plain)
    }

    fn install_at(place: Place, form: Form) -> Self {
        let sink = Self(Arc::new(Mutex::new(place)));
        let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(form == Form::Coloured)
            .with_target(false)
            .with_writer(sink.clone())
            // It would write to standard error, and panic if that fails.
            .log_internal_errors(false);
        let set = if form == Form::Journal {
            log.event_format(journal::JournalFormat::default()).finish().with(UnwantedAnswers).try_init()
        } else {
            log.finish().with(UnwantedAnswers).try_init()
        };
        if let Err(error) = set {
            eprintln!("dedupfs: no log: {error}");
        }
        let after_panic = sink.clone();
        std::panic::set_hook(Box::new(move |panic| {
            if dedupfs::panics::is_caught() {
                tracing::debug!(%panic, "caught");
                return;
            }
            tracing::error!(%panic, "panicked");
            after_panic.release();
        }));
        sink
    }

    pub(crate) fn switch_to(&self, path: &Path) -> io::Result<()> {
        let mut file = LogFile::open(path, LOG_BYTES_MAX)?;
        let mut place = self.0.lock();
        if let Place::Held(lines) = &*place {
            // On a full disk they are lost, like all other lines.
            let _ = file.write(lines);
        }
        *place = Place::File(file);
        Ok(())
    }

    pub(crate) fn release(&self) {
        let mut place = self.0.lock();
        if let Place::Held(lines) = &*place {
            // If even this cannot be written, nobody is left to tell.
            let _ = io::stderr().write_all(lines);
            *place = Place::Stderr;
        }
    }

    /// Redirects standard error to the file, if there is one.
    pub(crate) fn take_stderr(&self) -> io::Result<()> {
        match &mut *self.0.lock() {
            Place::File(file) => file.take_stderr(),
            // A daemon without a log must not keep the terminal, or the pipe, of the process that started it.
            place => {
                *place = Place::Stderr;
                rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?).map_err(Into::into)
            }
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
            Place::File(file) => file.write(bytes),
            Place::Stderr => io::stderr().write(bytes),
            Place::Held(lines) => {
                if lines.len() + bytes.len() <= HELD_BYTES_MAX {
                    lines.extend_from_slice(bytes);
                }
                Ok(bytes.len())
            }
        };
        Ok(written.ok().filter(|&written| written > 0).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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

    /// Begins a new file. A failure leaves the old file in use.
    fn rotate(&mut self) {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        let rotated = std::fs::rename(&self.path, old).and_then(|()| open_append(&self.path));
        if let Ok((file, len_bytes)) = rotated {
            self.file = file;
            self.len_bytes = len_bytes;
            if self.has_stderr {
                // If this fails, standard error stays with the old file: better than nowhere.
                let _ = self.take_stderr();
            }
        }
    }
}

fn open_append(path: &Path) -> io::Result<(File, u64)> {
    let file = owner::open_or_create_file(path, OFlags::WRONLY | OFlags::APPEND)?;
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
    fn what_was_said_before_there_was_a_file_stands_in_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let mut sink = LogSink(Arc::new(Mutex::new(Place::Held(Vec::new()))));
        sink.write_all(b"before\n").unwrap();
        sink.write_all(&vec![b'x'; HELD_BYTES_MAX]).unwrap();
        sink.switch_to(&path).unwrap();
        sink.write_all(b"after\n").unwrap();
        sink.release();
        sink.write_all(b"last\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nafter\nlast\n");
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
