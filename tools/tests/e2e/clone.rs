//! Copies inside the mount share content: nothing is read, and they take no time.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::command::Tool;
use crate::compare::assert_same_file;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

const LARGE_BYTES: usize = 192 << 20;

#[test]
fn cp_inside_the_mount_reads_no_content() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let outside = site.base.join("outside");
    fs::write(&outside, noise(31, LARGE_BYTES)).unwrap();
    let (source, copy) = (site.mnt.join("source"), site.mnt.join("copy"));
    Tool::new("cp").args([&outside, &source]).ok();
    site.remount();
    let before = site.stats();
    Tool::new("cp").arg("--reflink=auto").args([&source, &copy]).ok();
    let after = site.stats();
    let read_bytes = after.data_containers.read_bytes - before.data_containers.read_bytes;
    assert!(read_bytes < 1 << 20, "cp read {read_bytes} bytes of content");
    assert_eq!(after.session.bytes_in, before.session.bytes_in, "cp wrote content");
    assert_eq!(after.recipe_nodes, before.recipe_nodes, "the copy has a recipe of its own");
    assert_eq!(after.data_bytes, 2 * LARGE_BYTES as u64);
    // The copy is independent of its source.
    fs::remove_file(&source).unwrap();
    site.gc();
    assert_same_file(&outside, &copy);
    site.remount();
    site.gc();
    assert_same_file(&outside, &copy);
    let file = File::options().read(true).write(true).open(&copy).unwrap();
    file.write_all_at(b"changed", 100_000_000).unwrap();
    File::options().write(true).open(&outside).unwrap().write_all_at(b"changed", 100_000_000).unwrap();
    drop(file);
    assert_same_file(&outside, &copy);
    site.umount();
    site.assert_clean();
}

#[test]
fn a_tree_of_small_files_is_copied_without_storing_anything() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.mnt.join("source");
    let bytes = crate::files::Plan::new(32, 400, 60_000).make(&source);
    site.remount();
    let before = site.stats();
    Tool::new("cp").arg("-a").args([&source, &site.mnt.join("copy")]).ok();
    let after = site.stats();
    assert_eq!(after.session.chunks_stored, before.session.chunks_stored);
    assert_eq!((before.data_bytes, after.data_bytes), (bytes, 2 * bytes));
    crate::compare::assert_same_tree(&source, &site.mnt.join("copy"));
    Tool::new("rm").arg("-r").arg(&source).ok();
    site.gc();
    site.remount();
    let kept = site.stats();
    assert_eq!(kept.data_bytes, bytes);
    site.umount();
    site.assert_clean();
}

/// O_SYNC and `-o sync` apply to every change of a file, not only to write(2).
#[test]
fn regression_what_was_cloned_synchronously_survives_a_killed_daemon() {
    const MIB: usize = 1 << 20;
    type Change = fn(&File, &File);
    type Expect<'a> = &'a dyn Fn(&mut Vec<u8>);
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, target) = (site.mnt.join("source"), site.mnt.join("target"));
    let content = noise(36, 3 * MIB);
    let mut expected = noise(37, 5 * MIB);
    fs::write(&source, &content).unwrap();
    fs::write(&target, &expected).unwrap();
    site.sync();
    let changes: [(Change, Expect<'_>); 3] = [
        // By sharing, by copying, and by making a hole.
        (
            |from, to| assert_eq!(copy_file_range(from, None, to, Some(&mut (MIB as u64)), 3 * MIB), Ok(3 * MIB)),
            &|bytes| bytes[MIB..4 * MIB].copy_from_slice(&content),
        ),
        (|from, to| assert_eq!(copy_file_range(from, None, to, Some(&mut 7), 5000), Ok(5000)), &|bytes| {
            bytes[7..5007].copy_from_slice(&content[..5000])
        }),
        (
            |_, to| fallocate(to, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 100, 2 * MIB as u64).unwrap(),
            &|bytes| bytes[100..100 + 2 * MIB].fill(0),
        ),
    ];
    for (flags, options) in [(libc::O_SYNC, "rw"), (libc::O_DSYNC, "rw"), (0, "sync")] {
        site.umount();
        site.mount_with(options);
        for (number, (change, expect)) in changes.iter().enumerate() {
            let from = File::open(&source).unwrap();
            let to = File::options().write(true).custom_flags(flags).open(&target).unwrap();
            change(&from, &to);
            expect(&mut expected);
            site.kill_daemon();
            drop((from, to));
            site.mount_with(options);
            assert!(fs::read(&target).unwrap() == expected, "change {number} with flags {flags:o}, mounted {options}");
        }
        // Content that differs from the state before.
        expected = noise(38, 5 * MIB);
        fs::write(&target, &expected).unwrap();
        site.sync();
    }
    site.umount();
    site.assert_clean();
}

