//! Temporary files that hold records by partitions.
//!
//! A spool is one file without a name, however many partitions it has, so open files do not run out. Records of a partition are gathered
//! in its buffer, which becomes a block at the end of the file. Each block names the one before it of its partition, so memory
//! holds a few words for each partition. They are read from the last to the first: readers put records in order anyway.
//!
//! `docs/format.md` (Beside a pool) has the bytes.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

/// Most partitions that [`partitions_max`] advises.
pub const PARTITIONS_MAX: usize = 4096;
/// Bytes of a block at least, and at most.
const BLOCK_BYTES_MIN: usize = 1024;
const BLOCK_BYTES_MAX: usize = 256 << 10;
const HEADER_BYTES: usize = 32;
const SUM_BYTES: usize = 8;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A spool cannot be written or read. Its records are gone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on the file failed.
    #[error("cannot {step} in {}: {source}; see that it can be written to and has room, or name another directory", .directory.display())]
    Io {
        /// The operation, as a verb with its object.
        step: &'static str,
        /// The directory of the file.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file gave other bytes than were written to it.
    #[error(
        "a spool in {} is damaged at byte {at}: {why}; repeat it, with spools on another disk if this comes again",
        .directory.display()
    )]
    Damaged {
        /// The directory of the spool.
        directory: PathBuf,
        /// Offset of the block in the spool, bytes.
        at: u64,
        /// The rule that the block breaks.
        why: &'static str,
    },
    /// A record is for a partition that the spool does not have.
    #[error("a spool has no partition {0}")]
    NoPartition(usize),
}

/// Partitions of a spool at most with so much for its buffers, two at least: those that get buffers of a kilobyte.
pub fn partitions_max(buffers_bytes: usize) -> usize {
    (buffers_bytes / BLOCK_BYTES_MIN).clamp(2, PARTITIONS_MAX)
}

/// Bytes of a block of a spool with so many partitions: the memory of a partition.
pub fn block_bytes(buffers_bytes: usize, partitions: usize) -> usize {
    (buffers_bytes / partitions.max(1)).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
}

/// A record of fixed length.
pub trait Spooled: Sized {
    /// Its length.
    const BYTES: usize;

    /// Appends its bytes.
    fn encode(&self, into: &mut Vec<u8>);

    /// Reads it, if exactly its bytes are given and say something that can be.
    fn decode(from: &[u8]) -> Option<Self>;
}

/// Records by partitions, on disk.
pub struct Spool<T> {
    file: File,
    directory: PathBuf,
    end: u64,
    block_bytes: usize,
    partitions: Vec<Partition>,
    records: PhantomData<T>,
}

/// A partition: the records that are not written yet, behind room for a header, and the chain of its blocks.
#[derive(Default)]
struct Partition {
    buffer: Vec<u8>,
    last: u64,
    blocks: u32,
    records: u64,
}

impl<T: Spooled> Spool<T> {
    /// Makes an empty one.
    ///
    /// # Errors
    /// The directory takes no file.
    pub fn new(directory: &Path, partitions: usize, buffers_bytes: usize) -> Result<Self> {
        let file = tempfile::tempfile_in(directory).map_err(|source| Error::Io {
            step: "make a spool",
            directory: directory.into(),
            source,
        })?;
        Ok(Self {
            file,
            directory: directory.into(),
            end: 0,
            block_bytes: block_bytes(buffers_bytes, partitions),
            partitions: std::iter::repeat_with(Partition::default).take(partitions).collect(),
            records: PhantomData,
        })
    }

    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Records of a partition.
    pub fn records(&self, partition: usize) -> u64 {
        self.partitions.get(partition).map_or(0, |partition| partition.records)
    }

    /// Bytes written.
    pub fn written_bytes(&self) -> u64 {
        self.end
    }

    /// Records of a block.
    pub fn records_of_a_block(&self) -> usize {
        (self.block_bytes - HEADER_BYTES) / T::BYTES
    }

    /// Adds a record.
    ///
    /// # Errors
    /// There is no such partition, or no room on disk.
    pub fn push(&mut self, partition: usize, record: &T) -> Result<()> {
        let full_bytes = HEADER_BYTES + self.records_of_a_block() * T::BYTES;
        let there = self.partitions.get_mut(partition);
        let there = there.ok_or(Error::NoPartition(partition))?;
        if there.buffer.is_empty() {
            there.buffer.reserve_exact(full_bytes);
            there.buffer.resize(HEADER_BYTES, 0);
        }
        record.encode(&mut there.buffer);
        there.records += 1;
        if there.buffer.len() >= full_bytes { self.write(partition) } else { Ok(()) }
    }

