//! The content of one file as it arrives: put together in memory if it is small, else written where it belongs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, OFlags};

use super::super::disk::Place;
use super::super::tally::{Outcome, Trouble, writing};
use super::Get;
use super::entry::{CANNOT_MAKE, CANNOT_WRITE, close, create, write_at};
use super::window::{DirectoryOf, Planned};

/// Files up to this size are put together in memory, and written at once.
const ASSEMBLED_FILE_BYTES_MAX: u64 = 1 << 20;
/// Part of the memory of a restore for them.
const ASSEMBLED_SHARE: u64 = 4;
/// Files that stay open while their content arrives. Others are opened for each piece.
const OPEN_FILES_MAX: usize = 128;

/// The way that the content of a file has come.
#[derive(Default)]
pub(super) enum State {
    /// Nothing has arrived.
    #[default]
    Awaited,
    /// In memory; its length counts in `assembled_bytes`.
    Assembling(Vec<u8>),
    /// Made, and open.
    Open(Arc<OwnedFd>),
    /// Made, and closed for now.
    Closed,
    /// Whole, with its attributes.
    Complete,
    /// Told as a problem, and not there.
    GivenUp,
}

impl State {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Complete | Self::GivenUp)
    }
}

/// The memory and descriptors that all files share.
pub(in super::super) struct Arrivals {
    assembled_bytes: AtomicU64,
    assembled_bytes_max: u64,
    open_files: AtomicUsize,
}

impl Arrivals {
    /// Takes a part of the memory of a restore.
    pub(in super::super) fn new(memory_bytes: u64) -> Self {
        let (assembled_bytes, open_files) = Default::default();
        Self { assembled_bytes, assembled_bytes_max: memory_bytes / ASSEMBLED_SHARE, open_files }
    }

    /// Takes memory for a file, if it is small and there is some.
    fn assemble(&self, size_bytes: u64) -> Option<Vec<u8>> {
        if size_bytes > ASSEMBLED_FILE_BYTES_MAX {
            return None;
        }
        if self.assembled_bytes.fetch_add(size_bytes, Ordering::Relaxed) + size_bytes > self.assembled_bytes_max {
            self.assembled_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
            return None;
        }
        Some(vec![0; size_bytes as usize])
    }

