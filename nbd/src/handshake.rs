//! The negotiation: structured replies, contexts, and the export.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::connection::Connection;
use crate::socket::{Input, Socket};
use crate::wire::{self, Fields};
use crate::{Address, Error, Result};

/// The context that tells which ranges are zeros.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Length of a reply to an option at most.
const REPLY_BYTES_MAX: u32 = 16 << 10;
/// Replies to one option at most.
const REPLIES_MAX: usize = 64;
/// Largest unit of reading. Servers have 512 or 4096.
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// Bytes that each server sends at once, unless it names a limit.
const PAYLOAD_BYTES: u32 = 32 << 20;

/// A map that a server agreed to tell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Context {
    /// The server's number for it on this connection.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// The outcome of a negotiation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Agreed {
    /// Length of the export.
    pub size_bytes: u64,
    /// Unit of offsets and lengths of requests, a power of two.
    pub block_bytes: u32,
    /// Bytes of a request at most.
    pub payload_bytes_max: u32,
    /// Whether replies are structured.
    pub is_structured: bool,
    /// Those contexts that the server has.
    pub contexts: Vec<Context>,
}

impl Agreed {
    /// Returns the number of a context, if the server has it.
    #[must_use]
    pub fn context(&self, name: &str) -> Option<u32> {
        self.contexts.iter().find(|context| context.name == name).map(|context| context.id)
    }

    /// Checks the numbers of a server, or of another process.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { size_bytes, block_bytes, payload_bytes_max, .. } = self;
        if i64::try_from(*size_bytes).is_err() {
            return Err(Error::protocol(format!("its export has {size_bytes} bytes")));
        }
        if !block_bytes.is_power_of_two() || *block_bytes > BLOCK_BYTES_MAX || payload_bytes_max < block_bytes {
            return Err(Error::protocol(format!("its blocks have {block_bytes} to {payload_bytes_max} bytes")));
        }
        Ok(())
    }
}

/// Connects to a server, and agrees on an export and on those of the contexts that it has.
///
/// # Errors
/// The server cannot be reached, refuses, or does not keep to the protocol; `GivenUp` when `keep_waiting` says no.
pub fn connect(address: &Address, contexts: &[&str], keep_waiting: &dyn Fn() -> bool) -> Result<Connection> {
    agree(Socket::connect(address)?, address, contexts, keep_waiting)
}

/// Agrees with a server on a connected socket, as [`connect`] does.
///
/// # Errors
/// Those of [`connect`].
pub fn negotiate(
    socket: OwnedFd,
    address: &Address,
    contexts: &[&str],
    keep_waiting: &dyn Fn() -> bool,
) -> Result<Connection> {
    agree(Socket::new(socket)?, address, contexts, keep_waiting)
}

fn agree(socket: Socket, address: &Address, contexts: &[&str], keep_waiting: &dyn Fn() -> bool) -> Result<Connection> {
    let mut talk = Talk { socket: &socket, input: Input::new(), keep_waiting };
    talk.greet()?;
    let is_structured = match talk.ask(wire::OPTION_STRUCTURED_REPLY, &[], &mut |_, _| Ok(()))? {
        Answer::Yes => true,
        // It says so to each option.
        Answer::No { needs_tls: true, .. } => return Err(refused(address, "it demands TLS, which is not spoken here")),
        Answer::No { .. } => false,
    };
    let mut agreed = Agreed {
        size_bytes: 0,
        block_bytes: 1,
        payload_bytes_max: PAYLOAD_BYTES,
        is_structured,
        contexts: if is_structured { talk.agree_on_contexts(address, contexts)? } else { Vec::new() },
    };
    talk.go(address, &mut agreed)?;
    agreed.check()?;
    let input = talk.input;
    Ok(Connection::new(socket, input, agreed))
}

fn refused(address: &Address, why: &str) -> Error {
    let what = match address.export() {
        "" => "its default export".to_owned(),
        export => format!("the export {export:?}"),
    };
    Error::Refused { what, why: why.to_owned() }
}

/// The end of the replies to an option.
enum Answer {
    Yes,
    No { why: String, needs_tls: bool },
}

/// A negotiation under way.
struct Talk<'a> {
    socket: &'a Socket,
    input: Input,
    keep_waiting: &'a dyn Fn() -> bool,
}

