//! The control socket: how the tools talk to the daemon that holds a pool.
//!
//! A mounted pool belongs to its daemon, so statistics, reclaiming, checking, syncing and unmounting are asked of it
//! over the unix socket `control.sock` on the pool's meta root, or over one beside the pool's disk if that cannot be reached (see
//! [`address`]).
//!
//! 1. The tool connects, sends one line of JSON (a [`Request`] in an [`Envelope`]), and reads lines until the last.
//!    With a request to copy a tree goes the directory, or file, on the other side, open.
//! 2. The daemon answers any number of [`Reply::Start`], [`Reply::Advance`], [`Reply::Finish`] (progress), then
//!    exactly one [`Reply::Done`] or [`Reply::Failed`], and closes the connection. One connection, one request.
//!
//! Invariants: only root and the daemon's own user are answered (peer credentials of the socket, whatever the file's
//! mode says); a line longer than its limit ends the connection before it is parsed; a client that stops reading
//! never stops the work it asked for; a socket file left behind by a killed daemon is removed by the next one, which
//! holds the pool's lock and has asked whether somebody listens there.
//!
//! Cost: one thread while a connection is open, at most [`CONNECTIONS_MAX`] at once.

mod address;
mod client;
mod descriptor;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
mod server;

pub(crate) use address::is_living;
pub use client::{ControlClient, DaemonWatch};
pub use failure::{Failure, FailureKind, lacks_room};
pub use protocol::{Envelope, GetRequest, PROTOCOL_VERSION, PutRequest, Reply, Request};
pub use server::{CONNECTIONS_MAX, ControlServer, ControlTarget};

/// Name of the socket on the pool's meta root.
pub const SOCKET_NAME: &str = "control.sock";
