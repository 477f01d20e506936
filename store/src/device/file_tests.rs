#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::aligned::AlignedBuffer;
use super::*;
use crate::waiting::testing::announcements;

fn device() -> (tempfile::TempDir, FileDevice) {
    let root = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&root.path().join("parent/pool")).unwrap();
    (root, device)
}

fn aligned(len_bytes: usize, seed: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::with_capacity(len_bytes);
    let bytes: Vec<u8> = (0..len_bytes).map(|position| (position / 7) as u8 ^ seed).collect();
    buffer.extend_from_slice(&bytes);
    buffer
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_created_is_private() {
    let (_root, device) = device();
    device.create_directory("index/chunks").unwrap();
    device.open("index/chunks/a", OpenMode::CreateNew).unwrap();
    assert_eq!(mode_of(&device.root), 0o700);
    assert_eq!(mode_of(&device.root.join("index")), 0o700);
    assert_eq!(mode_of(&device.root.join("index/chunks")), 0o700);
    assert_eq!(mode_of(&device.root.join("index/chunks/a")), 0o600);
}

#[test]
fn a_root_must_be_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let missing = FileDevice::open(&root.path().join("no"));
    assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");
    std::fs::write(root.path().join("file"), b"").unwrap();
    assert!(matches!(FileDevice::open(&root.path().join("file")), Err(StoreError::Io { .. })));
    assert!(matches!(FileDevice::create(&root.path().join("file")), Err(StoreError::Io { .. })));
    assert!(FileDevice::create(root.path()).is_ok());
}

/// Mixed direct and buffered writes of one file read back coherently, also after the file was renamed.
#[test]
fn direct_and_buffered_writes_agree() {
    let (_root, device) = device();
    let file = device.open("slots", OpenMode::CreateNew).unwrap();
    let mut model = vec![0; 1 << 20];
    let mut write = |offset: usize, bytes: &[u8]| {
        file.write_at(bytes, offset as u64).unwrap();
        model[offset..offset + bytes.len()].copy_from_slice(bytes);
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, offset as u64).unwrap();
        assert!(found == bytes, "at {offset}");
    };
    write(0, &aligned(256 << 10, 1));
    write(100, b"buffered over direct");
    write(0, &aligned(64 << 10, 2));
    write(300_001, &aligned(128 << 10, 3)); // aligned address, not offset
    write(512 << 10, &aligned((64 << 10) + 1, 4)); // not length
    write(256 << 10, &aligned(128 << 10, 5)[1..]); // not address
    device.rename("slots", "renamed").unwrap();
    device.open("slots", OpenMode::CreateNew).unwrap();
    write((1 << 20) - (128 << 10), &aligned(128 << 10, 6));
    file.sync().unwrap();
    drop(file);
    assert!(device.read_file("renamed", 1 << 20).unwrap() == model);
    assert_eq!(device.read_file("slots", 0).unwrap(), b"");
}

#[test]
fn direct_descriptors_open_late_and_follow_renames() {
    let (_root, device) = device();
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    device.rename("a", "b").unwrap();
    file.write_at(&aligned(DIRECT_BYTES_MIN, 9), 0).unwrap();
    assert!(!device.exists("a").unwrap());
    assert!(device.read_file("b", 1 << 20).unwrap() == *aligned(DIRECT_BYTES_MIN, 9));
}

/// Number of descriptors that this process has of a file.
fn descriptors_of(path: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path)).count()
}

