//! Reading the segments of one image, and cutting them as the pool does.

use std::num::NonZeroU64;

use dedupfs::Progress;
use dedupfs::transfer::{Change, Cutter, Fingerprint, Pace};
use dedupfs_detect::{ASKS_OF_A_CALL, Ask, CHUNK_BYTES_MAX, Disks, Error, Result};

use super::segments::SEGMENT_BYTES;

/// Fills a buffer with the bytes of an image from an offset on, or says why not.
pub(crate) type Reader<'a> = Box<dyn FnMut(u64, &mut [u8]) -> std::result::Result<(), String> + Send + 'a>;

/// The segments of an image. Memory: a segment and the rest of a chunk.
pub(crate) struct SegmentReader<'a> {
    pub(crate) disk: u32,
    cutter: Cutter,
    segments: std::vec::IntoIter<Change>,
    /// The part of the current range that is not read yet.
    range: Option<Change>,
    /// Bytes that are read and not cut yet, and the offset of the first.
    bytes: Vec<u8>,
    at: u64,
    chunks: Vec<(Fingerprint, u32)>,
    read: Reader<'a>,
    pace: Option<Pace>,
    progress: &'a dyn Progress,
}

impl<'a> SegmentReader<'a> {
    /// `disk` is its number.
    pub(crate) fn new(
        disk: u32,
        cutter: Cutter,
        (segments, read): (Vec<Change>, Reader<'a>),
        rate: Option<NonZeroU64>,
        progress: &'a dyn Progress,
    ) -> Self {
        let (segments, pace) = (segments.into_iter(), rate.map(Pace::new));
        Self { disk, cutter, segments, range: None, bytes: Vec::new(), at: 0, chunks: Vec::new(), read, pace, progress }
    }

    /// Bytes of the segments that are not cut yet.
    pub(crate) fn bytes_to_cut(&self) -> u64 {
        let waiting = self.range.iter().chain(self.segments.as_slice());
        waiting.filter(|range| !range.is_zero).map(|range| range.to - range.from).sum()
    }

    fn read_on(&mut self, wanted_bytes: u64) -> Result<()> {
        let filled = self.bytes.len();
        self.bytes.resize(filled + usize::try_from(wanted_bytes).unwrap_or(0), 0);
        let into = self.bytes.get_mut(filled..).unwrap_or_default();
        (self.read)(self.at + filled as u64, into).map_err(|why| Error::Disk { disk: self.disk, why })?;
        if let Some(pace) = &self.pace {
            pace.pass(into.len(), || !self.progress.is_cancelled());
        }
        self.progress.advance(wanted_bytes);
        Ok(())
    }

    fn ask(&mut self, fingerprint: Fingerprint, len_bytes: u32, asks: &mut Vec<Ask>) {
        let at = self.at;
        self.at += u64::from(len_bytes);
        // Zeros have no length of their own.
        if fingerprint.is_zero()
            && let Some(last) = asks.last_mut()
            && last.fingerprint == fingerprint.0
            && last.at + u64::from(last.len_bytes) == at
            && last.len_bytes + len_bytes <= CHUNK_BYTES_MAX
        {
            last.len_bytes += len_bytes;
            return;
        }
        asks.push(Ask { fingerprint: fingerprint.0, len_bytes, disk: self.disk, at });
    }
}

impl Disks for SegmentReader<'_> {
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool> {
        let Some(mut range) = self.range.take().or_else(|| self.segments.next()) else {
            // A machine has many disks, and cuts one at a time.
            (self.bytes, self.chunks) = (Vec::new(), Vec::new());
            return Ok(false);
        };
        if self.bytes.is_empty() {
            self.at = range.from;
        }
        if range.is_zero {
            let mut left = range.to - range.from;
            while left > 0 && asks.len() < ASKS_OF_A_CALL {
                let len_bytes = u32::try_from(left).unwrap_or(u32::MAX).min(CHUNK_BYTES_MAX);
                self.ask(Fingerprint::ZERO, len_bytes, asks);
                left -= u64::from(len_bytes);
                // `ask` may have joined it with the one before, never with more than fits.
            }
            range.from = range.to - left;
        } else {
            let wanted_bytes = (range.to - range.from).min(SEGMENT_BYTES);
            self.read_on(wanted_bytes)?;
            range.from += wanted_bytes;
            let (mut bytes, mut chunks) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.chunks));
            let cut_bytes = self.cutter.cut(&bytes, range.from == range.to, &mut chunks);
            for (fingerprint, len_bytes) in chunks.drain(..) {
                self.ask(fingerprint, len_bytes, asks);
            }
            bytes.drain(..cut_bytes);
            (self.bytes, self.chunks) = (bytes, chunks);
        }
        self.range = (range.from < range.to).then_some(range);
        Ok(true)
    }

    fn read(&mut self, _disk: u32, at: u64, into: &mut [u8]) -> Result<()> {
        (self.read)(at, into).map_err(|why| Error::Disk { disk: self.disk, why })
    }

    fn fingerprint(&self, bytes: &[u8]) -> [u8; 32] {
        self.cutter.fingerprint(bytes).0
    }
}
