//! BLAKE3 of many chunks at once, with SIMD lanes shared across them.
//!
//! BLAKE3 cuts its input into *leaves* of 1,024 bytes and hashes them, up to 16 side by side, into chaining values that
//! a binary tree joins (section 2.1 of the BLAKE3 paper). Alone, a chunk of 8 KiB leaves lanes empty in the leaves and
//! more so in the tree, and its last, short leaf runs in a single lane. Here, for all chunks of a pass together:
//!
//! 1. Runs of as many full leaves as there are lanes are hashed directly (consecutive counters).
//! 2. Other full leaves wait in a queue for each counter; a queue with as many as there are lanes is hashed.
//! 3. Short leaves, and the leaves left in the queues at the end, go through [`lanes`](super::lanes), sorted by length.
//! 4. The trees grow level by level, all chunks in one go: neighbours are joined, an odd one moves up. That gives
//!    BLAKE3's tree, whose left subtrees are full. The roots are joined last, with the root flag.
//!
//! The result is that of `blake3::hash` for every length. The many-at-once function of the `blake3` crate is not part
//! of its documented interface, so the crate is pinned to an exact version and tests compare every length.
//!
//! Cost: about 48 bytes of memory for each KiB of a pass (at most [`PASS_BYTES`], or one chunk), kept by the thread.

use std::cell::RefCell;

use blake3::IncrementCounter;
use blake3::platform::Platform;
use dedupfs_store::Fingerprint;

use super::is_all_zero;
use super::lanes::{
    BLOCK_BYTES, CHUNK_END, CHUNK_START, IV, LANES, LEAF_BLOCKS, LEAF_BYTES, Leaf, PARENT, ROOT, hash_leaves,
};

/// A pass ends with the chunk that brings it to this many bytes: a segment or two.
const PASS_BYTES: usize = 8 << 20;
/// The most lanes of any processor: those of AVX-512.
const DEGREE_MAX: usize = 16;

type Value = [u8; blake3::OUT_LEN];

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Hashes batches of chunks with the instructions of one platform.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchHasher {
    platform: Platform,
}

/// A full or short leaf that waits for lanes.
#[derive(Clone, Copy, Default)]
struct Waiting {
    /// Index of the chunk in the pass.
    chunk: u32,
    /// Position in the chunk, in leaves.
    counter: u32,
    /// Position of its chaining value.
    slot: u32,
}

/// Full leaves of one counter.
#[derive(Clone, Copy, Default)]
struct Queue {
    leaves: [Waiting; DEGREE_MAX],
    len: usize,
}

/// A tree in the making: `count` neighbouring values from `start` on, of the chunk with this index.
#[derive(Clone, Copy)]
struct Tree {
    chunk: u32,
    start: u32,
    count: u32,
}

/// Buffers of a pass.
#[derive(Default)]
struct Scratch {
    /// Chaining values of the current level, tree after tree.
    values: Vec<Value>,
    /// Chaining values of the level above.
    upper: Vec<Value>,
    /// By counter.
    queues: Vec<Queue>,
    /// By number of blocks, less one.
    waiting: [Vec<Waiting>; LEAF_BLOCKS],
    trees: Vec<Tree>,
    /// Positions of two values to be joined, and of the result.
    pairs: Vec<(u32, u32)>,
}

impl BatchHasher {
    /// Uses the best instructions of this processor.
    pub(super) fn detect() -> Self {
        Self { platform: Platform::detect() }
    }

    /// One hasher for every set of instructions that this processor has, the portable one included.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let mut platforms = vec![Platform::portable(), Platform::detect()];
        #[cfg(target_arch = "x86_64")]
        platforms.extend([Platform::sse2(), Platform::sse41(), Platform::avx2()].into_iter().flatten());
        platforms.into_iter().map(|platform| Self { platform }).collect()
    }

    /// Appends the fingerprints of `chunks` to `out`; zero for chunks of zeros.
    pub(super) fn hash_all(&self, chunks: &[&[u8]], out: &mut Vec<Fingerprint>) {
        let mut rest = chunks;
        while !rest.is_empty() {
            let mut pass_bytes = 0;
            let pass_chunks = rest
                .iter()
                .take_while(|chunk| {
                    let fits = pass_bytes < PASS_BYTES;
                    pass_bytes += chunk.len();
                    fits
                })
                .count();
            let (pass, behind) = rest.split_at(pass_chunks);
            let first = out.len();
            out.resize(first + pass.len(), Fingerprint::ZERO);
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.hash_leaves(self.platform, pass);
                scratch.hash_waiting(pass, &mut out[first..]);
                scratch.join_trees(self.platform, &mut out[first..]);
            });
            rest = behind;
        }
    }
}