/// Direct reads see every write, direct or buffered, even while it is only in the page cache; up to the end of the file
/// and beyond.
#[test]
fn direct_reads_see_what_was_written() {
    let (_root, device) = device();
    let path = device.root.join("slots");
    let len_bytes = (1 << 20) + 100;
    let mut model = aligned(len_bytes, 1).to_vec();
    let file = device.open("slots", OpenMode::CreateNew).unwrap();
    file.write_at(&model, 0).unwrap();
    file.write_at(&aligned(128 << 10, 2), 256 << 10).unwrap();
    model[256 << 10..384 << 10].copy_from_slice(&aligned(128 << 10, 2));
    file.write_at(b"behind a direct write", 300_000).unwrap();
    model[300_000..300_021].copy_from_slice(b"behind a direct write");
    drop(file);
    let only_read = device.open("slots", OpenMode::Read).unwrap();
    let mut buffer = aligned(len_bytes.next_multiple_of(DIRECT_ALIGNMENT_BYTES) + (64 << 10), 7);
    let mut read = |offset: usize, len: usize| {
        let found = only_read.read_at(&mut buffer[..len], offset as u64).unwrap();
        assert_eq!(found, len.min(len_bytes.saturating_sub(offset)), "at {offset}");
        assert!(buffer[..found] == model[offset..offset + found], "at {offset}");
    };
    read(0, DIRECT_BYTES_MIN - DIRECT_ALIGNMENT_BYTES);
    read(4096, DIRECT_BYTES_MIN + 1);
    assert_eq!(descriptors_of(&path), 1, "these are not worth a descriptor");
    read(0, 1 << 20);
    read(256 << 10, 128 << 10);
    let has_direct = !device.refusals.direct.load(Ordering::Relaxed);
    assert_eq!(descriptors_of(&path), 1 + usize::from(has_direct));
    read((1 << 20) - (64 << 10), 128 << 10);
    read(1 << 20, 64 << 10);
}

#[test]
fn a_refusal_of_direct_io_is_remembered_by_the_device() {
    let (_root, device) = device();
    device.refusals.direct.store(true, Ordering::Relaxed);
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(&aligned(1 << 20, 9), 0).unwrap();
    let mut found = aligned(1 << 20, 0);
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(*found == *aligned(1 << 20, 9));
    assert_eq!(descriptors_of(&device.root.join("a")), 1);
}

#[test]
fn punching_reads_as_zeros_and_gives_space_back() {
    let (_root, device) = device();
    let file = device.open("slots", OpenMode::CreateNew).unwrap();
    file.write_at(&aligned(1 << 20, 1), 0).unwrap();
    file.sync().unwrap();
    let before = file.allocated_bytes().unwrap();
    file.punch(0, 512 << 10).unwrap();
    file.punch(0, 0).unwrap();
    file.punch(10 << 20, 4096).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    if device.refusals.punch.load(Ordering::Relaxed) {
        return; // a filesystem without holes under the temporary directory
    }
    let mut found = vec![1; 512 << 10];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|&byte| byte == 0));
    assert!(file.allocated_bytes().unwrap() < before);
}

#[test]
fn reads_are_short_only_at_the_end() {
    let (_root, device) = device();
    let file = device.open("a", OpenMode::CreateOrWrite).unwrap();
    file.write_at(b"0123456789", 0).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(file.read_at(&mut buffer, 8).unwrap(), 2);
    assert_eq!(file.read_at(&mut buffer, 11).unwrap(), 0);
    assert!(matches!(file.read_exact_at(&mut buffer, 8), Err(StoreError::Corrupt { .. })));
    assert!(matches!(file.read_at(&mut buffer, u64::MAX), Err(StoreError::Usage(_))));
    assert!(matches!(device.read_file("a", 9), Err(StoreError::Corrupt { .. })));
}

#[test]
fn replace_file_leaves_only_the_new_content() {
    let (_root, device) = device();
    device.create_directory("index").unwrap();
    device.replace_file("index", "manifest", b"a longer first version").unwrap();
    device.replace_file("index", "manifest", b"second").unwrap();
    assert_eq!(device.read_file("index/manifest", 100).unwrap(), b"second");
    assert_eq!(device.list("index").unwrap().len(), 1);
}

#[test]
fn space_is_told_in_bytes() {
    let (_root, device) = device();
    let space = device.space().unwrap();
    assert!(space.total_bytes > 1 << 20 && space.available_bytes <= space.total_bytes);
}

/// Only a read that waits for the disk lets another thread take over.
#[test]
fn what_is_in_memory_is_read_without_saying_that_it_waits() {
    let (_root, device) = device();
    let file = device.open("file", OpenMode::CreateNew).unwrap();
    assert_eq!(announcements(|| file.write_at(&[7; 10_000], 0).unwrap()), 1);
    assert_eq!(announcements(|| file.sync().unwrap()), 1);
    let mut read = [0; 10_000];
    let on_disk = std::fs::File::open(device.root.join("file")).unwrap();
    let is_told = preadv2(&on_disk, &mut [io::IoSliceMut::new(&mut read)], 0, ReadWriteFlags::NOWAIT).is_ok();
    let expected = u32::from(!is_told);
    assert_eq!(announcements(|| assert_eq!(file.read_at(&mut read, 0).unwrap(), 10_000)), expected);
    assert_eq!(read, [7; 10_000]);
    // Only the disk can answer for bytes beyond the end, and for bytes that are not in memory.
    assert_eq!(announcements(|| assert_eq!(file.read_at(&mut read, 5000).unwrap(), 5000)), 1);
    assert_eq!(announcements(|| assert_eq!(file.read_at(&mut read, 20_000).unwrap(), 0)), 1);
}

