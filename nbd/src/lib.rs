//! Client of network block devices (NBD): reads exports, and asks which of their ranges changed or are zeros.
//!
//! 1. [`Address`] is where a server listens, and the name of its export.
//! 2. [`connect`] agrees with the server on the export and on *contexts*: maps of its ranges.
//! 3. [`Connection`] reads from any thread, with several requests on the way, and asks for such maps.
//! 4. [`Connection::into_parts`] gives up the socket, so that another process can go on with it.
//!
//! The server is not believed: lengths, places and numbers in its replies are checked, and bound the memory that they take.
//!
//! Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, `doc/proto.md`): fixed newstyle negotiation, structured replies,
//! contexts. Without TLS, extended headers and writing.

mod address;
mod connection;
mod error;
mod handshake;
mod map;
mod reply;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use address::Address;
pub use connection::Connection;
pub use error::{Error, Result};
pub use handshake::{Agreed, BASE_ALLOCATION, Context, connect, negotiate};
pub use map::{Extent, STATE_DIRTY, STATE_ZERO};
