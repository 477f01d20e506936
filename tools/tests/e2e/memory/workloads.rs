//! Workloads of clients that need memory.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Done, Scale};
use crate::command::{DEDUPFS, Tool};
use crate::random::noise;
use crate::site::Site;

/// Bytes that no pool knows: noise with a number in each 4 KiB.
struct Fresh {
    bytes: Vec<u8>,
    next: u64,
}

impl Fresh {
    fn new(len_bytes: usize) -> Self {
        Self { bytes: noise(7, len_bytes), next: 0 }
    }

    fn next(&mut self) -> &[u8] {
        for block in self.bytes.chunks_mut(4096) {
            self.next += 1;
            block[..8].copy_from_slice(&self.next.to_le_bytes());
        }
        &self.bytes
    }
}

fn may_open(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(files + 256);
    if limit.current.is_some_and(|current| Some(current) < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(files + 256));
        setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).expect("many open files");
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn names(site: &Site, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| site.mnt.join(format!("file {number}"))).collect()
}

/// Opens 1,000 files together, writes a piece into each, and repeats that. Checks their content afterwards.
pub fn write_in_turns(site: &Site, scale: Scale) -> Done {
    const FILES: usize = 1000;
    let (rounds, piece_bytes) = scale.pick((3, 256 << 10), (4, 1 << 20));
    may_open(FILES as u64);
    let names = names(site, FILES);
    let mut fresh = Fresh::new(piece_bytes);
    let mut hashers = vec![blake3::Hasher::new(); FILES];
    let mut files: Vec<_> = names.iter().map(|name| File::create(name).unwrap()).collect();
    for _ in 0..rounds {
        for (file, hasher) in files.iter_mut().zip(&mut hashers) {
            let piece = fresh.next();
            file.write_all(piece).unwrap();
            hasher.update(piece);
        }
    }
    drop(files);
    for (name, hasher) in names.iter().zip(&hashers).step_by(37) {
        assert_eq!(blake3::hash(&fs::read(name).unwrap()), hasher.finalize(), "{}", name.display());
    }
    Done { amount: mib(FILES * rounds * piece_bytes), unit: "MiB", inodes: FILES as u64 }
}

/// Makes the files for [`read_in_turns`].
pub fn make_files_to_read(site: &Site, scale: Scale) {
    let mut fresh = Fresh::new(scale.pick(256 << 10, 4 << 20));
    for name in names(site, 1000) {
        fs::write(name, fresh.next()).unwrap();
    }
}

/// Opens 1,000 files together, reads a piece of each, and repeats that.
pub fn read_in_turns(site: &Site, _: Scale) -> Done {
    may_open(1000);
    let mut files: Vec<_> = names(site, 1000).iter().map(|name| File::open(name).unwrap()).collect();
    let mut piece = vec![0; 64 << 10];
    let mut all_bytes = 0;
    loop {
        let read_bytes: usize = files.iter_mut().map(|file| file.read(&mut piece).unwrap()).sum();
        if read_bytes == 0 {
            return Done { amount: mib(all_bytes), unit: "MiB", inodes: 1000 };
        }
        all_bytes += read_bytes;
    }
}

/// Writes a little into each of 10,000 files and keeps them open.
pub fn open_many(site: &Site, _: Scale) -> Done {
    const FILES: usize = 10_000;
    may_open(FILES as u64);
    let mut fresh = Fresh::new(4096);
    let files: Vec<_> = names(site, FILES)
        .iter()
        .map(|name| {
            let mut file = File::options().read(true).write(true).create(true).truncate(true).open(name).unwrap();
            file.write_all(fresh.next()).unwrap();
            file
        })
        .collect();
    Done { amount: files.len() as f64, unit: "files", inodes: FILES as u64 }
}

