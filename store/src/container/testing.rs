//! Helpers of the container tests: deterministic chunks, and hand-made containers.

use super::*;
use crate::codec::checksum_seeded;
use crate::id::{ContainerId, ContainerKind, PoolId};

pub(super) const POOL: PoolId = PoolId([0x5a; 16]);
pub(super) const CONTAINER: ContainerId = ContainerId(3 << 40 | 12);
pub(super) const KIND: ContainerKind = ContainerKind::Data;

/// Returns a name for these bytes, unique enough for tests.
pub(super) fn name_of(bytes: &[u8]) -> Fingerprint {
    let mut name = [1; FINGERPRINT_BYTES];
    for (word, part) in name.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&checksum_seeded(bytes, word as u64).to_le_bytes());
    }
    Fingerprint(name)
}

/// Bytes that compress well or not at all, different for each `seed`.
pub(super) fn chunk(seed: u64, len: usize, compressible: bool) -> Vec<u8> {
    let word = |position: usize| {
        let position = if compressible { position % 8 } else { position };
        checksum_seeded(&position.to_le_bytes(), seed).to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

/// The list and the bytes of a region with these chunks.
pub(super) fn listed(chunks: &[Vec<u8>]) -> (Vec<TableEntry>, Vec<u8>) {
    let entry = |chunk: &Vec<u8>| TableEntry { fingerprint: name_of(chunk), len_bytes: chunk.len() as u32 };
    (chunks.iter().map(entry).collect(), chunks.concat())
}

/// The region's frame.
pub(super) fn region_of(container: ContainerId, chunks: &[Vec<u8>]) -> Vec<u8> {
    let (entries, raw) = listed(chunks);
    encode_region(&POOL, container, KIND, entries, &raw, Compression::Zstd(1)).unwrap().frame(&raw)
}

/// A container: its bytes and its table. `region` appends a region; `end_write_out` ends a write-out.
pub(super) struct Built {
    pub(super) bytes: Vec<u8>,
    pub(super) builder: TableBuilder,
    pub(super) chunks: Vec<Vec<u8>>,
}

impl Built {
    pub(super) fn new(container: ContainerId) -> Self {
        Self { bytes: Vec::new(), builder: TableBuilder::new(container, KIND), chunks: Vec::new() }
    }

    pub(super) fn region(&mut self, container: ContainerId, chunks: &[Vec<u8>]) -> &mut Self {
        let (entries, raw) = listed(chunks);
        let region = encode_region(&POOL, container, KIND, entries, &raw, Compression::Zstd(1)).unwrap();
        self.builder.push_region(self.bytes.len() as u32, &region).unwrap();
        self.bytes.extend(region.frame(&raw));
        self.chunks.extend_from_slice(chunks);
        self
    }

    pub(super) fn end_write_out(&mut self) -> &mut Self {
        self.bytes.resize(align_to_write_out(self.bytes.len() as u64) as usize, 0);
        self
    }
}

/// A container of five regions with write-outs in between; some regions compress, some do not.
pub(super) fn sample(container: ContainerId) -> Built {
    let mut built = Built::new(container);
    let chunks = |from: u64, count: u64, compressible| -> Vec<Vec<u8>> {
        (from..from + count).map(|seed| chunk(seed, 90 + 17 * seed as usize, compressible)).collect()
    };
    built.region(container, &chunks(0, 5, true)).region(container, &chunks(5, 1, false)).end_write_out();
    built.region(container, &chunks(6, 9, false)).end_write_out();
    built.region(container, &chunks(15, 3, true)).region(container, &chunks(18, 12, true)).end_write_out();
    built
}