impl Scratch {
    /// Steps 1 and 2; queues the short leaves. Chunks of one leaf are hashed by step 3 alone and get no tree.
    fn hash_leaves(&mut self, platform: Platform, chunks: &[&[u8]]) {
        let degree = platform.simd_degree();
        self.values.clear();
        self.trees.clear();
        for (index, bytes) in (0_u32..).zip(chunks) {
            if is_all_zero(bytes) {
                continue;
            }
            let (leaves, tail) = bytes.as_chunks::<LEAF_BYTES>();
            let start = self.values.len() as u32;
            let count = bytes.len().div_ceil(LEAF_BYTES) as u32;
            if count == 1 {
                let waiting = Waiting { chunk: index, counter: 0, slot: 0 };
                self.waiting[bytes.len().div_ceil(BLOCK_BYTES) - 1].push(waiting);
                continue;
            }
            self.trees.push(Tree { chunk: index, start, count });
            self.values.resize(self.values.len() + count as usize, [0; 32]);
            let mut counter = 0_u32;
            for run in leaves.chunks(degree) {
                if run.len() == degree && degree > 1 {
                    let mut inputs = [&[0; LEAF_BYTES]; DEGREE_MAX];
                    inputs.iter_mut().zip(run).for_each(|(input, leaf)| *input = leaf);
                    let values = &mut self.values[(start + counter) as usize..][..degree];
                    hash_full_leaves(platform, &inputs[..degree], counter, IncrementCounter::Yes, values);
                    counter += degree as u32;
                } else {
                    for _ in run {
                        self.enqueue(platform, chunks, Waiting { chunk: index, counter, slot: start + counter });
                        counter += 1;
                    }
                }
            }
            if !tail.is_empty() {
                let waiting = Waiting { chunk: index, counter, slot: start + counter };
                self.waiting[tail.len().div_ceil(BLOCK_BYTES) - 1].push(waiting);
            }
        }
        for queue in &mut self.queues {
            self.waiting[LEAF_BLOCKS - 1].extend_from_slice(&queue.leaves[..queue.len]);
            queue.len = 0;
        }
    }

    /// Puts a full leaf into its queue, and hashes the queue if that fills the lanes.
    fn enqueue(&mut self, platform: Platform, chunks: &[&[u8]], leaf: Waiting) {
        let counter = leaf.counter as usize;
        if counter >= self.queues.len() {
            self.queues.resize(counter + 1, Queue::default());
        }
        let queue = &mut self.queues[counter];
        queue.leaves[queue.len] = leaf;
        queue.len += 1;
        if queue.len < platform.simd_degree() {
            return;
        }
        let leaves = &queue.leaves[..queue.len];
        queue.len = 0;
        let mut inputs = [&[0; LEAF_BYTES]; DEGREE_MAX];
        for (input, leaf) in inputs.iter_mut().zip(leaves) {
            *input = &chunks[leaf.chunk as usize].as_chunks::<LEAF_BYTES>().0[counter];
        }
        let mut values = [[0; 32]; DEGREE_MAX];
        hash_full_leaves(platform, &inputs[..leaves.len()], leaf.counter, IncrementCounter::No, &mut values);
        for (leaf, value) in leaves.iter().zip(values) {
            self.values[leaf.slot as usize] = value;
        }
    }

    /// Step 3.
    fn hash_waiting(&mut self, chunks: &[&[u8]], out: &mut [Fingerprint]) {
        let mut group = [Waiting::default(); LANES];
        let mut group_len = 0;
        for waiting in self.waiting.iter_mut().rev() {
            for leaf in waiting.drain(..) {
                group[group_len] = leaf;
                group_len += 1;
                if group_len == LANES {
                    hash_group(&group, chunks, &mut self.values, out);
                    group_len = 0;
                }
            }
        }
        hash_group(&group[..group_len], chunks, &mut self.values, out);
    }

