//! The manifest: the one frame that names the files of an index, and the last row of the operations log that they hold.
//!
//! Every checkpoint replaces it, atomically and last. It names each file with its generation and a checksum of its
//! directory, so no other file, however sound, can be taken for it.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::HashSet;

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, Result, StoreError};

use crate::guide::{GuideNames, TANKERS_MAX};
use crate::names::{MANIFEST_NAME, join};
use crate::open::file::OpenFile;
use crate::options::MANIFEST_BYTES_MAX;
use crate::sealed::{SummaryNames, TankerNames};

/// Without guides.
const VERSION: u16 = 1;
const VERSION_WITH_GUIDES: u16 = 2;

/// Flag: a rebuild has not finished; the files are not the whole index.
const FLAG_REBUILDING: u16 = 1;

/// The part of an index that its files hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    Whole,
    /// A rebuild has not finished.
    Unfinished,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    pub(crate) extent: Extent,
    /// The checkpoint attempt that wrote it.
    pub(crate) generation: u64,
    /// Last row of the operations log whose effects the files hold.
    pub(crate) position: u64,
    pub(crate) next_tanker: u64,
    pub(crate) open: OpenFile,
    /// Sealed tankers, newest first.
    pub(crate) tankers: Vec<TankerNames>,
    pub(crate) guides: Vec<GuideNames>,
}

impl Manifest {
    pub(crate) fn empty(generation: u64, extent: Extent) -> Self {
        Self {
            extent,
            generation,
            position: 0,
            next_tanker: 1,
            open: OpenFile::default(),
            tankers: Vec::new(),
            guides: Vec::new(),
        }
    }

    /// Encodes the file. `directory` tells the indexes of a pool apart.
    pub(crate) fn encode(&self, pool: &PoolId, directory: &str) -> Vec<u8> {
        let mut meta = ByteWriter::new();
        meta.u16(if self.guides.is_empty() { VERSION } else { VERSION_WITH_GUIDES });
        meta.u16(match self.extent {
            Extent::Whole => 0,
            Extent::Unfinished => FLAG_REBUILDING,
        });
        meta.u64(checksum(directory.as_bytes()));
        meta.u64(self.generation);
        meta.u64(self.position);
        meta.u64(self.next_tanker);
        meta.u64(self.open.generation);
        meta.u64(self.open.bytes);
        meta.u64(self.open.seal);
        meta.u32(self.open.cells);
        meta.u32(self.tankers.len() as u32);
        if !self.guides.is_empty() {
            meta.u32(self.guides.len() as u32);
        }
        let mut payload = ByteWriter::new();
        for tanker in &self.tankers {
            payload.u64(tanker.id);
            payload.u64(tanker.generation);
            payload.u64(tanker.seal);
            payload.u64(tanker.counts_generation);
            payload.u64(tanker.counts_seal);
            payload.u64(tanker.summary.generation);
            payload.u64(tanker.summary.filter_seal);
            payload.u64(tanker.summary.containers_seal);
        }
        for guide in &self.guides {
            payload.u64(guide.id);
            payload.u64(guide.generation);
            payload.u64(guide.seal);
            payload.u64(guide.directory_offset);
            payload.u32(guide.tankers.len() as u32);
            guide.tankers.iter().for_each(|tanker| payload.u64(*tanker));
        }
        encode_frame(FrameKind::Manifest, pool, 0, meta.as_slice(), payload.as_slice())
    }