/// A disk with many blocks for root alone was "85% full", while df said 60%.
#[test]
fn regression_blocks_for_root_alone_are_no_part_of_the_disk() {
    let (root, device) = device();
    let space = device.space().unwrap();
    let found = rustix::fs::statvfs(root.path()).unwrap();
    let for_root = (found.f_bfree - found.f_bavail) * found.f_frsize;
    assert_eq!(space.total_bytes, found.f_blocks * found.f_frsize - for_root);
    assert!(space.available_bytes <= space.total_bytes);
}

#[test]
fn whether_something_is_there_is_told_or_an_error() {
    let (_root, device) = device();
    device.open("a", OpenMode::CreateNew).unwrap();
    assert!(device.exists("a").unwrap());
    assert!(!device.exists("b").unwrap() && !device.exists("a/b").unwrap());
    assert!(device.exists(&"x".repeat(300)).is_err());
    assert_eq!(device.filesystem_id(), Some(std::os::unix::fs::MetadataExt::dev(&device.root.metadata().unwrap())));
}

#[test]
fn a_directory_that_is_there_is_made_and_one_without_a_place_is_not() {
    let root = tempfile::tempdir().unwrap();
    make_directory(&root.path().join("a"), 0o700).unwrap();
    make_directory(&root.path().join("a"), 0o700).unwrap();
    fs::write(root.path().join("file"), b"").unwrap();
    assert!(make_directory(&root.path().join("file"), 0o700).is_err());
    assert!(make_directory(&root.path().join("missing/b"), 0o700).is_err());
}

/// Only direct transfers that a filesystem does not know are tried in another way.
#[test]
fn an_error_of_the_disk_ends_a_transfer() {
    let (_root, device) = device();
    device.open("a", OpenMode::CreateNew).unwrap();
    let file = OpenFile {
        path: "a".to_owned(),
        mode: OpenMode::Write,
        // Writing to it fails.
        buffered: File::open(device.root.join("a")).unwrap(),
        direct: OnceLock::new(),
        along: OnceLock::new(),
        failed_sync: OnceLock::new(),
        refusals: Arc::default(),
    };
    assert!(file.write_at(b"abc", 0).is_err());
}

#[test]
fn bytes_that_are_read_along_are_those_of_the_file() {
    let (_root, device) = device();
    let file = device.open("slots", OpenMode::CreateNew).unwrap();
    let content = aligned(1 << 20, 3);
    file.write_at(&content, 0).unwrap();
    let check = |offset: usize, len: usize, along_bytes: u64| {
        let mut found = vec![0; len];
        let count = file.read_along(&mut found, offset as u64, along_bytes).unwrap();
        let expected = &content[offset.min(content.len())..(offset + len).min(content.len())];
        assert!(found[..count] == *expected, "{len} at {offset}");
    };
    // From the medium, from memory, across the end of what was read along, and with a block that was kept.
    for (offset, len, along_bytes) in
        [(0, 5000, 300_000), (5000, 100_000, 300_000), (300_000, 9000, 0), (308_999, 4097, 1)]
    {
        check(offset, len, along_bytes);
    }
    // At the end, and beyond.
    for (offset, len) in [((1 << 20) - 10, 10), ((1 << 20) - 10, 100), (1 << 20, 10), (2 << 20, 10), (0, 0)] {
        check(offset, len, 1 << 20);
    }
    file.reread().unwrap();
    // What is written meanwhile is not hidden by what was read along.
    check(0, 4096, 1 << 19);
    let other = aligned(1 << 18, 9);
    file.write_at(&other, 1 << 18).unwrap();
    let mut found = vec![0; 1 << 18];
    assert_eq!(file.read_along(&mut found, 1 << 18, 0).unwrap(), found.len());
    assert!(found == *other);
    assert!(matches!(file.read_along(&mut [0; 10], u64::MAX, u64::MAX), Err(StoreError::Usage(_))));
    assert_eq!(file.read_along(&mut [0; 10], 1 << 20, 1 << 30).unwrap(), 0);
}
