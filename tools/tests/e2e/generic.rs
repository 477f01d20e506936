//! Cases from the test suites of other filesystems, reproduced here; each names its original test.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Dir, FallocateFlags, Mode, OFlags, fallocate, open, statvfs};

use crate::command::Tool;
use crate::disk::Disk;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// generic/451.
#[test]
fn regression_direct_writes_leave_no_stale_pages() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let program = site.base.join("direct_writes");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/direct_writes.c");
    Tool::new("cc").args(["-O1", "-o"]).args([&program, &source]).ok();
    for (how, seconds) in [("aio", "4"), ("sync", "2")] {
        let path = site.mnt.join(how);
        let told = Tool::new(&program).arg(&path).args([how, seconds]).run().expect(0, &["right in the end"]);
        let turns: u64 = told.text().split(' ').next().unwrap().parse().unwrap();
        assert!(turns > 10, "too little was tried: {}", told.text());
    }
    site.umount();
    site.assert_clean();
}

/// Returns names and inodes of the rest of a stream.
fn read_on(stream: &mut Dir, most: usize, mut each: impl FnMut(usize, &str)) -> Vec<(String, u64)> {
    let mut read = Vec::new();
    while let Some(entry) = stream.read() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if name != "." && name != ".." {
            each(read.len(), &name);
            read.push((name, entry.ino()));
            assert!(read.len() <= most, "reading does not end: {} entries", read.len());
        }
    }
    read
}

/// generic/736.
#[test]
fn regression_a_directory_whose_entries_are_renamed_while_it_is_read_ends() {
    const COUNT: usize = 3000;
    let Some(site) = Site::mounted_if_fit() else { return };
    let (directory, other) = (site.mnt.join("directory"), site.mnt.join("other"));
    fs::create_dir(&directory).unwrap();
    fs::create_dir(&other).unwrap();
    for number in 0..COUNT {
        File::create(directory.join(format!("{number}"))).unwrap();
    }
    let opened = || {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Dir::new(open(&directory, how, Mode::empty()).unwrap()).unwrap()
    };
    let inodes = |read: Vec<(String, u64)>| {
        let mut inodes: Vec<u64> = read.into_iter().map(|(_, ino)| ino).collect();
        inodes.sort_unstable();
        inodes
    };
    let all = inodes(read_on(&mut opened(), COUNT, |_, _| ()));
    assert_eq!(all.len(), COUNT);
    // There and back, as the original test does it; to a new name each; to another directory and back.
    let there_and_back = read_on(&mut opened(), COUNT, |_, name| {
        fs::rename(directory.join(name), directory.join("TEMPFILE")).unwrap();
        fs::rename(directory.join("TEMPFILE"), directory.join(name)).unwrap();
    });
    assert_eq!(inodes(there_and_back), all);
    let renamed = read_on(&mut opened(), COUNT, |number, name| {
        fs::rename(directory.join(name), directory.join(format!("renamed {number}"))).unwrap();
    });
    assert_eq!(inodes(renamed), all, "each is met once");
    let moved = read_on(&mut opened(), COUNT, |_, name| {
        fs::rename(directory.join(name), other.join(name)).unwrap();
        fs::rename(other.join(name), directory.join(name)).unwrap();
    });
    assert_eq!(inodes(moved), all);
    // Creates a new file for each entry; a reader that begins anew with the same descriptor sees all of them.
    let mut stream = opened();
    let read =
        read_on(&mut stream, COUNT, |number, _| drop(File::create(directory.join(format!("new {number}"))).unwrap()));
    assert_eq!(inodes(read), all);
    stream.rewind();
    assert_eq!(read_on(&mut stream, 2 * COUNT, |_, _| ()).len(), 2 * COUNT);
    drop(stream);
    site.umount();
    site.assert_clean();
}