    /// Step 4.
    fn join_trees(&mut self, platform: Platform, out: &mut [Fingerprint]) {
        while !self.trees.is_empty() {
            self.upper.clear();
            self.pairs.clear();
            let (values, upper, pairs) = (&self.values, &mut self.upper, &mut self.pairs);
            let mut roots = Roots::new(platform, values);
            self.trees.retain_mut(|tree| {
                if tree.count == 2 {
                    roots.push(*tree, out);
                    return false;
                }
                let start = upper.len() as u32;
                for pair in 0..tree.count / 2 {
                    pairs.push((tree.start + 2 * pair, start + pair));
                }
                upper.resize(upper.len() + (tree.count / 2) as usize, [0; 32]);
                if tree.count % 2 == 1 {
                    upper.push(values[(tree.start + tree.count - 1) as usize]);
                }
                *tree = Tree { chunk: tree.chunk, start, count: tree.count.div_ceil(2) };
                true
            });
            roots.flush(out);
            for group in pairs.chunks(DEGREE_MAX) {
                let joined = join(platform, values, group.iter().map(|(from, _)| *from), PARENT);
                for ((_, to), value) in group.iter().zip(joined) {
                    upper[*to as usize] = value;
                }
            }
            std::mem::swap(&mut self.values, &mut self.upper);
        }
    }
}

/// Trees with two values left, gathered to fill the lanes.
struct Roots<'a> {
    platform: Platform,
    values: &'a [Value],
    trees: [Tree; DEGREE_MAX],
    len: usize,
}

impl<'a> Roots<'a> {
    fn new(platform: Platform, values: &'a [Value]) -> Self {
        Self { platform, values, trees: [Tree { chunk: 0, start: 0, count: 0 }; DEGREE_MAX], len: 0 }
    }

    fn push(&mut self, tree: Tree, out: &mut [Fingerprint]) {
        self.trees[self.len] = tree;
        self.len += 1;
        if self.len == DEGREE_MAX {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut [Fingerprint]) {
        let trees = &self.trees[..self.len];
        let hashes = join(self.platform, self.values, trees.iter().map(|tree| tree.start), PARENT | ROOT);
        for (tree, hash) in trees.iter().zip(hashes) {
            out[tree.chunk as usize] = Fingerprint(hash);
        }
        self.len = 0;
    }
}

/// Hashes leaves that are short or have too few partners.
fn hash_group(group: &[Waiting], chunks: &[&[u8]], values: &mut [Value], out: &mut [Fingerprint]) {
    let mut leaves = [Leaf { bytes: &[], counter: 0, is_root: false }; LANES];
    for (leaf, waiting) in leaves.iter_mut().zip(group) {
        let chunk = chunks[waiting.chunk as usize];
        let rest = &chunk[waiting.counter as usize * LEAF_BYTES..];
        let bytes = &rest[..rest.len().min(LEAF_BYTES)];
        *leaf = Leaf { bytes, counter: waiting.counter, is_root: bytes.len() == chunk.len() };
    }
    let leaves = &leaves[..group.len()];
    for ((waiting, leaf), hash) in group.iter().zip(leaves).zip(hash_leaves(leaves)) {
        if leaf.is_root {
            out[waiting.chunk as usize] = Fingerprint(hash);
        } else {
            values[waiting.slot as usize] = hash;
        }
    }
}

/// Hashes full leaves of equal or consecutive counters.
fn hash_full_leaves(
    platform: Platform,
    leaves: &[&[u8; LEAF_BYTES]],
    counter: u32,
    increment: IncrementCounter,
    out: &mut [Value],
) {
    let out = out.as_flattened_mut();
    platform.hash_many(leaves, &IV, u64::from(counter), increment, 0, CHUNK_START, CHUNK_END, out);
}

/// Joins each value at one of at most [`DEGREE_MAX`] positions with its successor.
fn join(platform: Platform, values: &[Value], positions: impl Iterator<Item = u32>, flags: u8) -> [Value; DEGREE_MAX] {
    let mut inputs = [&[0; BLOCK_BYTES]; DEGREE_MAX];
    let mut len = 0;
    for (input, position) in inputs.iter_mut().zip(positions) {
        let pair = &values[position as usize..];
        if let Some(block) = pair.as_flattened().first_chunk() {
            *input = block;
        }
        len += 1;
    }
    let mut out = [[0; 32]; DEGREE_MAX];
    let joined = out.as_flattened_mut();
    platform.hash_many(&inputs[..len], &IV, 0, IncrementCounter::No, flags, 0, 0, joined);
    out
}
