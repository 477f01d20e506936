//! Reads the content of a file on a disk, without its holes.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;

use super::super::tally::{Outcome, Tally, Trouble, reading};

/// Limit of bytes copied beyond the size that a file had when it was opened: some files report no size, and some have no end.
const BEYOND_SIZE_BYTES_MAX: u64 = 16 << 20;

/// Takes the content of one file.
pub(super) trait ContentSink {
    /// Takes bytes at an offset; offsets ascend.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome<()>;
    /// Ends the file with a hole up to this size.
    fn extend_to(&mut self, size_bytes: u64) -> Outcome<()>;
}

/// The file that is read.
pub(super) struct Source<'a> {
    pub(super) from: BorrowedFd<'a>,
    /// As it was when it was opened.
    pub(super) stat: &'a Stat,
    /// It is a view of the kernel, not a file on a disk.
    pub(super) is_pseudo: bool,
    pub(super) path: &'a dyn Fn() -> PathBuf,
}

impl Source<'_> {
    /// Copies all content except holes; returns the bytes copied.
    pub(super) fn copy(&self, tally: &Tally<'_>, buffer: &mut [u8], sink: &mut dyn ContentSink) -> Outcome<u64> {
        let size_bytes = u64::try_from(self.stat.st_size).unwrap_or(0);
        if self.is_pseudo && size_bytes > BEYOND_SIZE_BYTES_MAX {
            return Err(Trouble::One("a view of the kernel, larger than any file of its kind: left out".to_owned()));
        }
        let limit = size_bytes.saturating_add(BEYOND_SIZE_BYTES_MAX);
        let has_holes = u64::try_from(self.stat.st_blocks).unwrap_or(0).saturating_mul(512) < size_bytes;
        let cannot_read = |errno: Errno| match reading("cannot read it")(errno) {
            // The kernel refuses to show some of its files; that says nothing about a disk.
            Trouble::Unreadable(what) if self.is_pseudo => Trouble::One(what),
            trouble => trouble,
        };
        let (mut offset, mut copied_bytes) = (0, 0);
        loop {
            let mut end = u64::MAX;
            if has_holes {
                match next_data(self.from, offset)? {
                    Some(range) => (offset, end) = (range.start, range.end),
                    None => break,
                }
            }
            while offset < end {
                tally.go_on()?;
                let len = buffer.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
                let space = buffer.get_mut(..len).unwrap_or_default();
                let read = rustix::io::pread(self.from, &mut *space, offset).map_err(cannot_read)?;
                let bytes = space.get(..read).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(copied_bytes);
                }
                sink.write(offset, bytes)?;
                tally.content(read);
                offset += read as u64;
                copied_bytes += read as u64;
                if offset >= limit {
                    let what = format!("goes on behind the {size_bytes} bytes that it had: cut at {offset}");
                    tally.problem(&(self.path)(), what);
                    return Ok(copied_bytes);
                }
            }
        }
        if offset < size_bytes {
            sink.extend_to(size_bytes)?;
        }
        Ok(copied_bytes)
    }
}

/// Returns the range of data at or behind `offset`; `None` if only a hole is left.
pub(super) fn next_data(from: BorrowedFd<'_>, offset: u64) -> Outcome<Option<std::ops::Range<u64>>> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..u64::MAX)),
        Err(errno) => return Err(reading("cannot read it")(errno)),
    };
    let end = rustix::fs::seek(from, SeekFrom::Hole(start)).map_err(reading("cannot read it"))?;
    Ok(Some(start..end.max(start + 1)))
}
