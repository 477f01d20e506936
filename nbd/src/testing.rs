//! A server of one export for tests, that may lie. It panics where a client does not keep to the protocol.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use crate::wire::{self, Fields};
use crate::{BASE_ALLOCATION, STATE_ZERO};

/// The bitmap of the export.
pub const BITMAP: &str = "qemu:dirty-bitmap:b0";

/// How a server differs from a good one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// By the protocol.
    #[default]
    Good,
    /// Without structured replies.
    Old,
    /// Replies in many chunks, the last one first, holes among them.
    InParts,
    /// Says that it demands TLS.
    DemandsTls,
    /// Has no such export.
    LacksExport,
    /// Has no contexts.
    LacksContexts,
    /// Its blocks have three bytes.
    OddBlocks,
    /// Its export has 2⁶⁴ - 1 bytes.
    HugeExport,
    /// Its replies in the negotiation have 2³² - 1 bytes.
    HugeReply,
    /// Names a context that nobody asked for.
    UnaskedContext,
    /// Replies to another request.
    ForeignCookie,
    /// Sends a byte behind the wanted ones.
    DataBeyond,
    /// Sends a byte twice.
    DataTwice,
    /// Sends half.
    DataMissing,
    /// Tells extents without bytes.
    EmptyExtent,
    /// Tells extents behind the wanted range.
    ExtentsBehind,
    /// Tells no extents.
    NoExtents,
    /// Cannot read.
    RefusesReading,
    /// Replies to no request.
    IsSilent,
    /// Hangs up.
    Leaves,
    /// Tells that everything is zeros.
    CallsDataZeros,
}

/// What a server exports.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// A multiple of 512 bytes.
    pub content: Vec<u8>,
    /// The dirty ranges of [`BITMAP`], in units of [`UNIT_BYTES`].
    pub dirty_units: Vec<Range<u64>>,
}

/// The unit of extents.
pub const UNIT_BYTES: u64 = 64 << 10;

impl Export {
    /// The flags of a unit in a context.
    #[must_use]
    pub fn flags(&self, context: &str, unit: u64) -> u32 {
        if context == BITMAP {
            return u32::from(self.dirty_units.iter().any(|units| units.contains(&unit)));
        }
        let mut content = self.content.iter().skip((unit * UNIT_BYTES) as usize).take(UNIT_BYTES as usize);
        if content.all(|byte| *byte == 0) { STATE_ZERO | 1 } else { 0 }
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Server(Option<JoinHandle<()>>);

impl Server {
    /// Serves an export to one client, in blocks of 512 bytes.
    ///
    /// # Panics
    /// Nothing can listen at this path.
    #[must_use]
    pub fn at(path: &Path, export: Export, kind: Kind) -> Self {
        let listener = UnixListener::bind(path).expect("binds");
        Self(Some(std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accepts");
            // The client may leave at any time.
            let _ = Session { stream, export, kind, contexts: 0 }.serve();
        })))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.0.take().map(JoinHandle::join);
        assert!(!matches!(ended, Some(Err(_))) || std::thread::panicking(), "the server failed");
    }
}

struct Session {
    stream: UnixStream,
    export: Export,
    kind: Kind,
    contexts: usize,
}

const CONTEXTS: [(u32, &str); 2] = [(7, BASE_ALLOCATION), (9, BITMAP)];

