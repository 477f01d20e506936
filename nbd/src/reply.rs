//! The reply to a request, which may come in chunks, in any order.

use std::ops::Range;

use crate::socket::{Input, Socket};
use crate::wire::{self, Fields};
use crate::{Error, Result};

/// Chunks of a reply at most. Servers send one for each extent of their file, and one for each context.
const CHUNKS_MAX: usize = 4096;
/// Bytes of a list of extents at most: by the protocol 2²⁰ extents.
const STATUS_BYTES_MAX: u32 = 4 + (8 << 20);
/// Bytes of a message about an error at most, with its head.
const MESSAGE_BYTES_MAX: u32 = 16 + 4096;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Content.
    Data(Range<u64>),
    /// The extents of a context.
    Status(Range<u64>, u32),
}

/// A stretch of an export in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) len_bytes: u32,
    pub(crate) flags: u32,
}

/// What has come of a reply.
#[derive(Debug)]
pub(crate) struct Reply {
    asked: Asked,
    pub(crate) data: Vec<u8>,
    /// The parts of `data` that were received, in order.
    got: Vec<Range<usize>>,
    pub(crate) stretches: Vec<Stretch>,
    refusal: Option<String>,
    chunks: usize,
    pub(crate) is_whole: bool,
}

/// Where replies come from.
pub(crate) struct From<'a> {
    pub(crate) input: &'a mut Input,
    pub(crate) socket: &'a Socket,
    pub(crate) keep_waiting: &'a dyn Fn() -> bool,
}

impl From<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.input.take(self.socket, self.keep_waiting)
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        self.input.fill(self.socket, into, self.keep_waiting)
    }

    fn take_vec(&mut self, len_bytes: u32) -> Result<Vec<u8>> {
        self.input.take_vec(self.socket, len_bytes as usize, self.keep_waiting)
    }
}

impl Reply {
    /// Begins a reply. `data` may hold bytes of another one: [`finish`](Self::finish) refuses a reply that leaves any of them.
    pub(crate) fn new(asked: Asked, mut data: Vec<u8>) -> Self {
        let len_bytes = match &asked {
            Asked::Data(range) => (range.end - range.start) as usize,
            Asked::Status(..) => 0,
        };
        // Growing would take more than is needed.
        match data.capacity() < len_bytes {
            true => data = vec![0; len_bytes],
            false => data.resize(len_bytes, 0),
        }
        Self { asked, data, got: Vec::new(), stretches: Vec::new(), refusal: None, chunks: 0, is_whole: false }
    }

    /// Takes a reply without chunks.
    pub(crate) fn simple(&mut self, error: u32, is_structured: bool, from: &mut From<'_>) -> Result<()> {
        self.is_whole = true;
        if error != 0 {
            self.refusal = Some(words(error, ""));
            return Ok(());
        }
        if is_structured || !matches!(self.asked, Asked::Data(_)) {
            return Err(Error::protocol("a reply has no chunks, although that was agreed on"));
        }
        self.got.push(0..self.data.len());
        from.fill(&mut self.data)
    }

    /// Takes a chunk.
    pub(crate) fn chunk(&mut self, (kind, flags): (u16, u16), len_bytes: u32, from: &mut From<'_>) -> Result<()> {
        self.chunks += 1;
        if self.chunks > CHUNKS_MAX {
            return Err(Error::protocol(format!("a reply has more than {CHUNKS_MAX} chunks")));
        }
        let wrong_length = || Error::protocol(format!("a chunk of kind {kind} has {len_bytes} bytes"));
        match kind {
            wire::CHUNK_NONE if len_bytes == 0 && flags & wire::CHUNK_IS_LAST != 0 => {}
            wire::CHUNK_DATA => {
                let data_bytes = len_bytes.checked_sub(8).ok_or_else(wrong_length)?;
                let offset = u64::from_be_bytes(from.take()?);
                let place = self.place(offset, data_bytes)?;
                from.fill(self.data.get_mut(place).unwrap_or_default())?;
            }
            wire::CHUNK_HOLE if len_bytes == 12 => {
                let offset = u64::from_be_bytes(from.take()?);
                let hole_bytes = u32::from_be_bytes(from.take()?);
                let place = self.place(offset, hole_bytes)?;
                self.data.get_mut(place).unwrap_or_default().fill(0);
            }
            wire::CHUNK_BLOCK_STATUS if len_bytes % 8 == 4 && len_bytes <= STATUS_BYTES_MAX => {
                let id = u32::from_be_bytes(from.take()?);
                let list = from.take_vec(len_bytes - 4)?;
                self.status(id, &list)?;
            }
            kind if kind & wire::CHUNK_IS_ERROR != 0 && (6..=MESSAGE_BYTES_MAX).contains(&len_bytes) => {
                let message = from.take_vec(len_bytes)?;
                let mut fields = Fields(&message);
                let (error, text_bytes) = (fields.u32().unwrap_or_default(), fields.u16().unwrap_or_default());
                let text = fields.text(usize::from(text_bytes)).ok_or_else(wrong_length)?;
                self.refusal.get_or_insert_with(|| words(error, &text));
            }
            _ => return Err(wrong_length()),
        }
        self.is_whole = flags & wire::CHUNK_IS_LAST != 0;
        Ok(())
    }

