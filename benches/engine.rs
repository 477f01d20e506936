//! Chunkers and fingerprints alone, in bytes per second: `cargo bench --bench engine`.
//!
//! The data is random and lies in memory once, 32 MiB of it, so that caches do not flatter.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dedupfs::chunker::{Chunker, chunker};
use dedupfs::fingerprint::{Fingerprinter, is_all_zero};
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};

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
    group.bench_function("is_all_zero", |bencher| bencher.iter(|| is_all_zero(black_box(&data))));
    group.finish();
}

criterion_group!(benches, chunkers, fingerprints, zeros);
criterion_main!(benches);