    /// Writes all that is in buffers, and frees these.
    ///
    /// # Errors
    /// There is no room on disk.
    pub fn finish(&mut self) -> Result<()> {
        for partition in 0..self.partitions.len() {
            self.write(partition)?;
            if let Some(there) = self.partitions.get_mut(partition) {
                there.buffer = Vec::new();
            }
        }
        Ok(())
    }

    fn write(&mut self, partition: usize) -> Result<()> {
        let at = self.end;
        let Some(there) = self.partitions.get_mut(partition) else { return Ok(()) };
        let Some(records_bytes) = there.buffer.len().checked_sub(HEADER_BYTES).filter(|bytes| *bytes > 0) else {
            return Ok(());
        };
        let before = if there.blocks == 0 { at } else { there.last };
        // Both numbers are bounded far below 2^32.
        let (partition, records_bytes) = (partition as u32, records_bytes as u32);
        let header = Header { partition, number: there.blocks, before, records_bytes };
        if let Some((head, records)) = there.buffer.split_first_chunk_mut::<HEADER_BYTES>() {
            *head = header.sealed(records);
        }
        let failed = |source| Error::Io { step: "write to a spool", directory: self.directory.clone(), source };
        self.file.write_all_at(&there.buffer, at).map_err(failed)?;
        let blocks = there.blocks.checked_add(1);
        there.blocks = blocks.ok_or_else(|| failed(io::Error::from(io::ErrorKind::FileTooLarge)))?;
        there.last = at;
        self.end = at + there.buffer.len() as u64;
        there.buffer.clear();
        Ok(())
    }

    /// The way through a partition, from its last block to its first. The spool is finished.
    pub fn blocks(&self, partition: usize) -> Blocks {
        let (next, left) = self.partitions.get(partition).map_or((0, 0), |there| (there.last, there.blocks));
        Blocks { partition, next, left, buffer: Vec::new() }
    }

    /// Appends the records of the next block. False if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or gives other bytes than were written.
    pub fn next_into(&self, blocks: &mut Blocks, records: &mut Vec<T>) -> Result<bool> {
        let Some(number) = blocks.left.checked_sub(1) else { return Ok(false) };
        let at = blocks.next;
        let damaged = |why| Error::Damaged { directory: self.directory.clone(), at, why };
        // The last block of the file may be short.
        let len_bytes = self.end.saturating_sub(at).min(self.block_bytes as u64) as usize;
        blocks.buffer.resize(len_bytes, 0);
        self.file.read_exact_at(&mut blocks.buffer, at).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged("the file ends before it"),
            _ => Error::Io { step: "read a spool", directory: self.directory.clone(), source },
        })?;
        let split = blocks.buffer.split_first_chunk::<HEADER_BYTES>();
        let (head, rest) = split.ok_or_else(|| damaged("the file ends in its header"))?;
        let header = Header::decode(head);
        let bytes =
            rest.get(..header.records_bytes as usize).ok_or_else(|| damaged("its length is beyond its room"))?;
        if header.sealed(bytes) != *head {
            return Err(damaged("its checksum does not fit"));
        }
        if header.partition as usize != blocks.partition || header.number != number {
            return Err(damaged("it is another block"));
        }
        let before = header.before;
        if (number == 0) != (before == at) || before > at {
            return Err(damaged("its chain is broken"));
        }
        if !bytes.len().is_multiple_of(T::BYTES) {
            return Err(damaged("it ends within a record"));
        }
        for record in bytes.chunks_exact(T::BYTES) {
            records.push(T::decode(record).ok_or_else(|| damaged("a record says nothing that can be"))?);
        }
        (blocks.left, blocks.next) = (number, before);
        Ok(true)
    }

    /// Gives the records of a partition to `each`, those of the last block first. One block is in memory at a time. The spool is finished.
    ///
    /// # Errors
    /// As [`next_into`](Self::next_into). The records of the blocks read before were given by then.
    pub fn for_each(&self, partition: usize, mut each: impl FnMut(T)) -> Result<()> {
        let (mut blocks, mut records) = (self.blocks(partition), Vec::with_capacity(self.records_of_a_block()));
        while self.next_into(&mut blocks, &mut records)? {
            records.drain(..).for_each(&mut each);
        }
        Ok(())
    }
}

/// The blocks of a partition that are not read yet.
pub struct Blocks {
    partition: usize,
    next: u64,
    left: u32,
    buffer: Vec<u8>,
}

/// The header of a block, but for its checksum.
struct Header {
    partition: u32,
    number: u32,
    before: u64,
    records_bytes: u32,
}

/// The first `N` bytes, if there are as many.
pub fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

impl Header {
    fn decode(head: &[u8; HEADER_BYTES]) -> Self {
        let mut rest = head.as_slice();
        // A header has all of them.
        Self {
            partition: take(&mut rest).map_or(0, u32::from_le_bytes),
            number: take(&mut rest).map_or(0, u32::from_le_bytes),
            before: take(&mut rest).map_or(0, u64::from_le_bytes),
            records_bytes: take(&mut rest).map_or(0, u32::from_le_bytes),
        }
    }