    /// Returns the place of a part in `data`, which must be wanted, and must not have come before.
    fn place(&mut self, offset: u64, len_bytes: u32) -> Result<Range<usize>> {
        let wrong = || Error::protocol(format!("it sends {len_bytes} bytes at {offset}, which nobody asked for"));
        let Asked::Data(wanted) = &self.asked else { return Err(wrong()) };
        let from = offset.checked_sub(wanted.start).ok_or_else(wrong)?;
        let to = from.checked_add(u64::from(len_bytes)).filter(|to| *to <= self.data.len() as u64).ok_or_else(wrong)?;
        let place = from as usize..to as usize;
        let before = self.got.partition_point(|part| part.start < place.start);
        let ends_before =
            before.checked_sub(1).and_then(|last| self.got.get(last)).is_none_or(|last| last.end <= place.start);
        let begins_behind = self.got.get(before).is_none_or(|next| place.end <= next.start);
        if place.is_empty() || !ends_before || !begins_behind {
            return Err(wrong());
        }
        self.got.insert(before, place.clone());
        Ok(place)
    }

    fn status(&mut self, id: u32, list: &[u8]) -> Result<()> {
        let wrong = |why: &str| Error::protocol(format!("it tells extents {why}"));
        let Asked::Status(wanted, context) = &self.asked else { return Err(wrong("that nobody asked for")) };
        // A connection with several contexts tells of all of them.
        if id != *context {
            return Ok(());
        }
        if !self.stretches.is_empty() {
            return Err(wrong("twice"));
        }
        let (pairs, _) = list.as_chunks::<8>();
        let (mut covered_bytes, wanted_bytes) = (0, wanted.end - wanted.start);
        for pair in pairs {
            let mut fields = Fields(pair);
            let (len_bytes, flags) = (fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default());
            if len_bytes == 0 || covered_bytes >= wanted_bytes {
                return Err(wrong("that are empty, or lie behind the range that was asked for"));
            }
            covered_bytes += u64::from(len_bytes);
            self.stretches.push(Stretch { len_bytes, flags });
        }
        if self.stretches.is_empty() { Err(wrong("without any")) } else { Ok(()) }
    }

    /// Checks that nothing lacks.
    pub(crate) fn finish(self) -> Result<Self> {
        let (what, is_complete) = match &self.asked {
            Asked::Data(range) => {
                let bytes: usize = self.got.iter().map(ExactSizeIterator::len).sum();
                (format!("to read {} bytes at {}", range.end - range.start, range.start), bytes == self.data.len())
            }
            Asked::Status(range, _) => {
                (format!("to tell the extents from {} on", range.start), !self.stretches.is_empty())
            }
        };
        match &self.refusal {
            Some(why) => Err(Error::Refused { what, why: why.clone() }),
            None if is_complete => Ok(self),
            None => Err(Error::protocol(format!("it was asked {what}, and sent less"))),
        }
    }
}

/// Returns an error of the server in words.
fn words(error: u32, text: &str) -> String {
    let known = std::io::Error::from_raw_os_error(i32::try_from(error).unwrap_or(i32::MAX));
    let text: String = text.chars().filter(|letter| !letter.is_control()).take(200).collect();
    if text.is_empty() { known.to_string() } else { format!("{text} ({known})") }
}
