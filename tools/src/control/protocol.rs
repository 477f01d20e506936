//! Lines of the control socket: their types, and reading them within limits.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use dedupfs::Origin;
use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::scrub::ScrubOptions;
use dedupfs::transfer::{ImageOptions, Patterns, PutOptions};
use dedupfs_service::Ino;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::failure::{Failure, FailureKind};

/// Version of the protocol. Both sides must have the same; they are installed together.
pub(crate) const PROTOCOL_VERSION: u32 = 7;
/// Limit of a request. The largest holds a few options.
pub(super) const REQUEST_BYTES_MAX: u64 = 64 * 1024;
/// Limit of a reply. The largest holds the findings of a check of a badly damaged pool.
pub(super) const REPLY_BYTES_MAX: u64 = 256 * 1024 * 1024;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) protocol: u32,
    /// The request; decoded only if the version is known.
    pub(crate) request: serde_json::Value,
}

/// A tree to be copied into the pool. The open directory or regular file travels with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PutRequest {
    pub(crate) into: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) options: PutOptions,
}

/// An image to be put. The open image travels with it. Behind it come the file of its named chunks, if the options say so, and the file with
/// its changes, if these are known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PutImageRequest {
    pub(crate) into: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) options: ImageOptions,
}

/// A directory or regular file to be copied out of the pool. The open destination directory travels with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct GetRequest {
    pub(crate) ino: Ino,
    pub(crate) name: Vec<u8>,
    /// What is copied of a directory.
    #[serde(default)]
    pub(crate) patterns: Patterns,
}

/// A version to be made of a live directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotRequest {
    pub(crate) source: Ino,
    pub(crate) into: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) origin: Origin,
}