/// Fills a directory and lists it with all attributes.
pub fn large_directory(site: &Site, scale: Scale) -> Done {
    let entries = scale.pick(20_000, 1_000_000);
    let directory = site.mnt.join("large");
    fs::create_dir(&directory).unwrap();
    for number in 0..entries {
        File::create(directory.join(format!("entry {number}"))).unwrap();
        if number % 50_000 == 0 {
            site.note_progress();
        }
    }
    let seen = fs::read_dir(&directory).unwrap().filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file());
    assert_eq!(seen.count(), entries);
    Done { amount: entries as f64, unit: "entries", inodes: entries as u64 }
}

/// Runs 16 threads that each write to all pages of a mapping in their own order.
pub fn write_pages(site: &Site, scale: Scale) -> Done {
    const SCRIPT: &str = "
import mmap, os, random, sys, threading
path, size = sys.argv[1], int(sys.argv[2])
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, size)
mapping = mmap.mmap(file, size)
def write(thread):
    pages = list(range(size // 4096))
    random.Random(thread).shuffle(pages)
    for page in pages:
        at = page * 4096 + thread * 8
        mapping[at:at + 8] = (page * 16 + thread).to_bytes(8, 'little')
threads = [threading.Thread(target=write, args=(thread,)) for thread in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
mapping.flush()
mapping.close()
os.close(file)
for page, data in enumerate(iter(lambda f=open(path, 'rb'): f.read(4096), b'')):
    for thread in range(16):
        assert data[thread * 8:thread * 8 + 8] == (page * 16 + thread).to_bytes(8, 'little'), page
";
    let size_bytes = scale.pick(48 << 20, 512 << 20);
    Tool::new("python3").args(["-c", SCRIPT]).arg(site.mnt.join("mapped")).arg(size_bytes.to_string()).ok();
    Done { amount: mib(size_bytes), unit: "MiB", inodes: 1 }
}

/// Puts a tree into the pool and gets it out again, past the kernel.
pub fn put_and_get(site: &Site, scale: Scale) -> Done {
    let (files, file_bytes) = scale.pick((2000, 64 << 10), (4000, 1 << 20));
    let (tree, back) = (site.base.join("tree"), site.base.join("back"));
    fs::create_dir(&tree).unwrap();
    let mut fresh = Fresh::new(file_bytes);
    for number in 0..files {
        fs::write(tree.join(format!("file {number}")), fresh.next()).unwrap();
    }
    Tool::new(DEDUPFS).arg("put").arg(&tree).arg(site.mnt.join("tree")).ok();
    Tool::new(DEDUPFS).arg("get").arg(site.mnt.join("tree")).arg(&back).ok();
    Tool::new("diff").arg("-r").args([&tree, &back]).ok();
    Done { amount: 2.0 * mib(files * file_bytes), unit: "MiB", inodes: files as u64 }
}

/// Puts a tree of small files again and again, of which one in each directory changes.
pub fn put_versions(site: &Site, scale: Scale) -> Done {
    let (directories, versions) = scale.pick((400, 5), (2000, 40));
    let source = site.base.join("source");
    let write = |directory: usize, file: usize, text: &str| {
        fs::write(source.join(format!("d{directory}/f{file}")), text).unwrap();
    };
    for directory in 0..directories {
        fs::create_dir_all(source.join(format!("d{directory}"))).unwrap();
        (0..100).for_each(|file| write(directory, file, &format!("{directory} {file}")));
    }
    for version in 0..versions {
        (0..directories).for_each(|directory| write(directory, version * 7 % 100, &format!("{directory} {version}")));
        Tool::new(DEDUPFS).arg("put").arg(&source).arg(site.mnt.join(format!("v{version}"))).ok();
        site.note_progress();
    }
    let entries = directories * 100 * versions;
    Done { amount: entries as f64, unit: "entries", inodes: 0 }
}

/// Fills a pool with many chunks of the usual size, some 8 KiB each.
pub fn make_chunks(site: &Site, scale: Scale) {
    let mut fresh = Fresh::new(1 << 20);
    let mut file = File::create(site.mnt.join("chunks")).unwrap();
    for number in 0..scale.pick(400, 8200) {
        file.write_all(fresh.next()).unwrap();
        if number % 500 == 0 {
            site.note_progress();
        }
    }
}