    fn takes_descriptor(&self) -> bool {
        let has_room = self.open_files.fetch_add(1, Ordering::Relaxed) < OPEN_FILES_MAX;
        if !has_room {
            self.open_files.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Gives back the memory or the descriptor of a file whose content is there, or given up.
    fn give_back(&self, state: &State) {
        match state {
            State::Assembling(bytes) => {
                self.assembled_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
            }
            State::Open(_) => {
                self.open_files.fetch_sub(1, Ordering::Relaxed);
            }
            State::Awaited | State::Closed | State::Complete | State::GivenUp => {}
        }
    }
}

impl Get<'_> {
    /// Takes bytes of a file. An error takes the file away and is told.
    pub(super) fn arrive(&self, planned: &Planned, offset: u64, bytes: &[u8]) {
        let written = self.take_in(planned, offset, bytes);
        self.tally.content(bytes.len());
        if let Err(trouble) = written {
            self.give_up(planned, trouble);
        }
    }

    fn take_in(&self, planned: &Planned, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let size_bytes = planned.attributes.size_bytes;
        let mut state = planned.state.lock();
        let to = match &mut *state {
            State::Complete | State::GivenUp => return Ok(()),
            State::Assembling(all) => return place(all, offset, bytes),
            State::Open(to) => Arc::clone(to),
            State::Closed => Arc::new(self.open_again(planned)?),
            State::Awaited => {
                let is_whole = bytes.len() as u64 == size_bytes;
                if !is_whole && let Some(all) = self.arrivals.assemble(size_bytes) {
                    *state = State::Assembling(all);
                    let State::Assembling(all) = &mut *state else { return Ok(()) };
                    return place(all, offset, bytes);
                }
                let to = Arc::new(create(self.directory_of(planned)?.descriptor(), &planned.name)?);
                *state = match self.arrivals.takes_descriptor() {
                    true => State::Open(Arc::clone(&to)),
                    false => State::Closed,
                };
                let has_holes = planned.attributes.blocks.saturating_mul(512) < size_bytes;
                if !is_whole && !has_holes {
                    reserve(&to, size_bytes);
                }
                to
            }
        };
        // Other threads write other parts meanwhile.
        drop(state);
        write_at(&to, bytes, offset)?;
        // A descriptor that is kept is still in `state`; only one that is not kept is closed here.
        Arc::into_inner(to).map_or(Ok(()), close)
    }

    /// Ends a file whose content has arrived: it gets its attributes.
    pub(super) fn complete(&self, planned: &Planned) {
        let mut state = planned.state.lock();
        if state.has_ended() {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Complete);
        self.arrivals.give_back(&before);
        let mut is_there = matches!(before, State::Open(_) | State::Closed);
        let outcome = self.opened(planned, before).and_then(|to| {
            is_there = true;
            self.finish(planned, to)
        });
        match outcome {
            Ok(()) => {
                let hole_bytes = planned.hole_bytes.load(Ordering::Relaxed);
                self.tally.file(planned.attributes.size_bytes.saturating_sub(hole_bytes));
            }
            Err(trouble) => {
                *state = if is_there { State::Closed } else { State::Awaited };
                drop(state);
                self.give_up(planned, trouble);
            }
        }
    }

    /// Returns the file, open. If it was not made before and this fails, it is not there.
    fn opened(&self, planned: &Planned, state: State) -> Outcome<OwnedFd> {
        let opened = match state {
            State::Open(to) => Arc::into_inner(to),
            State::Awaited => Some(create(self.directory_of(planned)?.descriptor(), &planned.name)?),
            State::Assembling(all) => {
                let directory = self.directory_of(planned)?;
                let to = create(directory.descriptor(), &planned.name)?;
                write_at(&to, &all, 0).inspect_err(|_| remove(&directory, planned))?;
                Some(to)
            }
            State::Closed | State::Complete | State::GivenUp => None,
        };
        opened.map_or_else(|| self.open_again(planned), Ok)
    }

    fn finish(&self, planned: &Planned, to: OwnedFd) -> Outcome<()> {
        if planned.hole_bytes.load(Ordering::Relaxed) > 0 {
            rustix::fs::ftruncate(&to, planned.attributes.size_bytes).map_err(writing(CANNOT_WRITE))?;
        }
        self.attributes(Place::Open(to.as_fd()), planned.attributes, true, &|| planned.path())?;
        close(to)
    }

    /// Takes a file away, of which a part may be there: half a file would be taken for a whole one. Tells the reason once.
    pub(super) fn give_up(&self, planned: &Planned, trouble: Trouble) {
        let mut state = planned.state.lock();
        if state.has_ended() {
            return;
        }
        let before = std::mem::replace(&mut *state, State::GivenUp);
        drop(state);
        self.arrivals.give_back(&before);
        if matches!(before, State::Open(_) | State::Closed)
            && let Ok(directory) = self.directory_of(planned)
        {
            remove(&directory, planned);
        }
        self.note(planned, trouble);
    }

    fn open_again(&self, planned: &Planned) -> Outcome<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = self.directory_of(planned)?;
        let opened = rustix::fs::openat(directory.descriptor(), &planned.name, flags, rustix::fs::Mode::empty());
        opened.map_err(writing(CANNOT_MAKE))
    }
}

fn remove(directory: &DirectoryOf<'_>, planned: &Planned) {
    let _removed = rustix::fs::unlinkat(directory.descriptor(), &planned.name, AtFlags::empty());
}

/// Puts bytes into a file that is put together in memory.
fn place(all: &mut [u8], offset: u64, bytes: &[u8]) -> Outcome<()> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let Some(into) = all.get_mut(start..start.saturating_add(bytes.len())) else {
        return Err(Trouble::One("left out: its recipe goes beyond its end".to_owned()));
    };
    into.copy_from_slice(bytes);
    Ok(())
}

/// Reserves the room of a large file before its parts come in any order: the filesystem would scatter it otherwise. Where this fails,
/// the writes tell whether there is room.
fn reserve(to: &OwnedFd, size_bytes: u64) {
    let _reserved = rustix::fs::fallocate(to, FallocateFlags::empty(), 0, size_bytes);
}