/// A version to be made of a live directory, and to take its place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FreezeRequest {
    pub(crate) source: Ino,
    pub(crate) into: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) origin: Origin,
    /// Time of the backup, if it is not now; seconds since 1970.
    pub(crate) dated_secs: Option<i64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Statistics of the pool: [`PoolStats`](dedupfs::stats::PoolStats).
    Stats,
    Sync,
    /// Reclaims space: [`ReclaimReport`](dedupfs::reclaim::ReclaimReport).
    Reclaim(ReclaimOptions),
    /// Returns the state of reclaiming: [`ReclaimStatus`](dedupfs::reclaim::ReclaimStatus).
    ReclaimStatus,
    StopReclaim,
    /// Pauses reclaiming between two steps and lets no run begin, or lets it continue.
    PauseReclaim(bool),
    /// Checks without changing anything: [`CheckReport`](dedupfs::check::CheckReport).
    Check(CheckOptions),
    /// Reads everything and quarantines damaged copies: [`ScrubReport`](dedupfs::scrub::ScrubReport).
    Scrub(ScrubOptions),
    /// Returns the state of a scrub: [`ScrubStatus`](dedupfs::scrub::ScrubStatus).
    ScrubStatus,
    StopScrub,
    StopTrial,
    /// Writes lost content, at most so much, to the file that travels with it: [`encode_lost`](dedupfs::scrub::encode_lost).
    LostContent {
        max: u32,
    },
    /// Stores lost content again, from copies in so many bytes of the file that travels with it: [`encode_copies`](dedupfs::scrub::encode_copies). Returns
    /// how much of it was lost.
    Heal {
        len_bytes: u32,
    },
    /// Makes a trial recovery from the data root alone, in scratch space below this absolute path:
    /// [`TrialReport`](dedupfs::TrialReport).
    TrialRecovery(PathBuf),
    /// Holds the export on the data root until the other end of the stream that travels with it is closed. Its position
    /// ([`ExportPosition`](dedupfs::export::ExportPosition)) comes through that stream, as a line of JSON.
    HoldExport,
    /// Copies a tree into the pool: [`TransferReport`](dedupfs::transfer::TransferReport).
    Put(PutRequest),
    /// Puts the image of a disk: [`TransferReport`](dedupfs::transfer::TransferReport).
    PutImage(PutImageRequest),
    /// Returns how the pool cuts content: [`Cutting`](dedupfs::transfer::Cutting).
    Cutting,
    /// Answers so many questions about chunks, in the file that travels with it.
    AnswerAhead {
        count: u32,
    },
    /// Copies a tree out of the pool: [`TransferReport`](dedupfs::transfer::TransferReport).
    Get(GetRequest),
    /// Makes a version: [`VersionReport`](dedupfs::VersionReport).
    Snapshot(SnapshotRequest),
    /// Makes a version of a directory, and lets the next exchange of their names put it in its place: a
    /// [`VersionReport`](dedupfs::VersionReport), or nothing if the directory was changed meanwhile. The tool exchanges them, because the
    /// kernel knows the names.
    Freeze(FreezeRequest),
    /// Makes a live tree of a version: [`ThawReport`](dedupfs::transfer::ThawReport).
    Thaw {
        from: Ino,
        into: Ino,
        name: Vec<u8>,
    },
    /// Returns what removing these would free: [`WouldFree`](dedupfs::WouldFree).
    WouldFree(Vec<Ino>),
    /// Returns what a directory holds: [`TreeStats`](dedupfs::TreeStats).
    TreeStats(Ino),
    /// Returns the versions in a directory, or all: a list of [`VersionInfo`](dedupfs::VersionInfo).
    Versions(Option<Ino>),
    /// Returns for each of these versions its inode number and what its removal alone would free.
    VersionSizes(Option<Ino>),
    /// Returns a page of the difference of two frozen directories: [`DifferencePage`](dedupfs::DifferencePage).
    Difference {
        directories: [Ino; 2],
        resume: Vec<u8>,
    },
    /// Returns what became of a path in the versions of a directory: a list of [`HistoryRow`](dedupfs::HistoryRow).
    History {
        directory: Ino,
        path: Vec<u8>,
    },
    /// Lets the next rmdir(2) remove this name, a version. The tool calls it, because the kernel knows the name.
    Forget {
        directory: Ino,
        name: Vec<u8>,
        version: Ino,
    },
    /// Returns the inode numbers of removed versions whose content stays because they are read.
    HeldVersions,
    /// Returns the encoded record of a directory, if it is a series.
    Series(Ino),
    /// Gives a directory this encoded record, or none; returns the one that it had, and whether the pool may have versions
    /// only since then.
    SetSeries {
        directory: Ino,
        record: Option<Vec<u8>>,
    },
    /// Unmounts, makes everything durable and ends the daemon; answered when the pool is closed.
    Unmount {
        /// Detach at once although files are open, and end when the last of them is closed.
        lazy: bool,
    },
    /// Answered when the pool is closed, with how that went. For tools that unmount by themselves.
    AwaitEnd,
    /// Checks whether the pool may become read-only. For a moment the daemon begins nothing that would prevent it.
    PrepareReadOnly,
    /// Makes the pool read-only, everything durable first, or writable again. Changing the mount is the tool's task.
    SetReadOnly(bool),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Start {
        what: String,
        total: u64,
    },
    Advance(u64),
    Finish,
    /// The result; the last line.
    Done(serde_json::Value),
    /// The failure; the last line.
    Failed(Failure),
}

