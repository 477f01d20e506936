//! Damage of single nodes in recipe containers.

use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_content::AnyView;
use dedupfs_store::container::{Compression, decode_region, encode_region};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, PoolId, tree};

const CONTAINER_BYTES: u32 = 256 << 10;
/// Directories of the recipe containers and of their copies.
pub(crate) const OWN: &str = "recipes";
pub(crate) const COPY: &str = "export/recipes";

/// Both roots of a pool without compression.
pub(crate) struct Roots {
    pub(crate) meta: MemoryDevice,
    pub(crate) data: MemoryDevice,
}

impl Roots {
    pub(crate) fn formatted() -> Self {
        let roots = Self { meta: MemoryDevice::new(), data: MemoryDevice::new() };
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            container_bytes: CONTAINER_BYTES,
            slots_per_file: 16,
            tanker_cells: 256,
            tanker_buckets: 4,
            compression: Compression::None,
            ..PoolProperties::default()
        };
        format_on(&roots.meta(), &roots.data(), b"elsewhere".to_vec(), &properties, (0, 0)).expect("formats");
        roots
    }

    pub(crate) fn meta(&self) -> Arc<dyn Device> {
        Arc::new(self.meta.clone())
    }

    pub(crate) fn data(&self) -> Arc<dyn Device> {
        Arc::new(self.data.clone())
    }

    pub(crate) fn copy(&self) -> Self {
        Self { meta: self.meta.snapshot_all_synced(), data: self.data.snapshot_all_synced() }
    }

    pub(crate) fn open(&self) -> Arc<Pool> {
        self.open_with(&PoolOptions::default())
    }

    pub(crate) fn open_with(&self, options: &PoolOptions) -> Arc<Pool> {
        Pool::open_on(&self.meta(), &self.data(), Vec::new(), options, &NoProgress).expect("opens")
    }

    /// Gives a node other bytes under checksums that fit, in its container and in the copy of that.
    pub(crate) fn spoil_both(&self, spot: &Spot) {
        spot.spoil(&self.meta, OWN);
        spot.spoil(&self.data, COPY);
    }
}

/// A place of a node in a slot file of recipes.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pool: PoolId,
    container: ContainerId,
    file: String,
    /// Offset and length of the region's frame.
    frame: (usize, usize),
    /// Offset and length of the node in the region.
    node: (usize, usize),
}

impl Spot {
    pub(crate) fn of(pool: &Pool, fingerprint: &Fingerprint) -> Self {
        let core = pool.core();
        let cell = core.indexes.nodes.get(fingerprint).expect("can be read").expect("is there");
        let container = cell.location.container();
        let record = core.stores.recipes.record(container).expect("is known");
        let table = core.stores.recipes.table(container).expect("has a table").expect("is there");
        let place = table.find(fingerprint).expect("is in it");
        let region = &table.regions[place.region as usize];
        let slot = record.address.slot as usize * CONTAINER_BYTES as usize;
        Self {
            pool: core.pool,
            container,
            file: format!("{:06}.slots", record.address.file),
            frame: (slot + region.offset_bytes as usize, region.frame_bytes as usize),
            node: (place.offset_in_region as usize, place.len_bytes as usize),
        }
    }

    /// Changes a byte of the node, such that the region keeps its length.
    pub(crate) fn spoil(&self, device: &MemoryDevice, directory: &str) {
        let path = format!("{directory}/{}", self.file);
        let bytes = device.read_file(&path, 1 << 30).expect("reads");
        let (at, len) = self.frame;
        let region = decode_region(&self.pool, self.container, &bytes[at..at + len]).expect("is sound");
        let changed = (0..self.node.1).find_map(|offset| {
            let mut raw = region.raw.clone();
            raw[self.node.0 + offset] ^= 0x10;
            let (kind, entries) = (ContainerKind::Recipe, region.entries.clone());
            let changed = encode_region(&self.pool, self.container, kind, entries, &raw, Compression::Zstd(1));
            let changed = changed.expect("encodes");
            (changed.frame_bytes as usize == len).then(|| changed.frame(&raw))
        });
        let file = device.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&changed.expect("some byte keeps the length"), at as u64).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Returns all tree nodes that the index has.
pub(crate) fn tree_nodes(pool: &Pool) -> Vec<(Fingerprint, Arc<tree::Node>)> {
    let core = pool.core();
    core.committer.settle().expect("counts");
    let mut all = Vec::new();
    let mut visit = |fingerprint, cell: dedupfs_index::Cell| {
        all.push((fingerprint, cell.location.container()));
        Ok(())
    };
    core.indexes.nodes.for_each(&mut visit).expect("can be read");
    let node = |(fingerprint, container)| match core.dedup.nodes().node_of(&fingerprint, container) {
        Ok(AnyView::Tree(node)) => Some((fingerprint, node)),
        _ => None,
    };
    all.into_iter().filter_map(node).collect()
}

/// Returns the leaf that has an entry of this name, and its number of entries.
pub(crate) fn leaf_with(pool: &Pool, name: &str) -> (Fingerprint, Vec<Vec<u8>>) {
    let names_of = |node: &tree::Node| match node {
        tree::Node::Leaf(entries) => entries.iter().map(|entry| entry.name.clone()).collect(),
        _ => Vec::new(),
    };
    let all = tree_nodes(pool).into_iter().map(|(fingerprint, node)| (fingerprint, names_of(&node)));
    let mut with = all.filter(|(_, names)| names.iter().any(|found| found == name.as_bytes()));
    with.next().expect("some leaf has it")
}
