//! Limits of content: unit in the name, value, reason.

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Sequential bytes of a file gathered before they are handed to a worker. Waking another core costs 50 us
/// (MEASURED), so a hand-off must be worth hundreds.
pub const BATCH_BYTES: usize = 1 << 20;
/// A smaller batch is fingerprinted by the thread that has it: handing it over would take longer.
pub(crate) const INLINE_BATCH_BYTES: usize = 256 << 10;
/// Batches of one file in flight before its writer waits.
pub const BATCHES_IN_FLIGHT_MAX: usize = 8;
/// The same limit once half of the memory of open files is in use: one batch is filled while another is fingerprinted.
pub(crate) const BATCHES_IN_FLIGHT_MIN: usize = 2;
/// Mean bytes of file content that one recipe segment covers (Batch section 3; about 512 chunks of 8 KiB).
pub(crate) const SEGMENT_TARGET_BYTES: u64 = 4 * MIB;
/// A segment ends by its content only from this size on.
pub const SEGMENT_MIN_BYTES: u64 = MIB;
/// Segments of images are so many times shorter: each change anywhere stores one anew, and counts its references.
pub(crate) const FINER: u64 = 4;
/// The least length from which on a segment of an image ends by its content.
pub const IMAGE_SEGMENT_MIN_BYTES: u64 = SEGMENT_MIN_BYTES / FINER;
/// Memory of a piece in the list of an open file.
pub(crate) const PIECE_BYTES: u64 = 80;
/// Largest segment: bounds the memory of one segment.
pub const SEGMENT_MAX_BYTES: u64 = 8 * MIB;
/// Largest number of entries of one segment (with many small zero runs between chunks the byte limits would not bound
/// it).
pub(crate) const SEGMENT_ENTRIES_MAX: usize = 8192;
/// A run of zeros of at least this length becomes a hole between segments.
pub(crate) const HOLE_CUT_BYTES: u64 = MIB;
/// A gap of at least this length in a sequential write is kept as a run of zeros without chunking it.
pub(crate) const GAP_AS_ZEROS_BYTES: u64 = 64 * KIB;
/// Holes are reported in multiples of this: the largest block size that programs looking for holes assume.
pub(crate) const HOLE_UNIT_BYTES: u64 = 4 * KIB;
/// Children of a list node: minimum, mean, maximum.
pub(crate) const LIST_CHILDREN_MIN: usize = 64;
/// See [`LIST_CHILDREN_MIN`].
pub(crate) const LIST_CHILDREN_MEAN: usize = 256;
/// See [`LIST_CHILDREN_MIN`].
pub(crate) const LIST_CHILDREN_MAX: usize = 1024;
/// Memory of a randomly written extent besides its bytes: its place in the file's list, and the allocator's rounding.
pub(crate) const DIRTY_EXTENT_OVERHEAD_BYTES: u64 = 96;
/// Number of a file's former chunks that are kept as a first guess for data written over them. At a mean of 8 KiB they
/// cover 256 MiB.
pub(crate) const BLOCK_INDEX_CHUNKS_MAX: usize = 32_768;
/// Number of answers given ahead that a put keeps. At a mean of 8 KiB they cover 128 MiB, far more than its batches under way.
pub(crate) const KEPT_ANSWERS_MAX: usize = 16_384;
/// Largest extent into which randomly written bytes are gathered.
pub(crate) const DIRTY_EXTENT_BYTES_MAX: usize = 1 << 20;
/// Largest file. The kernel's offsets are signed; recipes would allow more.
pub const FILE_BYTES_MAX: u64 = 1 << 60;
/// Number of tries to read a chunk whose container moved meanwhile.
pub(crate) const READ_RETRIES: usize = 4;

const _: () = assert!(SEGMENT_MIN_BYTES < SEGMENT_TARGET_BYTES && SEGMENT_TARGET_BYTES < SEGMENT_MAX_BYTES);
const _: () = assert!(LIST_CHILDREN_MIN < LIST_CHILDREN_MEAN && LIST_CHILDREN_MEAN < LIST_CHILDREN_MAX);