#[test]
fn a_copied_range_drops_privileges_as_a_write_does() {
    if !is_fit() {
        return;
    }
    let site = Site::mounted_for_all();
    let (source, target) = (site.mnt.join("source"), site.mnt.join("target"));
    fs::write(&source, noise(33, 3 << 20)).unwrap();
    let script = "cd \"$0\" && chmod 777 . && printf x > target && chmod 6777 target";
    Tool::new("sh").args(["-c", script]).arg(&site.mnt).ok();
    // Another user than root, with both files open already.
    let user = "import os,sys\n\
        s=os.open(sys.argv[1],os.O_RDONLY); t=os.open(sys.argv[2],os.O_RDWR)\n\
        os.setgid(1234); os.setuid(1234)\n\
        assert os.copy_file_range(s,t,3<<20)==3<<20";
    Tool::new("python3").args(["-c", user]).args([&source, &target]).ok();
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o777);
    assert_same_file(&source, &target);
    site.umount();
    site.assert_clean();
}

#[test]
fn a_copy_behind_the_end_or_of_nothing_changes_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, target) = (site.mnt.join("source"), site.mnt.join("target"));
    fs::write(&source, noise(34, 2 << 20)).unwrap();
    fs::write(&target, "target").unwrap();
    let read = File::open(&source).unwrap();
    let write = File::options().write(true).open(&target).unwrap();
    let copy = |from: &File, to: &File, mut at: u64, mut onto: u64, len: usize| {
        copy_file_range(from, Some(&mut at), to, Some(&mut onto), len)
    };
    assert_eq!(copy(&read, &write, 2 << 20, 0, 100), Ok(0));
    assert_eq!(copy(&read, &write, 1 << 40, 0, 100), Ok(0));
    let both = File::options().read(true).write(true).open(&source).unwrap();
    assert_eq!(copy(&both, &both, 0, 1 << 20, (1 << 20) + 1), Err(rustix::io::Errno::INVAL));
    let append = File::options().append(true).open(&target).unwrap();
    assert_eq!(copy(&read, &append, 0, 0, 100), Err(rustix::io::Errno::BADF));
    assert_eq!(copy(&write, &both, 0, 0, 100), Err(rustix::io::Errno::BADF));
    assert_eq!(fs::read(&target).unwrap(), b"target");
    assert_eq!(copy(&read, &write, (2 << 20) - 7, 3, 100), Ok(7));
    assert_eq!(fs::metadata(&target).unwrap().len(), 10);
    drop((read, write, both, append));
    site.umount();
    site.assert_clean();
}

/// The kernel passes no reflink on; and the answer to one copy has only 32 bits.
#[test]
fn reflinks_are_refused_and_a_copy_may_be_shorter_than_asked_for() {
    const SIZE_BYTES: u64 = 6 << 30;
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, target) = (site.mnt.join("source"), site.mnt.join("target"));
    let from = File::options().read(true).write(true).create_new(true).open(&source).unwrap();
    from.write_all_at(b"tail", SIZE_BYTES - 4).unwrap();
    let to = File::options().read(true).write(true).create_new(true).open(&target).unwrap();
    assert_eq!(rustix::fs::ioctl_ficlone(&to, &from), Err(rustix::io::Errno::OPNOTSUPP));
    Tool::new("cp").arg("--reflink=always").args([&source, &target]).run().expect(1, &["not supported"]);
    let (mut at, mut onto, mut calls) = (0, 0, 0);
    while at < SIZE_BYTES {
        let copied = copy_file_range(&from, Some(&mut at), &to, Some(&mut onto), 1 << 40).unwrap();
        assert!(copied > 0 && copied <= u32::MAX as usize, "{copied} bytes");
        calls += 1;
    }
    assert!(calls > 1 && at == SIZE_BYTES && onto == SIZE_BYTES);
    let mut tail = [0; 5];
    to.read_exact_at(&mut tail, SIZE_BYTES - 5).unwrap();
    assert_eq!(&tail, b"\0tail");
    drop((from, to));
    site.umount();
    site.assert_clean();
}
