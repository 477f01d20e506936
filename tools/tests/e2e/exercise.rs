//! Random operations of all kinds on one file, through handles of all kinds, against a copy in memory: as fsx does, with remounts.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};

use crate::machine::is_fit;
use crate::random::{Random, noise, seed};
use crate::site::Site;

const FILE_BYTES_MAX: u64 = 12 << 20;
const OPERATIONS: u64 = 1500;
/// Written bytes come from a buffer of this size, so that much is written more than once.
const DONOR_BYTES: u64 = 6 << 20;
const PAGE_BYTES: u64 = 4096;

/// The way a file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// Reads and writes through the page cache.
    Cache,
    /// Reads and writes past it.
    Direct,
    /// Writes only.
    WriteOnly,
    /// Every write is durable.
    Sync,
}

const ALL: [Through; 4] = [Through::Cache, Through::Direct, Through::WriteOnly, Through::Sync];

struct Exercise {
    site: Site,
    path: PathBuf,
    /// One for each of [`ALL`].
    files: Vec<File>,
    expected: Vec<u8>,
    donor: Vec<u8>,
    random: Random,
    done: Vec<String>,
}

fn open(path: &PathBuf) -> Vec<File> {
    let open = |through| {
        let mut options = File::options();
        options.read(through != Through::WriteOnly).write(true).create(true).truncate(false);
        match through {
            Through::Direct => options.custom_flags(libc::O_DIRECT),
            Through::Sync => options.custom_flags(libc::O_DSYNC),
            Through::Cache | Through::WriteOnly => &mut options,
        };
        options.open(path).unwrap()
    };
    ALL.map(open).into()
}

impl Exercise {
    fn new(number: u64) -> Self {
        let site = Site::mounted();
        let path = site.mnt.join("file");
        let files = open(&path);
        let donor = noise(77, DONOR_BYTES as usize);
        Self { site, path, files, expected: Vec::new(), donor, random: Random::new(seed(number)), done: Vec::new() }
    }

    fn size(&self) -> u64 {
        self.expected.len() as u64
    }

    /// Chooses the length of an operation: mostly small, sometimes more than the file has.
    fn len(&mut self) -> u64 {
        let max = *self.random.pick(&[100, PAGE_BYTES, 70_000, 70_000, 1 << 20, 5 << 20]);
        self.random.between(1, max + 1)
    }

    /// Chooses a range that may cross the end of the file, but not the allowed maximum.
    fn range(&mut self) -> (u64, u64) {
        let len = self.len();
        let align = *self.random.pick(&[1, 1, PAGE_BYTES, 65_536]);
        let from = self.random.below((self.size() + 200_000).min(FILE_BYTES_MAX - len)) / align * align;
        (from, len)
    }

    /// Chooses a range within the file, if it has any bytes.
    fn range_within(&mut self) -> Option<(u64, u64)> {
        if self.expected.is_empty() {
            return None;
        }
        let from = self.random.below(self.size());
        Some((from, self.len().min(self.size() - from)))
    }

    fn file(&mut self, among: &[Through]) -> (Through, &File) {
        let through = *self.random.pick(among);
        (through, &self.files[ALL.iter().position(|it| *it == through).unwrap()])
    }

    fn grow(&mut self, size: u64) {
        self.expected.resize(self.expected.len().max(size as usize), 0);
    }

    fn note(&mut self, what: String) {
        self.done.push(what);
    }