pub(super) fn encode(line: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut bytes = serde_json::to_vec(line)
        .map_err(|error| Failure::failed(format!("cannot encode a control message: {error}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads the next line, without its end; `None` at the end of the stream. A longer line is an error of kind `InvalidData`, and a last line
/// without its end one of kind `UnexpectedEof`.
pub(super) fn read_line(from: &mut impl BufRead, limit_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.by_ref().take(limit_bytes).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() as u64 + 1 >= limit_bytes => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("a control message exceeds {limit_bytes} bytes")))
        }
        Some(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a control message was cut off")),
    }
}

pub(super) fn decode_request(line: &[u8]) -> Result<Request, Failure> {
    let envelope: Envelope = decode(line)?;
    if envelope.protocol != PROTOCOL_VERSION {
        let message = format!(
            "the tool speaks control protocol {}, the daemon {PROTOCOL_VERSION}: use the tools of the version that \
             mounted the pool, or unmount and mount again with the new one",
            envelope.protocol
        );
        return Err(Failure::failed(message));
    }
    serde_json::from_value(envelope.request)
        .map_err(|error| FailureKind::Usage.because(format!("the daemon does not know this request: {error}")))
}

pub(super) fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(line)
        .map_err(|error| Failure::failed(format!("a control message cannot be understood: {error}")))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn line_of(request: &Request) -> Vec<u8> {
        let request = serde_json::to_value(request).unwrap();
        encode(&Envelope { protocol: PROTOCOL_VERSION, request }).unwrap()
    }

    #[test]
    fn requests_round_trip() {
        for request in [
            Request::Stats,
            Request::Sync,
            Request::Check(CheckOptions { read_data: true, ..CheckOptions::default() }),
            Request::Scrub(ScrubOptions { rate_bytes_per_s: 5, restart: true }),
            Request::ScrubStatus,
            Request::StopScrub,
            Request::StopTrial,
            Request::LostContent { max: 7 },
            Request::Heal { len_bytes: 8 },
            Request::TrialRecovery(PathBuf::from("/scratch")),
            Request::Reclaim(ReclaimOptions::default()),
            Request::ReclaimStatus,
            Request::StopReclaim,
            Request::Cutting,
            Request::HoldExport,
            Request::AnswerAhead { count: 3 },
            Request::PauseReclaim(true),
            Request::Put(PutRequest { into: 7, name: b"\xff\n".to_vec(), options: PutOptions::default() }),
            Request::Get(GetRequest {
                ino: 9,
                name: b"name".to_vec(),
                patterns: Patterns { include: vec!["a*".to_owned()], exclude: Vec::new() },
            }),
            Request::TreeStats(1 << 36),
            Request::VersionSizes(Some(7)),
            Request::Snapshot(SnapshotRequest {
                source: 3,
                into: 7,
                name: b"\xff\n".to_vec(),
                origin: Origin { source: b"/m/\xff".to_vec(), host: b"web1".to_vec() },
            }),
            Request::Freeze(FreezeRequest {
                source: 3,
                into: 7,
                name: b"\xff\n".to_vec(),
                origin: Origin { source: b"/m/\xff".to_vec(), host: b"web1".to_vec() },
                dated_secs: Some(-1),
            }),
            Request::Versions(Some(1 << 36)),
            Request::Versions(None),
            Request::Forget { directory: 7, name: b"\xff\n".to_vec(), version: 1 << 36 },
            Request::HeldVersions,
            Request::Series(7),
            Request::SetSeries { directory: 7, record: Some(vec![1, 0, 0]) },
            Request::SetSeries { directory: 7, record: None },
            Request::Unmount { lazy: true },
            Request::AwaitEnd,
            Request::SetReadOnly(true),
        ] {
            let line = line_of(&request);
            let mut reader = line.as_slice();
            let read = read_line(&mut reader, REQUEST_BYTES_MAX).unwrap().unwrap();
            assert_eq!(decode_request(&read).unwrap(), request);
            assert_eq!(read_line(&mut reader, REQUEST_BYTES_MAX).unwrap(), None);
        }
    }

    #[test]
    fn replies_round_trip_and_stay_one_line() {
        let replies = [
            Reply::Start { what: "two\nlines".to_owned(), total: 9 },
            Reply::Advance(3),
            Reply::Finish,
            Reply::Done(serde_json::json!({"a": 1})),
            Reply::Failed(FailureKind::NoSpace.because("full")),
        ];
        for reply in replies {
            let line = encode(&reply).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(decode::<Reply>(&line).unwrap(), reply);
        }
    }

    #[test]
    fn another_version_is_refused_with_advice_even_if_its_request_is_unknown() {
        let failure = decode_request(br#"{"protocol":8,"request":{"dance":[]}}"#).unwrap_err();
        assert!(failure.message.contains("protocol 8") && failure.message.contains("mount"), "{failure}");
        let failure = decode_request(br#"{"protocol":7,"request":{"dance":[]}}"#).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Usage);
    }

    #[test]
    fn garbage_is_an_error() {
        for garbage in [&b""[..], b"{", b"[]", b"\xff\xfe\0", b"null", b"{\"protocol\":\"1\",\"request\":null}"] {
            assert!(decode_request(garbage).is_err(), "{garbage:?}");
        }
        let deep = [b'['; 50_000];
        assert!(decode_request(&deep).is_err());
    }

    #[test]
    fn lines_are_bounded() {
        let long = vec![b'x'; 200];
        let error = read_line(&mut long.as_slice(), 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = read_line(&mut &b"cut"[..], 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_line(&mut &b""[..], 100).unwrap(), None);
        assert_eq!(read_line(&mut &b"\n"[..], 100).unwrap().unwrap(), b"");
    }
}