    /// Its bytes, with the checksum of itself and the records.
    fn sealed(&self, records: &[u8]) -> [u8; HEADER_BYTES] {
        let mut head = [0; HEADER_BYTES];
        let fields = self.partition.to_le_bytes().into_iter().chain(self.number.to_le_bytes());
        let fields = fields.chain(self.before.to_le_bytes()).chain(self.records_bytes.to_le_bytes()).chain([0; 4]);
        for (byte, field) in head.iter_mut().zip(fields) {
            *byte = field;
        }
        let (checked, seal) = head.split_at_mut(HEADER_BYTES - SUM_BYTES);
        let sum = XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(checked), records);
        seal.copy_from_slice(&sum.to_le_bytes());
        head
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Numbered {
        number: u64,
        rest: [u8; 48],
    }

    impl Spooled for Numbered {
        const BYTES: usize = 56;

        fn encode(&self, into: &mut Vec<u8>) {
            into.extend_from_slice(&self.number.to_le_bytes());
            into.extend_from_slice(&self.rest);
        }

        fn decode(mut from: &[u8]) -> Option<Self> {
            Some(Self { number: u64::from_le_bytes(take(&mut from)?), rest: take(&mut from)? })
        }
    }

    fn numbered(number: u64) -> Numbered {
        Numbered { number, rest: [number as u8; 48] }
    }

    #[test]
    fn buffers_fit_into_their_memory() {
        assert!(block_bytes(10 << 20, PARTITIONS_MAX) * PARTITIONS_MAX <= 10 << 20);
        for bytes in [0, 1 << 10, 100_000, 1 << 30] {
            let most = partitions_max(bytes);
            assert!((2..=PARTITIONS_MAX).contains(&most) && block_bytes(bytes, most) * most <= bytes.max(2048));
        }
    }

    fn spool_of(records: u64) -> Spool<Numbered> {
        let mut spool = Spool::new(&std::env::temp_dir(), 3, 0).unwrap();
        for number in 0..records {
            spool.push((number % 3) as usize, &numbered(number)).unwrap();
        }
        spool.finish().unwrap();
        spool
    }

    fn read(spool: &Spool<Numbered>, partition: usize) -> Result<Vec<Numbered>> {
        let mut records = Vec::new();
        spool.for_each(partition, |record| records.push(record))?;
        records.sort_by_key(|record| record.number);
        Ok(records)
    }

    #[test]
    fn a_partition_gives_its_records_and_no_others() {
        for records in [0, 1, 2, 50, 51, 52, 53, 54, 1000] {
            let spool = spool_of(records);
            for partition in 0..3 {
                let expected: Vec<_> = (0..records).filter(|number| number % 3 == partition).map(numbered).collect();
                assert_eq!(spool.records(partition as usize), expected.len() as u64);
                assert_eq!(read(&spool, partition as usize).unwrap(), expected);
            }
        }
    }

    #[test]
    fn a_damaged_byte_is_found_wherever_it_is() {
        let spool = spool_of(120);
        for at in 0..spool.end {
            let mut byte = [0];
            spool.file.read_exact_at(&mut byte, at).unwrap();
            spool.file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            let outcomes: Vec<_> = (0..3).map(|partition| read(&spool, partition)).collect();
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "byte {at}");
            let error = outcomes.into_iter().find_map(Result::err).unwrap();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            spool.file.write_all_at(&byte, at).unwrap();
        }
    }

    #[test]
    fn a_spool_that_is_cut_or_put_in_another_order_is_damaged() {
        let spool = spool_of(120);
        let mut bytes = vec![0; spool.end as usize];
        spool.file.read_exact_at(&mut bytes, 0).unwrap();
        // Blocks of partition 0 and 1 change places.
        let block = HEADER_BYTES + spool.records_of_a_block() * Numbered::BYTES;
        let swapped = [&bytes[block..2 * block], &bytes[..block], &bytes[2 * block..]].concat();
        spool.file.write_all_at(&swapped, 0).unwrap();
        assert!(read(&spool, 0).is_err() && read(&spool, 1).is_err());
        spool.file.set_len(10).unwrap();
        assert!((0..3).all(|partition| read(&spool, partition).is_err()));
    }

    #[test]
    fn a_full_disk_is_told_with_the_directory() {
        let mut spool = Spool::<Numbered>::new(&std::env::temp_dir(), 1, 0).unwrap();
        spool.file = File::options().write(true).open("/dev/full").unwrap();
        spool.push(0, &numbered(1)).unwrap();
        let told = spool.finish().unwrap_err().to_string();
        assert!(told.contains("No space left") && told.contains(&std::env::temp_dir().display().to_string()), "{told}");
    }
}