    pub(crate) fn decode(what: &str, bytes: &[u8], pool: &PoolId, directory: &str) -> Result<Self> {
        let expect = Expect { kind: FrameKind::Manifest, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(what, bytes, &expect, MANIFEST_BYTES_MAX as usize)?;
        if frame.header.frame_bytes() != bytes.len() as u64 {
            return Err(StoreError::corrupt(what, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
        }
        let mut meta = ByteReader::new(frame.meta, what);
        let (version, flags) = (meta.u16()?, meta.u16()?);
        if ![VERSION, VERSION_WITH_GUIDES].contains(&version) || flags & !FLAG_REBUILDING != 0 {
            return Err(StoreError::newer(what, format!("manifest version {version}, flags {flags:#06x}")));
        }
        let tag = meta.u64()?;
        if tag != checksum(directory.as_bytes()) {
            return Err(meta.corrupt(format!("the index of {directory}"), "another index of this pool"));
        }
        let (generation, position, next_tanker) = (meta.u64()?, meta.u64()?, meta.u64()?);
        let open = OpenFile { generation: meta.u64()?, bytes: meta.u64()?, seal: meta.u64()?, cells: meta.u32()? };
        let count = meta.u32()?;
        let guide_count = if version == VERSION_WITH_GUIDES { meta.u32()? } else { 0 };
        if version == VERSION_WITH_GUIDES && guide_count == 0 {
            return Err(meta.corrupt("guides in a manifest of version 2", "none"));
        }
        meta.finish()?;

        let mut entries = ByteReader::new(frame.payload, what);
        let mut tankers = Vec::new();
        let mut ids = HashSet::new();
        for _ in 0..count {
            let tanker = TankerNames {
                id: entries.u64()?,
                generation: entries.u64()?,
                seal: entries.u64()?,
                counts_generation: entries.u64()?,
                counts_seal: entries.u64()?,
                summary: SummaryNames {
                    generation: entries.u64()?,
                    filter_seal: entries.u64()?,
                    containers_seal: entries.u64()?,
                },
            };
            let newest = tanker.generation.max(tanker.counts_generation).max(tanker.summary.generation);
            if tanker.id >= next_tanker || newest > generation || !ids.insert(tanker.id) {
                let expected = format!("tankers below {next_tanker}, each once, up to generation {generation}");
                return Err(entries.corrupt(expected, format!("tanker {} of generation {newest}", tanker.id)));
            }
            tankers.push(tanker);
        }
        let mut guides = Vec::new();
        for _ in 0..guide_count {
            let (id, written, seal, directory_offset) =
                (entries.u64()?, entries.u64()?, entries.u64()?, entries.u64()?);
            let count = entries.u32()? as usize;
            if id >= next_tanker || written > generation || count > TANKERS_MAX || !ids.insert(id) {
                let expected = format!("guides below {next_tanker}, each once, up to generation {generation}");
                return Err(
                    entries.corrupt(expected, format!("guide {id} of generation {written}, to {count} tankers"))
                );
            }
            let tankers = (0..count).map(|_| entries.u64()).collect::<Result<Vec<u64>>>()?;
            let different: HashSet<&u64> = tankers.iter().collect();
            if different.len() != count || tankers.iter().any(|tanker| *tanker >= next_tanker) {
                let expected = format!("different tankers below {next_tanker} in guide {id}");
                return Err(entries.corrupt(expected, "others"));
            }
            guides.push(GuideNames { id, generation: written, seal, directory_offset, tankers });
        }
        entries.finish()?;
        if open.generation > generation {
            let expected = format!("an open tanker up to generation {generation}");
            return Err(StoreError::corrupt(what, expected, open.generation));
        }
        let extent = if flags & FLAG_REBUILDING == 0 { Extent::Whole } else { Extent::Unfinished };
        Ok(Self { extent, generation, position, next_tanker, open, tankers, guides })
    }

    pub(crate) fn replace(&self, device: &dyn Device, directory: &str, pool: &PoolId) -> Result<()> {
        device.replace_file(directory, MANIFEST_NAME, &self.encode(pool, directory))
    }

    pub(crate) fn read(device: &dyn Device, directory: &str, pool: &PoolId) -> Result<Self> {
        let path = join(directory, MANIFEST_NAME);
        let bytes = device.read_file(&path, MANIFEST_BYTES_MAX)?;
        Self::decode(&path, &bytes, pool, directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId([7; 16]);

    fn names(id: u64, generations: [u64; 3]) -> TankerNames {
        let [generation, counts_generation, summary] = generations;
        let summary = SummaryNames { generation: summary, filter_seal: 1, containers_seal: 2 };
        TankerNames { id, generation, seal: 3, counts_generation, counts_seal: 4, summary }
    }

    fn is_read(tankers: &[TankerNames], open_generation: u64) -> bool {
        let manifest = Manifest {
            generation: 10,
            next_tanker: 5,
            open: OpenFile { generation: open_generation, ..OpenFile::default() },
            tankers: tankers.to_vec(),
            ..Manifest::empty(10, Extent::Whole)
        };
        let read = Manifest::decode("manifest", &manifest.encode(&POOL, "index"), &POOL, "index");
        assert!(read.as_ref().is_ok_and(|read| *read == manifest) || read.is_err(), "{read:?}");
        read.is_ok()
    }

    /// Under checksums that fit: what no checkpoint writes.
    #[test]
    fn a_manifest_of_files_that_cannot_be_is_refused() {
        let sound = names(4, [10, 10, 10]);
        assert!(is_read(&[sound, names(1, [1, 2, 3])], 10));
        assert!(!is_read(&[sound], 11), "an open tanker of the future");
        assert!(!is_read(&[names(5, [10, 10, 10])], 10), "a number that was never given");
        assert!(!is_read(&[sound, names(4, [9, 9, 9])], 10), "one twice");
        for newer in [[11, 1, 1], [1, 11, 1], [1, 1, 11]] {
            assert!(!is_read(&[names(4, newer)], 10), "{newer:?}");
        }
    }

    #[test]
    fn guides_to_tankers_that_cannot_be_are_refused() {
        let is_read = |id: u64, generation: u64, tankers: &[u64]| {
            let guide = GuideNames { id, generation, seal: 1, directory_offset: 2, tankers: tankers.to_vec() };
            let tankers = vec![names(1, [1, 1, 1])];
            let manifest =
                Manifest { next_tanker: 5, tankers, guides: vec![guide], ..Manifest::empty(10, Extent::Whole) };
            let read = Manifest::decode("manifest", &manifest.encode(&POOL, "index"), &POOL, "index");
            assert!(read.as_ref().is_ok_and(|read| *read == manifest) || read.is_err(), "{read:?}");
            read.is_ok()
        };
        assert!(is_read(4, 10, &[1, 2, 3]), "some are gone");
        assert!(!is_read(5, 10, &[1]), "a number that was never given");
        assert!(!is_read(1, 10, &[2]), "that of a tanker");
        assert!(!is_read(4, 11, &[1]), "of the future");
        assert!(!is_read(4, 10, &[1, 1]), "one twice");
        assert!(!is_read(4, 10, &[1, 5]), "a tanker that was never there");
    }
}
