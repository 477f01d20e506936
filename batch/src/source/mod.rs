//! Where disks are read. A driver brings a disk to a point in time, says where the bytes of that moment are and which of them changed, and
//! lets go of it when the disk is stored.
//!
//! The order keeps a usable pair at any moment: the new checkpoint exists before the first byte is read, and the old one goes only when
//! the version is durable. The state is in the pool alone: each version has the token of its checkpoint.

mod exec;
mod qmp;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

pub use exec::Exec;
#[cfg(any(test, feature = "testing"))]
pub(crate) use qmp::Monitor;
pub use qmp::Qmp;

/// A source, as a plan names it: `KIND:WHERE`, and words `key=value`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Kind {
    /// `file:PATH [map=PATH]`: a file or a block device that stands still.
    File {
        /// The file.
        path: PathBuf,
        /// A map of its changes since the version before.
        map: Option<PathBuf>,
    },
    /// `nbd:ADDRESS [bitmap=NAME]`: an export that stands still.
    Nbd {
        /// `nbd://HOST/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
        address: String,
        /// A bitmap of its changes since the version before.
        bitmap: Option<String>,
    },
    /// `qmp:SOCKET node=NAME [scratch=DIRECTORY]`: a disk of a running qemu.
    Qmp {
        /// The socket of its monitor.
        socket: PathBuf,
        /// Name of the block node.
        node: String,
        /// Directory for what the guest overwrites while the disk is read.
        scratch: PathBuf,
    },
    /// `exec:PROGRAM [args=…]`: a program that does all this for a hypervisor that is unknown here.
    Exec {
        /// The program.
        program: PathBuf,
        /// Its one argument, before the verb.
        argument: Option<String>,
    },
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("source {text:?} {why}");
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(wrong("names no kind: file:, nbd:, qmp: or exec:".to_owned()));
        };
        let mut words = rest.split_whitespace();
        let place = words.next().ok_or_else(|| wrong("lacks a path or an address".to_owned()))?;
        let known: &[&str] = match kind {
            "file" => &["map"],
            "nbd" => &["bitmap"],
            "qmp" => &["node", "scratch"],
            "exec" => &["argument"],
            _ => return Err(wrong(format!("is of the kind {kind}, which is unknown: file:, nbd:, qmp: or exec:"))),
        };
        let mut values: Vec<(&str, &str)> = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((key, value))
                    if known.contains(&key) && !value.is_empty() && values.iter().all(|(other, _)| *other != key) =>
                {
                    values.push((key, value));
                }
                _ => return Err(wrong(format!("has the word {word}, which is unknown, empty or there twice"))),
            }
        }
        let value = |wanted: &str| values.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        Ok(match kind {
            "file" => Self::File { path: place.into(), map: value("map").map(PathBuf::from) },
            "nbd" => Self::Nbd { address: place.to_owned(), bitmap: value("bitmap").map(str::to_owned) },
            "qmp" => Self::Qmp {
                socket: place.into(),
                node: value("node").ok_or_else(|| wrong("lacks node=NAME".to_owned()))?.to_owned(),
                scratch: value("scratch").unwrap_or("/var/tmp").into(),
            },
            _ => Self::Exec { program: place.into(), argument: value("argument").map(str::to_owned) },
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(formatter, "file:{}", path.display()),
            Self::Nbd { address, .. } => write!(formatter, "nbd:{address}"),
            Self::Qmp { socket, node, .. } => write!(formatter, "qmp:{} node={node}", socket.display()),
            Self::Exec { program, .. } => write!(formatter, "exec:{}", program.display()),
        }
    }
}

/// A disk at a point in time, for `dedupfs put`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// A path, or the address of an export.
    pub source: String,
    /// Its map of changes since `token_from`.
    pub map: Option<String>,
    /// The state at which the map begins.
    pub token_from: Option<String>,
    /// This state.
    pub token: Option<String>,
    /// Bytes that changed, if that is known before they are read.
    pub dirty_bytes: Option<u64>,
    /// Why there is no map, although there could be one.
    pub without_map: Option<String>,
}

/// The end of a disk's backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The version is durable.
    Stored,
    /// There is no version.
    Failed,
}

/// Brings the disks of one source to a point in time. They are used in this order: `begin`, `check` when the disk was read, `end`.
pub trait Driver: Send {
    /// Brings all of its disks to the same point in time. `last` has the token of each disk's newest version.
    ///
    /// # Errors
    /// In words, for all of the disks. Then nothing is left behind.
    fn begin(&mut self, last: &[Option<String>]) -> Result<Vec<Point>, String>;

    /// Returns whether a disk stood still until now: a version that was read from it may stay.
    ///
    /// # Errors
    /// In words.
    fn check(&mut self, _disk: usize) -> Result<(), String> {
        Ok(())
    }

    /// Lets go of a disk.
    ///
    /// # Errors
    /// In words: something is left that somebody must look at. The version stays.
    fn end(&mut self, disk: usize, verdict: Verdict) -> Result<(), String>;
}

/// A source that stands still anyway.
#[derive(Debug)]
pub struct Still(pub Point);

impl Driver for Still {
    fn begin(&mut self, _last: &[Option<String>]) -> Result<Vec<Point>, String> {
        Ok(vec![self.0.clone()])
    }

    fn end(&mut self, _disk: usize, _verdict: Verdict) -> Result<(), String> {
        Ok(())
    }
}

/// A driver, and the places of its disks in a list.
pub type Driven = (Box<dyn Driver>, Vec<usize>);

/// Returns the drivers of disks that are one point in time.
#[must_use]
pub fn drivers(kinds: &[&Kind]) -> Vec<Driven> {
    let mut drivers: Vec<Driven> = Vec::new();
    // Disks of one qemu begin together.
    let mut monitors: BTreeMap<&Path, Vec<(usize, String, PathBuf)>> = BTreeMap::new();
    for (place, kind) in kinds.iter().enumerate() {
        let driver: Box<dyn Driver> = match kind {
            Kind::File { path, map } => Box::new(Still(Point {
                source: path.display().to_string(),
                map: map.as_ref().map(|map| map.display().to_string()),
                ..Point::default()
            })),
            Kind::Nbd { address, bitmap } => Box::new(Still(Point {
                source: address.clone(),
                map: bitmap.as_ref().map(|bitmap| format!("nbd:qemu:dirty-bitmap:{bitmap}")),
                ..Point::default()
            })),
            Kind::Exec { program, argument } => Box::new(Exec::new(program.clone(), argument.clone())),
            Kind::Qmp { socket, node, scratch } => {
                monitors.entry(socket).or_default().push((place, node.clone(), scratch.clone()));
                continue;
            }
        };
        drivers.push((driver, vec![place]));
    }
    drivers.extend(monitors.into_iter().map(|(socket, disks)| {
        let places = disks.iter().map(|(place, ..)| *place).collect();
        let nodes = disks.into_iter().map(|(_, node, scratch)| (node, scratch)).collect();
        (Box::new(Qmp::new(socket.to_owned(), nodes)) as Box<dyn Driver>, places)
    }));
    drivers
}
