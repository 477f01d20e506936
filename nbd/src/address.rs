//! Addresses of exports: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use fluent_uri::Uri;
use fluent_uri::component::Host;

use crate::{Error, Result};

/// The port that IANA gave to NBD.
const PORT: u16 = 10809;
/// Longest name of an export in bytes, by the protocol.
const EXPORT_BYTES_MAX: usize = 4096;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    pub(crate) server: Server,
    pub(crate) export: String,
    shown: String,
}

impl Address {
    /// Whether this text is meant as an address of an export, and not as a path.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let (scheme, _) = text.split_once("://").unwrap_or_default();
        matches!(scheme.split('+').next(), Some("nbd" | "nbds"))
    }

    /// Reads an address.
    ///
    /// # Errors
    /// `Address`, with the form that it should have.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::Address(format!(
                "{text} is no address of an NBD export: {why}; give nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH"
            ))
        };
        let uri = Uri::parse(text).map_err(|error| wrong(&error.to_string()))?;
        let authority = uri.authority();
        if authority.is_some_and(|authority| authority.has_userinfo()) || uri.fragment().is_some() {
            return Err(wrong("it has a user, a password or a fragment"));
        }
        let mut socket = None;
        for part in uri.query().into_iter().flat_map(|query| query.split('&')) {
            match part.split_once('=') {
                Some((key, path)) if key.as_str() == "socket" && socket.is_none() && !path.is_empty() => {
                    socket = Some(PathBuf::from(OsString::from_vec(path.decode().to_bytes().into_owned())));
                }
                _ => return Err(wrong(&format!("its part `{part}` is unknown, empty, or there twice"))),
            }
        }
        let host = authority.map(|authority| match authority.host_parsed() {
            // Brackets belong to the address alone.
            Host::Ipv6 { .. } => authority.host().trim_matches(['[', ']']).to_owned(),
            _ => authority.host().to_owned(),
        });
        let host = host.filter(|host| !host.is_empty());
        let server = match (uri.scheme().as_str(), host, socket) {
            ("nbd+unix", None, Some(path)) => Server::Unix(path),
            ("nbd+unix", Some(_), _) => {
                return Err(wrong("a socket has no host: three slashes stand behind the colon"));
            }
            ("nbd+unix", _, None) => return Err(wrong("it lacks ?socket=PATH")),
            ("nbd", Some(host), None) => {
                let port = authority.map(|authority| authority.port_to_u16()).transpose();
                let port = port.map_err(|_| wrong("its port is no number up to 65535"))?.flatten().unwrap_or(PORT);
                Server::Tcp { host, port }
            }
            ("nbd", _, Some(_)) => return Err(wrong("?socket=PATH belongs to nbd+unix:")),
            ("nbd", None, None) => return Err(wrong("it lacks a host")),
            ("nbds" | "nbds+unix", ..) => {
                return Err(wrong("TLS is not spoken here: lead the connection through ssh or stunnel"));
            }
            (scheme, ..) => return Err(wrong(&format!("`{scheme}:` is unknown"))),
        };
        let export = uri.path().decode().to_string().map_err(|_| wrong("the name of its export is no text"))?;
        let export = export.strip_prefix('/').unwrap_or(&export).to_owned();
        if export.len() > EXPORT_BYTES_MAX {
            return Err(wrong("the name of its export is longer than 4096 bytes"));
        }
        Ok(Self { server, export, shown: text.to_owned() })
    }

    /// The name of the export; empty for the server's default.
    #[must_use]
    pub fn export(&self) -> &str {
        &self.export
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown)
    }
}
