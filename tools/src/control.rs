//! The control socket: how tools reach the daemon that holds a pool.
//!
//! A mounted pool belongs to its daemon. So tools ask the daemon for statistics, reclaiming, checking, syncing and unmounting, over the
//! unix socket `control.sock` on the pool's meta root. If that cannot be reached, they use an abstract socket beside the pool's disk (see
//! [`address`]).
//!
//! 1. The tool connects, sends one line of JSON (a [`Request`] in an [`protocol::Envelope`]), and reads lines until the last. A request to copy a
//!    tree carries an open descriptor of the directory, or file, on the other side.
//! 2. The daemon sends any number of [`protocol::Reply`]s of progress, then exactly one result or failure, and closes the connection. One
//!    connection serves one request.
//!
//! Invariants:
//! - Only root and the daemon's own user are answered. The peer credentials of the socket decide, whatever mode the socket file has.
//! - A line longer than its limit ends the connection before it is parsed.
//! - A client that stops reading never stops the work it asked for.
//! - A daemon removes a socket file that a killed daemon left. It holds the pool's lock and has checked that no process listens there.
//!
//! Cost: one thread for each open connection, at most [`server::CONNECTIONS_MAX`] at once.

mod address;
mod client;
mod descriptor;
mod failure;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod protocol;
mod server;

pub(crate) use client::{ControlClient, DaemonWatch};
pub(crate) use failure::{Failure, FailureKind, lacks_room};
pub(crate) use protocol::{FreezeRequest, GetRequest, PutImageRequest, PutRequest, Request, SnapshotRequest};
pub(crate) use server::{ControlServer, ControlTarget, PoolSocket, to_value, without_descriptor};