    #[track_caller]
    fn assert_same(&self, found: &[u8], from: u64, what: &str) {
        let expected = &self.expected[from as usize..from as usize + found.len()];
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            let last: Vec<_> = self.done.iter().rev().take(30).rev().collect();
            panic!(
                "{what}: another byte at {} after {} operations, the last of them {last:#?}",
                from + at as u64,
                self.done.len()
            );
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..18 => self.write(),
            18..32 => self.read(),
            32..40 => self.map_write(),
            40..48 => self.map_read(),
            48..54 => self.truncate(),
            54..66 => self.allocate(),
            66..82 => self.copy(),
            82..86 => self.append(),
            86..91 => self.sync(),
            91..95 => self.find_holes(),
            95..97 => self.cut_and_write(),
            97 | 98 => self.reopen(),
            _ => self.remount(),
        }
        let (expected, found) = (self.size(), fs::metadata(&self.path).unwrap().len());
        assert_eq!(found, expected, "length after {:?}", self.done.last());
    }

    fn write(&mut self) {
        let (from, len) = self.range();
        let at = self.random.below(DONOR_BYTES - len) as usize;
        let data = self.donor[at..at + len as usize].to_vec();
        let (through, file) = self.file(&[Through::Cache, Through::WriteOnly, Through::Sync]);
        file.write_all_at(&data, from).unwrap();
        self.grow(from + len);
        self.expected[from as usize..(from + len) as usize].copy_from_slice(&data);
        self.note(format!("write {len} at {from} through {through:?}"));
    }

    fn append(&mut self) {
        use std::io::Write as _;
        let len = self.len();
        if self.size() + len > FILE_BYTES_MAX {
            return;
        }
        let data = self.donor[..len as usize].to_vec();
        File::options().append(true).open(&self.path).unwrap().write_all(&data).unwrap();
        self.expected.extend_from_slice(&data);
        self.note(format!("append {len}"));
    }

    fn read(&mut self) {
        let Some((from, len)) = self.range_within() else { return };
        let (through, file) = self.file(&[Through::Cache, Through::Direct]);
        let mut found = vec![0; len as usize];
        file.read_exact_at(&mut found, from).unwrap();
        self.note(format!("read {len} at {from} through {through:?}"));
        self.assert_same(&found, from, "read");
    }

    /// Calls `work` with a shared mapping of the range, which begins at the start of its page.
    fn mapped(&mut self, from: u64, len: u64, work: impl FnOnce(&mut [u8])) {
        let (start, end) = (from / PAGE_BYTES * PAGE_BYTES, from + len);
        let (_, file) = self.file(&[Through::Cache, Through::Direct]);
        let (len, protection) = ((end - start) as usize, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), start.cast_signed())
        };
        assert!(at != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: the mapping has so many bytes, nobody else refers to it, and the file is not cut meanwhile.
        work(&mut unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) }[(from - start) as usize..]);
        // SAFETY: the range is that of the mapping.
        assert_eq!(unsafe { libc::msync(at, len, libc::MS_SYNC) }, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the range is that of the mapping, which is not used from here on.
        assert_eq!(unsafe { libc::munmap(at, len) }, 0);
    }

    fn map_write(&mut self) {
        let (from, len) = self.range();
        let at = self.random.below(DONOR_BYTES - len) as usize;
        let data = self.donor[at..at + len as usize].to_vec();
        if from + len > self.size() {
            // A mapping keeps only the bytes within the file's length.
            self.files[0].set_len(from + len).unwrap();
            self.grow(from + len);
        }
        self.mapped(from, len, |mapped| mapped.copy_from_slice(&data));
        self.expected[from as usize..(from + len) as usize].copy_from_slice(&data);
        self.note(format!("write {len} at {from} to memory"));
    }

    fn map_read(&mut self) {
        let Some((from, len)) = self.range_within() else { return };
        let mut found = Vec::new();
        self.mapped(from, len, |mapped| found.extend_from_slice(mapped));
        self.note(format!("read {len} at {from} in memory"));
        self.assert_same(&found, from, "mapping");
    }

    fn truncate(&mut self) {
        let size = match self.random.below(8) {
            0 => 0,
            1..5 => self.random.below(self.size() + 1),
            _ => self.random.below(FILE_BYTES_MAX),
        };
        let (through, file) = self.file(&ALL);
        file.set_len(size).unwrap();
        self.expected.resize(size as usize, 0);
        self.note(format!("truncate to {size} through {through:?}"));
    }

    /// Bytes behind the cut must not come back.
    fn cut_and_write(&mut self) {
        let (from, len) = self.range();
        let cut = self.random.below(from + 1).min(self.size());
        let data = self.donor[..len as usize].to_vec();
        let (through, file) = self.file(&[Through::Cache, Through::WriteOnly]);
        file.set_len(cut).unwrap();
        file.write_all_at(&data, from).unwrap();
        self.expected.truncate(cut as usize);
        self.grow(from + len);
        self.expected[from as usize..(from + len) as usize].copy_from_slice(&data);
        self.note(format!("truncate to {cut} and write {len} at {from} through {through:?}"));
    }

    fn allocate(&mut self) {
        let (from, len) = self.range();
        let modes = [
            FallocateFlags::empty(),
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        ];
        let mode = *self.random.pick(&modes);
        let (through, file) = self.file(&ALL);
        fallocate(file, mode, from, len).unwrap();
        if !mode.contains(FallocateFlags::KEEP_SIZE) {
            self.grow(from + len);
        }
        if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
            let size = self.expected.len();
            self.expected[size.min(from as usize)..size.min((from + len) as usize)].fill(0);
        }
        self.note(format!("{mode:?} {len} at {from} through {through:?}"));
    }

    fn copy(&mut self) {
        let Some((from, len)) = self.range_within() else { return };
        let onto = self.random.below((self.size() + 200_000).min(FILE_BYTES_MAX - len));
        let overlaps = from.abs_diff(onto) < len;
        let (through, file) = self.file(&[Through::Cache, Through::Direct]);
        let target = file.try_clone().unwrap();
        let mut copied = 0;
        while copied < len {
            let (mut at, mut to) = (from + copied, onto + copied);
            match copy_file_range(file, Some(&mut at), &target, Some(&mut to), (len - copied) as usize) {
                Ok(0) => panic!("nothing copied of {len} from {from} to {onto}"),
                Ok(bytes) => copied += bytes as u64,
                Err(rustix::io::Errno::INVAL) if overlaps => return,
                Err(error) => panic!("copy {len} from {from} to {onto}: {error}"),
            }
        }
        assert!(!overlaps, "ranges that overlap were copied");
        self.grow(onto + len);
        self.expected.copy_within(from as usize..(from + len) as usize, onto as usize);
        self.note(format!("copy {len} from {from} to {onto} through {through:?}"));
    }

    fn sync(&mut self) {
        let data_only = self.random.once_in(2);
        let (through, file) = self.file(&ALL);
        if data_only { file.sync_data() } else { file.sync_all() }.unwrap();
        self.note(format!("sync through {through:?}"));
    }

    /// Checks that every hole has zeros, and that data begins and ends where the seeks report.
    fn find_holes(&mut self) {
        let mut at = 0;
        while at < self.size() {
            let data = match seek(&self.files[0], SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => self.size(),
                Err(error) => panic!("{error}"),
            };
            let hole = self.expected[at as usize..data as usize].iter().position(|byte| *byte != 0);
            assert_eq!(hole, None, "data in a hole at {at} after {:?}", self.done.last());
            if data < self.size() {
                at = seek(&self.files[0], SeekFrom::Hole(data)).unwrap();
                assert!(at > data && at <= self.size());
            } else {
                at = data;
            }
        }
        self.note("seek".to_owned());
    }

    fn verify(&self, what: &str) {
        let found = fs::read(&self.path).unwrap();
        assert_eq!(found.len(), self.expected.len(), "{what}");
        self.assert_same(&found, 0, what);
    }

    fn reopen(&mut self) {
        self.files.clear();
        self.verify("closed");
        self.files = open(&self.path);
        self.note("reopen".to_owned());
    }

    fn remount(&mut self) {
        self.files.clear();
        self.site.remount();
        self.verify("mounted again");
        self.files = open(&self.path);
        self.note("remount".to_owned());
    }
}

fn exercise(number: u64) {
    if !is_fit() {
        return;
    }
    let mut exercise = Exercise::new(number);
    for _ in 0..OPERATIONS {
        exercise.step();
    }
    exercise.remount();
    exercise.files.clear();
    let Exercise { site, path, .. } = exercise;
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    site.gc();
    site.umount();
    site.assert_clean();
}

#[test]
fn one_file_is_what_its_copy_in_memory_is() {
    exercise(21);
}

#[test]
fn another_file_is_what_its_copy_in_memory_is() {
    exercise(22);
}