/// generic/103.
#[test]
fn regression_what_statfs_calls_available_can_be_allocated() {
    if !is_fit() {
        return;
    }
    let disk = Disk::new(256 << 20);
    let on_one_disk = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    let on_two = Site::with(|base| (base.join("pool"), disk.mountpoint.join("data")));
    for site in [on_one_disk, on_two] {
        site.mount();
        let path = site.mnt.join("file");
        for is_full in [false, true] {
            let file = File::create(&path).unwrap();
            // Content on its way takes room while it becomes durable.
            file.sync_all().unwrap();
            let space = statvfs(&site.mnt).unwrap();
            let available_bytes = space.f_bavail * space.f_frsize;
            assert!(available_bytes > 20 << 20, "{available_bytes}");
            let allocate = |file: &File, len| fallocate(file, FallocateFlags::empty(), 0, len);
            allocate(&file, available_bytes - (512 << 10)).unwrap();
            drop(file);
            fs::remove_file(&path).unwrap();
            let file = File::create(&path).unwrap();
            let all_bytes = space.f_blocks * space.f_frsize;
            assert_eq!(allocate(&file, all_bytes + (8 << 20)), Err(rustix::io::Errno::NOSPC));
            drop(file);
            fs::remove_file(&path).unwrap();
            if !is_full {
                // The same beside much new content.
                fs::write(site.mnt.join("new"), noise(103, 60 << 20)).unwrap();
            }
        }
        site.umount();
        site.assert_clean();
        fs::remove_dir_all(&site.data).unwrap();
    }
}

/// generic/346: many processes and threads each write their own eight bytes of every page of a shared mapping.
#[test]
fn mapped_writers_of_the_same_pages_see_no_wrong_bytes() {
    const WRITER: &str = "
import mmap, os, random, sys, threading
path, pages, writers, seed = sys.argv[1], *map(int, sys.argv[2:])
file = os.open(path, os.O_RDWR)
def write(writer, mapped):
    order = list(range(pages))
    random.Random(seed * 100 + writer).shuffle(order)
    for page in order:
        at = page * 4096 + writer * 8
        mapped[at:at + 8] = (page * writers + writer + seed).to_bytes(8, 'little')
        if page % 64 == 0:
            for earlier in order[:order.index(page)][-64:]:
                at = earlier * 4096 + writer * 8
                assert int.from_bytes(mapped[at:at + 8], 'little') == earlier * writers + writer + seed, (earlier, writer)
def process(first, last):
    mapped = mmap.mmap(file, pages * 4096)
    threads = [threading.Thread(target=write, args=(writer, mapped)) for writer in range(first, last)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
children = []
for first in range(0, writers, 4):
    child = os.fork()
    if child == 0:
        process(first, first + 4)
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
def check(content):
    for page in range(pages):
        for writer in range(writers):
            at = page * 4096 + writer * 8
            assert int.from_bytes(content[at:at + 8], 'little') == page * writers + writer + seed, (page, writer)
        assert not any(content[page * 4096 + writers * 8:page * 4096 + 4096]), page
check(mmap.mmap(file, pages * 4096))
check(os.pread(file, pages * 4096, 0))
os.fsync(file)
check(open(path, 'rb').read())
";
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    const PAGES: u64 = 2048;
    // First over a hole, then over content.
    File::create(&path).unwrap().set_len(PAGES * 4096).unwrap();
    for seed in ["1", "2"] {
        let arguments = [PAGES.to_string(), "16".into(), seed.into()];
        Tool::new("python3").args(["-c", WRITER]).arg(&path).args(&arguments).ok();
    }
    let before = fs::read(&path).unwrap();
    site.remount();
    assert!(fs::read(&path).unwrap() == before);
    site.umount();
    site.assert_clean();
}

/// Shows the results of setting and removing access lists, on files and directories, with and without a list.
const ACCESS_LISTS: &str = "
import errno, os, struct, sys
os.chdir(sys.argv[1])
os.mkdir('directory', 0o755)
open('file', 'w').close()
os.symlink('file', 'link')
lists = {'access': b'system.posix_acl_access', 'default': b'system.posix_acl_default'}
empty = struct.pack('<I', 2)
full = empty + b''.join(struct.pack('<HHI', *entry) for entry in
    [(1, 7, 0xffffffff), (2, 7, 1000), (4, 5, 0xffffffff), (16, 7, 0xffffffff), (32, 0, 0xffffffff)])
def tell(what, call):
    try: call(); said = 'done'
    except OSError as error: said = errno.errorcode[error.errno]
    print(what, said)
for path in 'file', 'directory', 'link':
    for name, xattr in lists.items():
        for before in None, full:
            for what, value in ('remove', None), ('empty', empty), ('no bytes', b''):
                for flags in (0,) if value is None else (0, os.XATTR_CREATE, os.XATTR_REPLACE):
                    follow = path != 'link'
                    if before: tell('set', lambda: os.setxattr(path, xattr, before, 0, follow_symlinks=follow))
                    if value is None: call = lambda: os.removexattr(path, xattr, follow_symlinks=follow)
                    else: call = lambda: os.setxattr(path, xattr, value, flags, follow_symlinks=follow)
                    tell((path, name, before and 'full', what, flags), call)
                    tell('again', call)
                    tell('get', lambda: os.getxattr(path, xattr, follow_symlinks=follow))
                    print(oct(os.stat(path).st_mode))
";

#[test]
fn regression_access_lists_that_are_not_there_are_removed_as_on_ext4() {
    if !is_fit() {
        return;
    }
    let (disk, site) = (Disk::new(16 << 20), Site::mounted());
    let said = |place: &Path| Tool::new("python3").args(["-c", ACCESS_LISTS]).arg(place).ok().text();
    let expected = said(&disk.mountpoint);
    assert!(expected.lines().count() > 100, "{expected}");
    let found = said(&site.mnt);
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, expected);
    site.umount();
    site.assert_clean();
}

