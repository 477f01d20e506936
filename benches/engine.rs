//! Measures each stage of the data path alone, in bytes (or fingerprints) per second: `cargo bench --bench engine`.
//!
//! Stages: chunkers, fingerprints, container writing (on an in-memory device, to leave out the disk) and index lookup.
//!
//! The data is 32 MiB of random bytes in memory, so that caches do not flatter the results.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dedupfs_content::{Chunker, ContainerOptions, ContainerStore, Fingerprinter, StreamId, WorkerPool, chunker};
use dedupfs_index::{Change, Index, IndexOptions, Location};
use dedupfs_store::container::{Compression, SlotFiles};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, PoolId};

const DATA_BYTES: usize = 32 << 20;
/// Chunks of a segment, the batch that the write path hashes.
const SEGMENT_CHUNKS: usize = 512;

fn random_bytes(len_bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    (0..len_bytes / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect()
}

fn cut_all(chunker: &dyn Chunker, mut data: &[u8]) -> Vec<u32> {
    let mut lens = Vec::new();
    while let Some(len) = chunker.next_cut(data, true) {
        lens.push(len as u32);
        data = &data[len..];
    }
    lens
}

fn chunkers(criterion: &mut Criterion) {
    let data = random_bytes(DATA_BYTES);
    let mut group = criterion.benchmark_group("chunker");
    group.throughput(Throughput::Bytes(DATA_BYTES as u64)).sample_size(10);
    for (name, kind) in [("mincdc", ChunkerKind::MinCdc), ("fastcdc", ChunkerKind::FastCdc)] {
        for average_kib in [4, 8, 64] {
            let chunker = chunker(kind, average_kib * 1024);
            group.bench_function(BenchmarkId::new(name, format!("{average_kib}KiB")), |bencher| {
                bencher.iter(|| cut_all(&*chunker, black_box(&data)));
            });
        }
    }
    group.finish();
}

fn fingerprints(criterion: &mut Criterion) {
    let data = random_bytes(DATA_BYTES);
    let mut group = criterion.benchmark_group("fingerprint");
    group.throughput(Throughput::Bytes(DATA_BYTES as u64)).sample_size(10);
    for average_kib in [4, 8, 64] {
        let lens = cut_all(&*chunker(ChunkerKind::MinCdc, average_kib * 1024), &data);
        for (name, algorithm) in [("blake3", FingerprintAlgorithm::Blake3), ("sha1", FingerprintAlgorithm::Sha1)] {
            let fingerprinter = Fingerprinter::new(algorithm);
            group.bench_function(BenchmarkId::new(format!("{name}_single"), format!("{average_kib}KiB")), |bencher| {
                bencher.iter(|| {
                    let mut rest = black_box(&data[..]);
                    for len in &lens {
                        let (chunk, behind) = rest.split_at(*len as usize);
                        black_box(fingerprinter.of(chunk));
                        rest = behind;
                    }
                });
            });
            let mut out = Vec::new();
            for batch_chunks in [1, 8, 32, 128, SEGMENT_CHUNKS] {
                let name = BenchmarkId::new(format!("{name}_batch{batch_chunks}"), format!("{average_kib}KiB"));
                group.bench_function(name, |bencher| {
                    bencher.iter(|| {
                        let mut rest = black_box(&data[..]);
                        for lens in lens.chunks(batch_chunks) {
                            out.clear();
                            fingerprinter.batch(rest, lens, &mut out);
                            rest = &rest[lens.iter().sum::<u32>() as usize..];
                            black_box(&out);
                        }
                    });
                });
            }
        }
    }
    group.finish();
}

fn zeros(criterion: &mut Criterion) {
    let data = vec![0; DATA_BYTES];
    let mut group = criterion.benchmark_group("zeros");
    group.throughput(Throughput::Bytes(DATA_BYTES as u64)).sample_size(10);
    // Zeros have a fingerprint of their own: all the work is to see that they are zeros.
    let fingerprinter = Fingerprinter::new(FingerprintAlgorithm::Blake3);
    group.bench_function("fingerprint", |bencher| bencher.iter(|| fingerprinter.of(black_box(&data))));
    group.finish();
}

fn containers(criterion: &mut Criterion) {
    let data = random_bytes(DATA_BYTES);
    let chunks: Vec<(Fingerprint, &[u8])> =
        data.chunks(8192).map(|chunk| (Fingerprint(*blake3::hash(chunk).as_bytes()), chunk)).collect();
    let mut group = criterion.benchmark_group("container_write");
    group.throughput(Throughput::Bytes(DATA_BYTES as u64)).sample_size(10);
    for (name, compression) in [("none", Compression::None), ("zstd:1", Compression::Zstd(1))] {
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || open_containers(compression),
                |store| {
                    for batch in chunks.chunks(SEGMENT_CHUNKS) {
                        store.wait_for_room().expect("has room");
                        black_box(store.append(StreamId(1), batch).expect("appends"));
                    }
                    store.write_out().expect("flushes");
                },
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn open_containers(compression: Compression) -> Arc<ContainerStore> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let slots = SlotFiles::open(device, "containers", 4 << 20, 256).expect("opens");
    let options = ContainerOptions {
        pool: PoolId([1; 16]),
        kind: ContainerKind::Data,
        compression,
        container_bytes: 4 << 20,
        region_raw_bytes: 256 << 10,
        open_limit: 16,
        in_flight_limit_bytes: 64 << 20,
        region_cache_bytes: 64 << 20,
        table_cache_bytes: 16 << 20,
    };
    let next = AtomicU64::new(1);
    let ids = Arc::new(move || Ok(ContainerId(next.fetch_add(1, Ordering::Relaxed))));
    ContainerStore::open(slots, options, Arc::new(WorkerPool::new(2)), &[], ids).expect("opens")
}

/// Looks up half a million fingerprints in the open tanker, then the same number sealed, in batches of a segment.
fn lookups(criterion: &mut Criterion) {
    const CELLS: u64 = 1 << 19;
    let print = |number: u64| Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let present: Vec<Fingerprint> = (0..CELLS).map(print).collect();
    let absent: Vec<Fingerprint> = (CELLS..2 * CELLS).map(print).collect();
    let mut group = criterion.benchmark_group("index_lookup");
    group.throughput(Throughput::Elements(CELLS)).sample_size(10);
    for (form, cells_per_tanker) in [("open", 1 << 20), ("sealed", 1 << 19)] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let options = IndexOptions { cells_per_tanker, cache_bytes: 256 << 20, ..IndexOptions::default() };
        Index::create(&device, "index", &PoolId([1; 16]), options).expect("creates");
        let index = Index::open(&device, "index", &PoolId([1; 16]), options).expect("opens");
        let location = Location::new(ContainerId(1), 8192);
        let cells: Vec<Change> = present.iter().map(|&fingerprint| Change::Insert { fingerprint, location }).collect();
        index.apply(1, &cells).expect("applies");
        index.checkpoint(1).expect("writes a checkpoint");
        let mut found = Vec::new();
        for (name, asked) in [("present", &present), ("absent", &absent)] {
            group.bench_function(BenchmarkId::new(form, name), |bencher| {
                bencher.iter(|| {
                    for batch in asked.chunks(SEGMENT_CHUNKS) {
                        index.locate_batch(black_box(batch), &mut found).expect("looks up");
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, chunkers, fingerprints, zeros, containers, lookups);
criterion_main!(benches);
