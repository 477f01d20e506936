//! Where disks are read. A driver brings a disk to a point in time, says where the bytes of that moment are and which of them changed, and
//! lets go of it when the disk is stored.
//!
//! The order keeps a usable pair at any moment: the new checkpoint exists before the first byte is read, and the old one goes only when
//! the version is durable. The state is in the pool alone: each version has the token of its checkpoint.

mod agent;
mod exec;
mod lvm;
mod names;
mod program;
mod qmp;
mod rbd;
mod server;
mod snapshots;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

pub use agent::{Agent, Frozen};
use exec::Exec;
use lvm::Volume;
#[cfg(any(test, feature = "testing"))]
pub(crate) use qmp::Monitor;
use qmp::{Qmp, QmpDisk};
use rbd::Image;
use snapshots::Snapshots;

/// What a plan may name.
const KINDS: &str = "file:, nbd:, qmp:, lvm-thin:, rbd: or exec:";

/// A source, as a plan names it: `KIND:WHERE`, and words `key=value`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Kind {
    /// `file:PATH`: a file or a block device that stands still. It names no state, so all of it is read.
    File {
        /// The file.
        path: PathBuf,
    },
    /// `nbd:ADDRESS`: an export that stands still. The same.
    Nbd {
        /// `nbd://HOST/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
        address: String,
    },
    /// `qmp:SOCKET node=NAME scratch=DIRECTORY`: a disk of a running qemu.
    Qmp {
        /// The socket of its monitor.
        socket: PathBuf,
        /// Name of the block node.
        node: String,
        /// Directory for what the guest overwrites while the disk is read.
        scratch: PathBuf,
    },
    /// `lvm-thin:VG/LV`: a thin volume of LVM.
    LvmThin {
        /// The group and the volume.
        volume: String,
    },
    /// `rbd:POOL/IMAGE [user=NAME] [conf=FILE]`: an image of Ceph.
    Rbd {
        /// The pool, perhaps a namespace, and the image.
        image: String,
        /// Name of a client without `client.`.
        user: Option<String>,
        /// Configuration of the cluster.
        conf: Option<String>,
    },
    /// `exec:PROGRAM [argument=WORD]`: a program that does all this for a hypervisor that is unknown here.
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

/// Whether a text is an address of NBD.
fn is_address(text: &str) -> bool {
    text.starts_with("nbd://") || text.starts_with("nbd+unix://")
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("source {text:?} {why}");
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(wrong(format!("names no kind: {KINDS}")));
        };
        let mut words = rest.split_whitespace();
        let place = words.next().ok_or_else(|| wrong("lacks a path or an address".to_owned()))?;
        let known: &[&str] = match kind {
            "file" | "nbd" => &[],
            "qmp" => &["node", "scratch"],
            "lvm-thin" => &[],
            "rbd" => &["user", "conf"],
            "exec" => &["argument"],
            _ => return Err(wrong(format!("is of the kind {kind}, which is unknown: {KINDS}"))),
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
        // A timer starts batches in any directory.
        let is_path = matches!(kind, "file" | "qmp" | "exec");
        if is_path && !place.starts_with('/') {
            return Err(wrong("has a path that is not absolute".to_owned()));
        }
        if kind == "nbd" && !is_address(place) {
            return Err(wrong(
                "has no address: nbd:nbd://HOST/EXPORT or nbd:nbd+unix:///EXPORT?socket=PATH".to_owned(),
            ));
        }
        let value = |wanted: &str| values.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        if kind == "lvm-thin" && Volume::parse(place).is_none() {
            return Err(wrong("names no volume: lvm-thin:VG/LV".to_owned()));
        }
        if kind == "rbd" && Image::parse(place, value("user"), value("conf")).is_none() {
            return Err(wrong(
                "names no image: rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE, without a snapshot".to_owned(),
            ));
        }
        Ok(match kind {
            "file" => Self::File { path: place.into() },
            "nbd" => Self::Nbd { address: place.to_owned() },
            "qmp" => Self::Qmp {
                socket: place.into(),
                node: value("node").ok_or_else(|| wrong("lacks node=NAME".to_owned()))?.to_owned(),
                scratch: value("scratch").ok_or_else(|| wrong("lacks scratch=DIRECTORY".to_owned()))?.into(),
            },
            "lvm-thin" => Self::LvmThin { volume: place.to_owned() },
            "rbd" => {
                let [user, conf] = ["user", "conf"].map(|key| value(key).map(str::to_owned));
                Self::Rbd { image: place.to_owned(), user, conf }
            }
            _ => Self::Exec { program: place.into(), argument: value("argument").map(str::to_owned) },
        })
    }
}