/// generic/683 to 685, with the remaining difference described in `docs/semantics.md`.
#[test]
fn setgid_without_execution_by_the_group_stays_when_another_user_allocates() {
    const ALLOCATE: &str = "
import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
c.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
file = os.open(sys.argv[1], os.O_RDWR)
os.setgroups([]); os.setgid(1234); os.setuid(1234)
assert c.fallocate64(file, int(sys.argv[2]), 0, 65536) == 0, ctypes.get_errno()
";
    if !is_fit() {
        return;
    }
    let (disk, site) = (Disk::new(16 << 20), Site::mounted_for_all());
    // The mode bits: executable by the group, and not.
    for (place, expected) in [(&disk.mountpoint, [0o676, 0o666]), (&site.mnt, [0o676, 0o2666])] {
        let path = place.join("file");
        for how in ["0", "3"] {
            for (before, left) in [0o6676, 0o6666].into_iter().zip(expected) {
                fs::write(&path, noise(683, 100_000)).unwrap();
                Tool::new("chmod").arg(format!("{before:o}")).arg(&path).ok();
                Tool::new("python3").args(["-c", ALLOCATE]).arg(&path).arg(how).ok();
                let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
                assert_eq!(mode, left, "{mode:o} of {}", path.display());
            }
        }
    }
    site.umount();
    site.assert_clean();
}

/// generic/732.
#[test]
fn a_pool_is_mounted_once_and_shown_elsewhere_by_bind_mounts() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let second = site.base.join("second");
    fs::create_dir(&second).unwrap();
    let arguments: [OsString; 3] = ["mount".into(), site.pool.clone().into(), second.clone().into()];
    Tool::new(crate::command::DEDUPFS).args(arguments).run().expect(4, &[]);
    Tool::new("mount").arg("--bind").args([&site.mnt, &second]).ok();
    fs::write(site.mnt.join("file"), "through one").unwrap();
    let shown = fs::read_to_string(second.join("file"));
    fs::write(second.join("file"), "through the other").unwrap_or_default();
    Tool::new("umount").arg("-i").arg(&second).ok();
    assert_eq!(shown.unwrap(), "through one");
    assert_eq!(fs::read_to_string(site.mnt.join("file")).unwrap(), "through the other");
    site.umount();
    site.assert_clean();
}