impl Session {
    fn take(&mut self, len_bytes: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn send(&mut self, parts: &[&[u8]]) -> std::io::Result<()> {
        self.stream.write_all(&parts.concat())
    }

    fn serve(mut self) -> std::io::Result<()> {
        self.send(&[b"NBDMAGICIHAVEOPT", &3_u16.to_be_bytes()])?;
        assert_eq!(self.take(4)?, [0, 0, 0, 3]);
        while !self.negotiate()? {}
        while self.answer()? {}
        Ok(())
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> std::io::Result<()> {
        let claimed = if self.kind == Kind::HugeReply { u32::MAX } else { data.len() as u32 };
        self.send(&[
            &wire::OPTION_REPLY_MAGIC.to_be_bytes(),
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &claimed.to_be_bytes(),
            data,
        ])
    }

    /// Answers an option. Returns whether it was the last one.
    fn negotiate(&mut self) -> std::io::Result<bool> {
        let head = self.take(16)?;
        let mut head = Fields(&head);
        assert_eq!(head.u64(), Some(wire::OPTION_MAGIC));
        let (option, len_bytes) = (head.u32().expect("is there"), head.u32().expect("is there"));
        let data = self.take(len_bytes as usize)?;
        match (option, self.kind) {
            (_, Kind::DemandsTls) => self.reply(option, wire::REPLY_IS_ERROR | 5, b"")?,
            (wire::OPTION_STRUCTURED_REPLY, Kind::Old) => self.reply(option, wire::REPLY_IS_ERROR | 1, b"")?,
            (wire::OPTION_STRUCTURED_REPLY, _) => self.reply(option, wire::REPLY_ACK, b"")?,
            (wire::OPTION_SET_META_CONTEXT, Kind::LacksContexts) => self.reply(option, wire::REPLY_ACK, b"")?,
            (wire::OPTION_SET_META_CONTEXT, kind) => {
                let mut data = Fields(&data);
                let export_bytes = data.u32().expect("is there");
                assert_eq!(data.text(export_bytes as usize).as_deref(), Some(self.export.name.as_str()));
                for _ in 0..data.u32().expect("is there") {
                    let len_bytes = data.u32().expect("is there");
                    let name = data.text(len_bytes as usize).expect("is there");
                    let Some((id, name)) = CONTEXTS.iter().find(|(_, known)| *known == name) else { continue };
                    let name = if kind == Kind::UnaskedContext { "other:context" } else { name };
                    self.contexts += 1;
                    self.reply(option, wire::REPLY_META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()].concat())?;
                }
                self.reply(option, wire::REPLY_ACK, b"")?;
            }
            (wire::OPTION_GO, Kind::LacksExport) => self.reply(option, wire::REPLY_IS_ERROR | 6, b"not here")?,
            (wire::OPTION_GO, kind) => {
                let size_bytes = if kind == Kind::HugeExport { u64::MAX } else { self.export.content.len() as u64 };
                let export = [&wire::INFO_EXPORT.to_be_bytes()[..], &size_bytes.to_be_bytes(), &[0, 3]].concat();
                self.reply(option, wire::REPLY_INFO, &export)?;
                let least = if kind == Kind::OddBlocks { 3_u32 } else { 512 };
                let numbers = [least, 4096, 32 << 20].map(u32::to_be_bytes).concat();
                self.reply(option, wire::REPLY_INFO, &[&wire::INFO_BLOCK_SIZE.to_be_bytes()[..], &numbers].concat())?;
                self.reply(option, wire::REPLY_ACK, b"")?;
                return Ok(true);
            }
            _ => return Err(std::io::ErrorKind::Other.into()),
        }
        Ok(false)
    }

    fn chunk(&mut self, (flags, kind): (u16, u16), cookie: u64, data: &[&[u8]]) -> std::io::Result<()> {
        let data = data.concat();
        self.send(&[
            &wire::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            &data,
        ])
    }

    /// Answers a request. Returns whether there will be more.
    fn answer(&mut self) -> std::io::Result<bool> {
        let head = self.take(28)?;
        let mut head = Fields(&head);
        assert_eq!((head.u32(), head.u16()), (Some(wire::REQUEST_MAGIC), Some(0)));
        let (command, cookie) = (head.u16().expect("is there"), head.u64().expect("is there"));
        let (offset, len_bytes) = (head.u64().expect("is there"), head.u32().expect("is there"));
        if command == wire::COMMAND_DISCONNECT {
            return Ok(false);
        }
        assert!(offset.is_multiple_of(512) && len_bytes.is_multiple_of(512) && len_bytes > 0);
        match self.kind {
            Kind::IsSilent => return self.take(1).map(|_| true),
            Kind::Leaves => return Ok(false),
            _ => {}
        }
        match command {
            wire::COMMAND_READ => self.read(cookie, offset, len_bytes)?,
            _ => self.status(cookie, offset, u64::from(len_bytes))?,
        }
        Ok(true)
    }

    fn read(&mut self, cookie: u64, offset: u64, len_bytes: u32) -> std::io::Result<()> {
        let data = self.export.content[offset as usize..][..len_bytes as usize].to_vec();
        let half = data.len() / 2;
        let at = |place: usize| (offset + place as u64).to_be_bytes();
        match self.kind {
            Kind::Old => self.send(&[
                &wire::SIMPLE_REPLY_MAGIC.to_be_bytes(),
                &0_u32.to_be_bytes(),
                &cookie.to_be_bytes(),
                &data,
            ]),
            Kind::RefusesReading => {
                let text = b"bad\nsector";
                let message = [&5_u32.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
                self.chunk((1, wire::CHUNK_IS_ERROR | 1), cookie, &[&message])
            }
            Kind::InParts => {
                for place in (0..data.len()).step_by(512).rev() {
                    let part = &data[place..place + 512];
                    match part.iter().all(|byte| *byte == 0) {
                        true => self.chunk((0, wire::CHUNK_HOLE), cookie, &[&at(place), &512_u32.to_be_bytes()])?,
                        false => self.chunk((0, wire::CHUNK_DATA), cookie, &[&at(place), part])?,
                    }
                }
                self.chunk((1, wire::CHUNK_NONE), cookie, &[])
            }
            Kind::ForeignCookie => self.chunk((1, wire::CHUNK_DATA), cookie + 1000, &[&at(0), &data]),
            Kind::DataBeyond => self.chunk((1, wire::CHUNK_DATA), cookie, &[&at(1), &data]),
            Kind::DataTwice => {
                self.chunk((0, wire::CHUNK_DATA), cookie, &[&at(0), &data[..half + 1]])?;
                self.chunk((1, wire::CHUNK_DATA), cookie, &[&at(half), &data[half..]])
            }
            Kind::DataMissing => self.chunk((1, wire::CHUNK_DATA), cookie, &[&at(0), &data[..half]]),
            _ => self.chunk((1, wire::CHUNK_DATA), cookie, &[&at(0), &data]),
        }
    }

    fn status(&mut self, cookie: u64, offset: u64, len_bytes: u64) -> std::io::Result<()> {
        for (number, (id, name)) in CONTEXTS.iter().take(self.contexts).enumerate() {
            let mut list = id.to_be_bytes().to_vec();
            let mut at = offset;
            while at < offset + len_bytes {
                let unit = at / UNIT_BYTES;
                // The last one goes beyond the question, also beyond the export.
                let extent_bytes = if self.kind == Kind::EmptyExtent { 0 } else { (unit + 1) * UNIT_BYTES - at };
                list.extend((extent_bytes as u32).to_be_bytes());
                let lies = self.kind == Kind::CallsDataZeros && *name == BASE_ALLOCATION;
                let flags = if lies { STATE_ZERO } else { self.export.flags(name, unit) };
                list.extend(flags.to_be_bytes());
                at += extent_bytes.max(1 << 16);
            }
            match self.kind {
                Kind::ExtentsBehind => list.extend([0, 0, 2, 0, 0, 0, 0, 0]),
                Kind::NoExtents => list.truncate(4),
                _ => {}
            }
            let is_last = u16::from(number + 1 == self.contexts);
            self.chunk((is_last, wire::CHUNK_BLOCK_STATUS), cookie, &[&list])?;
        }
        Ok(())
    }
}