impl Kind {
    /// The monitor that has the disk.
    #[must_use]
    pub fn monitor(&self) -> Option<&Path> {
        match self {
            Self::Qmp { socket, .. } => Some(socket),
            _ => None,
        }
    }

    /// Whether it tells what changed since the newest version.
    #[must_use]
    pub fn tells_changes(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Nbd { .. })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path } => write!(formatter, "file:{}", path.display()),
            Self::Nbd { address } => write!(formatter, "nbd:{address}"),
            Self::Qmp { socket, node, .. } => write!(formatter, "qmp:{} node={node}", socket.display()),
            Self::LvmThin { volume } => write!(formatter, "lvm-thin:{volume}"),
            Self::Rbd { image, .. } => write!(formatter, "rbd:{image}"),
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
    /// Bytes that changed, by the map.
    pub dirty_bytes: Option<u64>,
    /// Why there is no map, although there could be one.
    pub without_map: Option<String>,
    /// Name of the file in the version. Without one, put chooses.
    #[serde(skip)]
    pub file_name: Option<String>,
}

/// Letters of a token at most, as `dedupfs put` takes it.
const TOKEN_BYTES_MAX: usize = 255;

/// Whether a word may be a token: it is a word of command lines, and a part of names.
#[must_use]
pub fn is_token(word: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=TOKEN_BYTES_MAX).contains(&word.len()) && !word.starts_with('-') && word.bytes().all(is_letter)
}

impl Point {
    /// Checks the words of a program.
    ///
    /// # Errors
    /// In words.
    fn check(&self) -> Result<(), String> {
        if self.source.is_empty() || self.source.starts_with('-') {
            return Err("it names no source".to_owned());
        }
        // A timer starts batches in any directory.
        if !is_address(&self.source) && !self.source.starts_with('/') {
            return Err(format!("the source {:?} is neither an absolute path nor an address of nbd", self.source));
        }
        if let Some(map) = self.map.as_ref().filter(|map| !map.starts_with("nbd:") && !map.starts_with('/')) {
            return Err(format!("the map {map:?} is neither an absolute path nor nbd:CONTEXT"));
        }
        let tokens = [&self.token, &self.token_from].into_iter().flatten();
        match tokens.into_iter().find(|token| !is_token(token)) {
            Some(token) => Err(format!("the token {token:?} is none: 1 to 255 letters, digits and ._:- are one")),
            None => Ok(()),
        }
    }

    /// Leaves out a map if the state is unknown at which it begins: the newest version may be another one.
    #[must_use]
    pub fn with_known_beginning(mut self) -> Self {
        if self.map.is_some() && self.token_from.is_none() {
            self.map = None;
            self.without_map.get_or_insert("the source does not name the state at which its map begins".to_owned());
        }
        self
    }
}

/// The end of a disk's backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The version is durable.
    Stored,
    /// There is no version.
    Failed,
}

/// Brings the disks of one source to a point in time. The methods are used in this order, `check` when the disk was read.
///
/// # Errors
/// In words. Those of the first three concern all of the disks. Behind each `end` comes; what that leaves the next `prepare` removes.
pub trait Driver: Send {
    /// Removes leftovers, and does all that takes long: guests may wait during `begin`. `last` has the token of each disk's newest version. `gives_up` tells that there is no more time.
    fn prepare(&mut self, last: &[Option<String>], gives_up: &dyn Fn() -> bool) -> Result<(), String>;

