//! Files of a version, read in every way that a program may read, have the bytes of their source.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{series, snapshot};
use crate::command::{DEDUPFS, Tool};
use crate::files::{Plan, walk};
use crate::random::{Random, noise};
use crate::site::Site;

const BLOCK_BYTES: usize = 4096;

/// Bytes at a boundary that O_DIRECT asks for.
#[repr(align(4096))]
struct Aligned([u8; 16 * BLOCK_BYTES]);

fn read_at_random(file: &File, content: &[u8], random: &mut Random) {
    for _ in 0..20 {
        let offset = random.below(content.len() as u64 + 10) as usize;
        let mut bytes = vec![0; random.below(200_000) as usize];
        let read = file.read_at(&mut bytes, offset as u64).unwrap();
        let expected = &content[offset.min(content.len())..(offset + bytes.len()).min(content.len())];
        // The end of a request may be cut, its begin not.
        assert!(read > 0 || expected.is_empty() || bytes.is_empty());
        assert!(bytes[..read] == expected[..read], "at {offset}");
    }
}

fn read_directly(path: &Path, content: &[u8], random: &mut Random) {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut buffer = Box::new(Aligned([0; 16 * BLOCK_BYTES]));
    let blocks = content.len().div_ceil(BLOCK_BYTES) as u64;
    for _ in 0..10 {
        let offset = random.below(blocks + 1) as usize * BLOCK_BYTES;
        let read = file.read_at(&mut buffer.0, offset as u64).unwrap();
        let expected = &content[offset.min(content.len())..(offset + buffer.0.len()).min(content.len())];
        assert!(buffer.0[..read] == *expected, "directly at {offset}");
    }
}

fn read_mapped(file: &File, content: &[u8]) {
    if content.is_empty() {
        return;
    }
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), content.len(), libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        // SAFETY: the mapping has so many bytes, and files of versions are never cut.
        let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), content.len()) };
        // From behind: no read-ahead helps.
        assert!(bytes.rchunks(10_000).eq(content.rchunks(10_000)), "mapped");
        // SAFETY: nothing uses the mapping any more.
        assert_eq!(unsafe { libc::munmap(mapped, content.len()) }, 0);
    }
}

fn read_by_sendfile(file: &File, content: &[u8]) {
    let mut target = tempfile::tempfile().unwrap();
    let mut offset = 0;
    while rustix::fs::sendfile(&target, file, Some(&mut offset), 1 << 20).unwrap() > 0 {}
    target.rewind().unwrap();
    let mut sent = Vec::new();
    target.read_to_end(&mut sent).unwrap();
    assert!(sent == content, "by sendfile");
}

/// Holes must be zeros, all data must be found, and the search must end.
fn read_by_seeking(file: &File, content: &[u8]) {
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => content.len() as u64,
            found => found.unwrap(),
        };
        assert!(data >= at && content[at as usize..data as usize].iter().all(|&byte| byte == 0), "data in a hole");
        if data == content.len() as u64 {
            return;
        }
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap();
        assert!(at > data && at <= content.len() as u64);
    }
}

#[test]
fn files_of_a_version_are_those_of_the_source_however_they_are_read() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let source = site.base.join("source");
    Plan::new(81, 60, 400_000).make(&source);
    fs::write(source.join("large"), noise(82, 20_000_123)).unwrap();
    fs::write(source.join("empty"), "").unwrap();
    let sparse = File::create(source.join("sparse")).unwrap();
    for (number, offset) in [0_u64, 1 << 20, 5_000_001, 30 << 20].into_iter().enumerate() {
        sparse.write_all_at(&noise(number as u64, 70_000), offset).unwrap();
    }
    sparse.set_len(40 << 20).unwrap();
    drop(sparse);
    Tool::new(DEDUPFS).arg("put").args([&source, &series.join("put")]).run().expect(0, &[]);
    Tool::new("cp").args(["-a", "--sparse=always"]).arg(source.join(".")).arg(&live).ok();
    snapshot(&live, &series.join("snapshot")).expect(0, &[]);
    let mut random = Random::new(83);
    for round in 0..2 {
        for version in ["put", "snapshot"].map(|name| series.join(name)) {
            let files = walk(&source);
            assert_eq!(files, walk(&version));
            for name in files {
                let (content, path) = (fs::read(source.join(&name)).unwrap(), version.join(&name));
                let file = File::open(&path).unwrap();
                let mut ways: [&mut dyn FnMut(); 5] = [
                    &mut || read_mapped(&file, &content),
                    &mut || read_directly(&path, &content, &mut Random::new(round)),
                    &mut || read_at_random(&file, &content, &mut random),
                    &mut || read_by_sendfile(&file, &content),
                    &mut || read_by_seeking(&file, &content),
                ];
                // Each way is sometimes the first, which finds nothing cached.
                let first = name.as_os_str().len() % ways.len();
                ways.rotate_left(first);
                ways.iter_mut().for_each(|read| read());
                assert!(fs::read(&path).unwrap() == content, "{}", name.display());
            }
        }
        site.remount();
    }
    site.umount();
    site.assert_clean();
}