impl Talk<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.input.take(self.socket, self.keep_waiting)
    }

    fn greet(&mut self) -> Result<()> {
        let magic = u64::from_be_bytes(self.take()?);
        let style = u64::from_be_bytes(self.take()?);
        if magic != wire::MAGIC {
            return Err(Error::protocol("it does not greet as one: does another service listen there?"));
        }
        let flags = if style == wire::OPTION_MAGIC { u16::from_be_bytes(self.take()?) } else { 0 };
        if flags & wire::FIXED_NEWSTYLE == 0 {
            return Err(Error::protocol("it speaks the old protocol without options"));
        }
        let answer = u32::from(flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES));
        self.socket.send(&answer.to_be_bytes(), self.keep_waiting)
    }

    /// Sends an option. `visit` takes the kind and the data of each reply before the last one.
    fn ask(&mut self, option: u32, data: &[u8], visit: &mut dyn FnMut(u32, &[u8]) -> Result<()>) -> Result<Answer> {
        self.socket.send(&wire::option(option, data), self.keep_waiting)?;
        for _ in 0..REPLIES_MAX {
            let head: [u8; 20] = self.take()?;
            let mut head = Fields(&head);
            let (magic, about, kind, len_bytes) = (head.u64(), head.u32(), head.u32(), head.u32());
            let (kind, len_bytes) = (kind.unwrap_or_default(), len_bytes.unwrap_or_default());
            if magic != Some(wire::OPTION_REPLY_MAGIC) || about != Some(option) || len_bytes > REPLY_BYTES_MAX {
                return Err(Error::protocol(format!(
                    "its reply to option {option} has wrong magic numbers, or {len_bytes} bytes"
                )));
            }
            let data = self.input.take_vec(self.socket, len_bytes as usize, self.keep_waiting)?;
            if kind == wire::REPLY_ACK {
                return Ok(Answer::Yes);
            }
            if kind & wire::REPLY_IS_ERROR != 0 {
                return Ok(refusal(kind, &data));
            }
            visit(kind, &data)?;
        }
        Err(Error::protocol(format!("more than {REPLIES_MAX} replies to option {option}")))
    }

    fn agree_on_contexts(&mut self, address: &Address, wanted: &[&str]) -> Result<Vec<Context>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut data = Vec::new();
        wire::push_text(&mut data, address.export());
        data.extend((wanted.len() as u32).to_be_bytes());
        wanted.iter().for_each(|name| wire::push_text(&mut data, name));
        let mut contexts: Vec<Context> = Vec::new();
        let answer = self.ask(wire::OPTION_SET_META_CONTEXT, &data, &mut |kind, data| {
            let mut fields = Fields(data);
            if let Some(id) = fields.u32().filter(|_| kind == wire::REPLY_META_CONTEXT) {
                let name = fields.rest();
                if !wanted.contains(&name.as_str()) || contexts.iter().any(|known| known.id == id || known.name == name)
                {
                    return Err(Error::protocol(format!("it names the context {name:?} twice, or unasked")));
                }
                contexts.push(Context { id, name });
            }
            Ok(())
        })?;
        Ok(match answer {
            Answer::Yes => contexts,
            Answer::No { .. } => Vec::new(),
        })
    }

    fn go(&mut self, address: &Address, agreed: &mut Agreed) -> Result<()> {
        let mut data = Vec::new();
        wire::push_text(&mut data, address.export());
        data.extend(1_u16.to_be_bytes());
        data.extend(wire::INFO_BLOCK_SIZE.to_be_bytes());
        let mut size_bytes = None;
        let answer = self.ask(wire::OPTION_GO, &data, &mut |kind, data| {
            let mut fields = Fields(data);
            match fields.u16().filter(|_| kind == wire::REPLY_INFO) {
                Some(wire::INFO_EXPORT) => size_bytes = fields.u64(),
                Some(wire::INFO_BLOCK_SIZE) => {
                    let numbers = (fields.u32(), fields.u32(), fields.u32());
                    let (Some(least), Some(_), Some(greatest)) = numbers else {
                        return Err(Error::protocol("its sizes of blocks are cut"));
                    };
                    (agreed.block_bytes, agreed.payload_bytes_max) = (least, greatest);
                }
                _ => {}
            }
            Ok(())
        })?;
        if let Answer::No { why, .. } = answer {
            // Ends the negotiation in order.
            let _ = self.socket.send(&wire::option(wire::OPTION_ABORT, &[]), self.keep_waiting);
            return Err(refused(address, &why));
        }
        agreed.size_bytes = size_bytes.ok_or_else(|| Error::protocol("it names no length of its export"))?;
        Ok(())
    }
}

/// Returns an error of the server in words.
fn refusal(kind: u32, data: &[u8]) -> Answer {
    let number = kind & !wire::REPLY_IS_ERROR;
    let known = match number {
        1 => "it does not know the request",
        2 => "it is not allowed",
        3 => "it calls the request invalid",
        5 => "it demands TLS, which is not spoken here",
        6 => "there is no such export",
        7 => "it is shutting down",
        8 => "it demands another size of blocks",
        _ => "",
    };
    let said = String::from_utf8_lossy(data);
    let said: String = said.chars().filter(|letter| !letter.is_control()).take(200).collect();
    let why = match (known, said.as_str()) {
        ("", "") => format!("error {number}"),
        ("", said) => format!("{said} (error {number})"),
        (known, "") => known.to_owned(),
        (known, said) => format!("{known} ({said})"),
    };
    Answer::No { why, needs_tls: number == 5 }
}