    /// Brings all of its disks to the same point in time, quickly.
    fn begin(&mut self, gives_up: &dyn Fn() -> bool) -> Result<(), String>;

    /// Tells where each disk is read.
    fn points(&mut self, gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String>;

    /// Checks that a disk stood still until now. If it did not, the version that was read from it gets no name.
    fn check(&mut self, _disk: usize, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        Ok(())
    }

    /// Lets go of a disk. An error tells that something is left that somebody must look at. The version stays.
    fn end(&mut self, disk: usize, verdict: Verdict) -> Result<(), String>;
}

/// A source that stands still anyway.
#[derive(Debug)]
pub struct Still {
    /// A path, or the address of an export.
    source: String,
    /// It must be there before the disks of its group are held.
    path: Option<PathBuf>,
}

impl Driver for Still {
    fn prepare(&mut self, _last: &[Option<String>], _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        std::fs::metadata(path).map(|_| ()).map_err(|error| format!("cannot open {}: {error}", path.display()))
    }

    fn begin(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        Ok(())
    }

    fn points(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        let source = self.source.clone();
        let without_map = Some("a source of this kind tells no changes".to_owned());
        Ok(vec![Point { source, without_map, ..Point::default() }])
    }

    fn end(&mut self, _disk: usize, _verdict: Verdict) -> Result<(), String> {
        Ok(())
    }
}

/// Tells lines to the users, such as what a program complains.
#[derive(Clone)]
pub struct Tell(Arc<dyn Fn(&str) + Send + Sync>);

impl Tell {
    /// Tells in this way.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    fn line(&self, line: &str) {
        (self.0)(line);
    }
}

/// A disk that a driver is to bring to a point in time.
pub struct Wanted<'a> {
    /// Where it is read.
    pub source: &'a Kind,
    /// Tells it apart from the same disk in other plans and pools, such as the path of its versions.
    pub identity: String,
    /// Where complaints about it go.
    pub tell: Tell,
}

/// A driver, and the places of its disks in a list.
pub type Driven = (Box<dyn Driver>, Vec<usize>);

/// Returns the drivers of disks that are one point in time.
#[must_use]
pub fn drivers(disks: Vec<Wanted<'_>>) -> Vec<Driven> {
    let mut drivers: Vec<Driven> = Vec::new();
    // Disks of one qemu begin together.
    let mut monitors: BTreeMap<&Path, Vec<(usize, QmpDisk)>> = BTreeMap::new();
    for (place, Wanted { source, identity, tell }) in disks.into_iter().enumerate() {
        let driver: Option<Box<dyn Driver>> = match source {
            Kind::File { path } => {
                Some(Box::new(Still { source: path.display().to_string(), path: Some(path.clone()) }))
            }
            Kind::Nbd { address } => Some(Box::new(Still { source: address.clone(), path: None })),
            Kind::LvmThin { volume } => {
                Volume::parse(volume).map(|volume| Box::new(Snapshots::new(volume, &identity)) as Box<dyn Driver>)
            }
            Kind::Rbd { image, user, conf } => Image::parse(image, user.as_deref(), conf.as_deref())
                .map(|image| Box::new(Snapshots::new(image, &identity)) as Box<dyn Driver>),
            Kind::Exec { program, argument } => Some(Box::new(Exec::new(program.clone(), argument.clone(), tell))),
            Kind::Qmp { socket, node, scratch } => {
                let disk = QmpDisk { node: node.clone(), scratch: scratch.clone(), identity };
                monitors.entry(socket).or_default().push((place, disk));
                None
            }
        };
        drivers.extend(driver.map(|driver| (driver, vec![place])));
    }
    drivers.extend(monitors.into_iter().map(|(socket, disks)| {
        let (places, disks) = disks.into_iter().unzip();
        (Box::new(Qmp::new(socket.to_owned(), disks)) as Box<dyn Driver>, places)
    }));
    drivers
}
