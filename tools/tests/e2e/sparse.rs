//! Holes, lengths that no disk has, durable writes, and the effect of a change of content on a file's mode.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::command::Tool;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

const TIB: u64 = 1 << 40;

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Returns the offsets at which data begins and ends, in turn.
fn map(file: &File) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(data) => found.push(data),
            Err(error) => {
                assert_eq!(error, Errno::NXIO);
                return found;
            }
        }
        at = seek(file, SeekFrom::Hole(*found.last().unwrap())).unwrap();
        found.push(at);
        if at == file.metadata().unwrap().len() {
            return found;
        }
    }
}

/// Rounds ranges of known data to blocks: a block with a byte of data is data.
fn in_blocks(ends: &[u64], size_bytes: u64) -> Vec<u64> {
    const BLOCK_BYTES: u64 = 4096;
    let (down, up) = (|at: u64| at - at % BLOCK_BYTES, |at: u64| at.next_multiple_of(BLOCK_BYTES).min(size_bytes));
    ends.chunks(2).flat_map(|range| [down(range[0]), up(range[1])]).collect()
}

#[test]
fn holes_are_where_they_were_made() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let file = read_write(&path);
    file.write_all_at(&noise(41, 4_000_001), 0).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 100_001, 1_000_000).unwrap();
    let mut expected = vec![0, 100_001, 1_100_001, 4_000_001];
    assert_eq!(map(&file), in_blocks(&expected, 4_000_001), "before anything is flushed");
    file.write_all_at(b"behind a gap", 10_000_123).unwrap();
    expected.extend([10_000_123, 10_000_135]);
    assert_eq!(map(&file), in_blocks(&expected, 10_000_135));
    file.set_len(12_000_000).unwrap();
    // Into a hole, unaligned.
    file.write_all_at(&noise(42, 5_000), 700_007).unwrap();
    expected.splice(2..2, [700_007, 705_007]);
    assert_eq!(map(&file), in_blocks(&expected, 12_000_000));
    // A second hole beside the first, and one that covers an existing hole.
    fallocate(&file, FallocateFlags::ZERO_RANGE, 1_100_001, 200_000).unwrap();
    expected[4] = 1_300_001;
    fallocate(&file, FallocateFlags::ZERO_RANGE, 3_900_001, 6_100_122).unwrap();
    expected[5] = 3_900_001;
    let expected = in_blocks(&expected, 12_000_000);
    assert_eq!(map(&file), expected);
    drop(file);
    site.remount();
    assert_eq!(map(&File::open(&path).unwrap()), expected, "mounted again");
    assert_eq!(fs::metadata(&path).unwrap().len(), 12_000_000);
    site.umount();
    site.assert_clean();
}

#[test]
fn files_may_be_longer_than_any_disk() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let file = read_write(&path);
    file.write_all_at(b"at: 16 TiB", 16 * TIB - 3).unwrap();
    file.write_all_at(b"at 1 PiB", 1 << 50).unwrap();
    file.set_len(1 << 60).unwrap();
    assert_eq!(file.set_len((1 << 60) + 1).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(file.write_at(b"x", 1 << 60).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(file.write_at(b"x", i64::MAX as u64 - 1).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    let allocate = |mode, offset, len| fallocate(&file, mode, offset, len);
    assert_eq!(allocate(FallocateFlags::ZERO_RANGE, 1 << 60, 1), Err(Errno::FBIG));
    assert_eq!(allocate(FallocateFlags::empty(), 1 << 62, 4096), Err(Errno::FBIG));
    assert_eq!(allocate(FallocateFlags::empty(), 1 << 50, 1 << 58), Err(Errno::NOSPC), "no disk has so much");
    allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, TIB, 15 * TIB).unwrap();
    let check = |file: &File| {
        assert_eq!(file.metadata().unwrap().len(), 1 << 60);
        assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
        // The punched range ends in the middle of a write.
        assert_eq!(map(file), in_blocks(&[16 * TIB, 16 * TIB + 7, 1 << 50, (1 << 50) + 8], 1 << 60));
        let mut found = [1; 11];
        file.read_exact_at(&mut found, 16 * TIB - 4).unwrap();
        assert_eq!(&found, b"\0\0\0\0 16 TiB");
    };
    check(&file);
    drop(file);
    site.remount();
    check(&File::open(&path).unwrap());
    let copy = site.mnt.join("copy");
    Tool::new("cp").args([&path, &copy]).ok();
    check(&File::open(&copy).unwrap());
    site.umount();
    site.assert_clean();
}

#[test]
fn what_was_written_synchronously_survives_a_killed_daemon() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let mut expected = noise(43, 3_000_000);
    for (number, flags) in [libc::O_SYNC, libc::O_DSYNC, libc::O_DSYNC | libc::O_APPEND].into_iter().enumerate() {
        let path = site.mnt.join(format!("file {number}"));
        let file = File::options().read(true).write(true).create(true).truncate(true).custom_flags(flags).open(&path);
        let file = file.unwrap();
        file.write_all_at(&expected, 0).unwrap();
        if flags & libc::O_APPEND == 0 {
            file.write_all_at(b"written over", 1_000_000).unwrap();
        }
        site.kill_daemon();
        drop(file);
        site.mount();
        if flags & libc::O_APPEND == 0 {
            expected[1_000_000..1_000_012].copy_from_slice(b"written over");
        }
        assert!(fs::read(&path).unwrap() == expected, "with flags {flags:o}");
    }
    site.umount();
    site.assert_clean();
}

#[test]
fn changes_by_another_user_drop_setuid_and_setgid() {
    if !is_fit() {
        return;
    }
    let site = Site::mounted_for_all();
    let path = site.mnt.join("file");
    let changes = [
        ("os.pwrite(f,b'x',0)", "os.O_RDWR"),
        ("os.pwrite(f,b'x',0)", "os.O_WRONLY"),
        ("os.pwrite(f,b'x',0)", "os.O_WRONLY|os.O_DIRECT"),
        ("os.ftruncate(f,5)", "os.O_RDWR"),
        ("os.ftruncate(f,500000)", "os.O_WRONLY"),
        ("os.posix_fallocate(f,0,700000)", "os.O_RDWR"),
        ("c.fallocate64(f,3,0,4096)", "os.O_RDWR"),
        ("c.fallocate64(f,16,0,4096)", "os.O_RDWR"),
    ];
    for (change, how) in changes {
        fs::write(&path, noise(44, 100_000)).unwrap();
        for (user, left) in [(0, 0o6777), (1234, 0o777)] {
            Tool::new("chmod").arg("6777").arg(&path).ok();
            let script = format!(
                "import ctypes,mmap,os,sys\nc=ctypes.CDLL(None,use_errno=True)\n\
                c.fallocate64.argtypes=[ctypes.c_int,ctypes.c_int,ctypes.c_int64,ctypes.c_int64]\n\
                f=os.open(sys.argv[1],{how})\nif {user}: os.setgid({user}); os.setuid({user})\n\
                r={change}\nassert r in (None,0,1),(r,ctypes.get_errno())"
            );
            let script = match change.starts_with("os.pwrite") && how.contains("DIRECT") {
                // Direct writes need aligned memory.
                true => script.replace("b'x'", "mmap.mmap(-1,4096)").replace("(None,0,1)", "(4096,)"),
                false => script,
            };
            Tool::new("python3").args(["-c", &script]).arg(&path).ok();
            let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(mode, left, "{mode:o} instead of {left:o} after {change} with {how} by user {user}");
        }
    }
    site.umount();
    site.assert_clean();
}
