use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::device::MemoryDevice;

const PATHS: [&str; 5] = ["a", "b", "d/a", "d/b", "new/a"];

#[derive(Clone, Debug)]
enum Operation {
    Write { path: usize, offset: u64, len: usize, byte: u8 },
    SetLen { path: usize, len_bytes: u64 },
    Remove { path: usize },
    Rename { from: usize, to: usize },
    Create { path: usize },
    CreateDirectory,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let path = 0..PATHS.len();
    let one = prop_oneof![
        4 => (path.clone(), 0_u64..20_000, 0_usize..9_000, any::<u8>())
            .prop_map(|(path, offset, len, byte)| Operation::Write { path, offset, len, byte }),
        2 => (path.clone(), 0_u64..25_000).prop_map(|(path, len_bytes)| Operation::SetLen { path, len_bytes }),
        1 => path.clone().prop_map(|path| Operation::Remove { path }),
        1 => (path.clone(), path.clone()).prop_map(|(from, to)| Operation::Rename { from, to }),
        1 => path.prop_map(|path| Operation::Create { path }),
        1 => Just(Operation::CreateDirectory),
    ];
    proptest::collection::vec(one, 0..40)
}

fn below() -> Arc<dyn Device> {
    let device = MemoryDevice::new();
    device.create_directory("d").unwrap();
    for (number, path) in ["a", "d/a"].into_iter().enumerate() {
        let file = device.open(path, OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..15_000_u32).map(|at| (at / 7 + number as u32) as u8).collect();
        file.write_at(&bytes, 0).unwrap();
    }
    Arc::new(device)
}

fn apply(device: &dyn Device, operation: &Operation) -> bool {
    let write = |path: &usize| device.open(PATHS[*path], OpenMode::Write);
    match operation {
        Operation::Write { path, offset, len, byte } => {
            write(path).and_then(|file| file.write_at(&vec![*byte; *len], *offset))
        }
        Operation::SetLen { path, len_bytes } => write(path).and_then(|file| file.set_len(*len_bytes)),
        Operation::Remove { path } => device.remove(PATHS[*path]),
        Operation::Rename { from, to } => device.rename(PATHS[*from], PATHS[*to]),
        Operation::Create { path } => device.open(PATHS[*path], OpenMode::CreateNew).map(drop),
        Operation::CreateDirectory => device.create_directory("new/deeper"),
    }
    .is_ok()
}

/// All names, with the content of the files.
fn everything(device: &dyn Device) -> Vec<(String, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in device.list(&directory).unwrap() {
            let path = if directory.is_empty() { entry.name.clone() } else { format!("{directory}/{}", entry.name) };
            assert!(device.exists(&path).unwrap(), "{path} is listed");
            if entry.is_directory {
                directories.push(path.clone());
                found.push((path, None));
            } else {
                let bytes = device.read_file(&path, 1 << 20).unwrap();
                assert_eq!(bytes.len() as u64, entry.len_bytes, "{path}");
                found.push((path, Some(bytes)));
            }
        }
    }
    found.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The overlay shows the changed device, and the device below stays unchanged.
    #[test]
    fn an_overlay_shows_changes_and_makes_none(operations in operations()) {
        let (under, changed) = (below(), below());
        let before = everything(&*under);
        let overlay = OverlayDevice::new(under.clone(), 1 << 30);
        for operation in &operations {
            prop_assert_eq!(apply(&overlay, operation), apply(&*changed, operation), "{:?}", operation);
            prop_assert_eq!(everything(&overlay), everything(&*changed), "{:?}", operation);
        }
        prop_assert_eq!(everything(&*under), before);
    }
}

#[test]
fn handles_that_are_open_see_what_others_write() {
    let overlay = OverlayDevice::new(below(), 1 << 20);
    let (reader, writer) = (overlay.open("a", OpenMode::Read).unwrap(), overlay.open("a", OpenMode::Write).unwrap());
    assert!(matches!(reader.write_at(b"x", 0), Err(StoreError::Usage(_))));
    writer.write_at(b"xyz", 5_000).unwrap();
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 5_000).unwrap();
    assert_eq!(&bytes, b"xyz");
    overlay.rename("a", "d/b").unwrap();
    overlay.open("a", OpenMode::CreateNew).unwrap().write_at(b"other", 0).unwrap();
    reader.read_exact_at(&mut bytes, 5_000).unwrap();
    assert_eq!(&bytes, b"xyz", "a handle follows its file, not the name");
}

#[test]
fn beyond_the_limit_nothing_changes() {
    let overlay = OverlayDevice::new(below(), 2 * PAGE_BYTES as u64);
    let file = overlay.open("a", OpenMode::Write).unwrap();
    let before = overlay.read_file("a", 1 << 20).unwrap();
    let error = file.write_at(&[1; 3 * PAGE_BYTES], 0).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
    assert_eq!(overlay.read_file("a", 1 << 20).unwrap(), before);
    file.write_at(&[1; 2 * PAGE_BYTES], 0).unwrap();
    assert_eq!(overlay.used_bytes(), 2 * PAGE_BYTES as u64);
    assert_eq!(overlay.space().unwrap().available_bytes, 0);
    file.write_at(&[2; 10], 100).unwrap();
    file.set_len(10).unwrap();
    assert_eq!(overlay.used_bytes(), PAGE_BYTES as u64);
}

#[test]
fn only_what_is_changed_takes_room_and_only_what_is_there_is_synced() {
    let overlay = OverlayDevice::new(Arc::new(MemoryDevice::new()), 2 * PAGE_BYTES as u64);
    let file = overlay.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(&[1; 10], 1 << 30).unwrap();
    file.write_at(&[1; 10], (1 << 30) + 10).unwrap();
    file.write_at(&[1; 10], 0).unwrap();
    assert!(matches!(file.write_at(&[1; 10], 1 << 20), Err(StoreError::NoSpace { .. })));
    overlay.sync_directory("").unwrap();
    assert!(matches!(overlay.sync_directory("missing"), Err(StoreError::NotFound { .. })));
}

#[test]
fn an_overlay_lies_on_the_filesystem_of_its_lower_device() {
    let root = tempfile::tempdir().unwrap();
    let on_disk: Arc<dyn Device> = Arc::new(crate::device::FileDevice::create(root.path()).unwrap());
    let in_memory: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    assert_eq!(in_memory.filesystem_id(), None);
    assert_eq!(on_disk.filesystem_id(), Some(std::os::unix::fs::MetadataExt::dev(&root.path().metadata().unwrap())));
    for lower in [in_memory, on_disk] {
        assert_eq!(OverlayDevice::new(lower.clone(), u64::MAX).filesystem_id(), lower.filesystem_id());
    }
}
