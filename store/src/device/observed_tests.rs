use std::sync::Mutex;

use super::*;
use crate::device::MemoryDevice;

/// Notes all operations; those of paths with "lost" do not happen.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl Observer for Notes {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let text = format!("{call:?}");
        let kind = text.split(' ').next().unwrap();
        assert_eq!(call.is_change(), kind != "Read" && kind != "List" && !text.contains("mode: Read"), "{text}");
        let is_lost = text.contains("lost");
        self.0.lock().unwrap().push(text);
        if is_lost { Ok(()) } else { perform() }
    }
}

#[test]
fn every_operation_is_shown_and_happens_only_if_performed() {
    let memory = MemoryDevice::new();
    let notes = Arc::new(Notes::default());
    let device = ObservedDevice::new(Arc::new(memory.clone()), notes.clone());
    device.create_directory("d").unwrap();
    let file = device.open("d/a", OpenMode::CreateNew).unwrap();
    file.write_at(b"abc", 1).unwrap();
    file.sync().unwrap();
    assert!(memory.is_synced("d/a").unwrap());
    assert_eq!(device.filesystem_id(), memory.filesystem_id());
    let mut bytes = [9; 8];
    assert_eq!((file.read_at(&mut bytes, 0).unwrap(), &bytes[..4]), (4, &b"\0abc"[..]));
    file.set_len(3).unwrap();
    file.punch(0, 2).unwrap();
    device.rename("d/a", "d/b").unwrap();
    device.sync_directory("d").unwrap();
    assert_eq!(device.list("d").unwrap(), memory.list("d").unwrap());
    device.remove("d/b").unwrap();
    assert_eq!(memory.list("d").unwrap(), []);
    assert!(matches!(device.open("d/lost", OpenMode::CreateNew), Err(StoreError::NotFound { .. })));
    assert!(!memory.exists("d/lost").unwrap());
    let kinds = ["CreateD", "Open", "Write", "Sync", "Read", "SetLen", "Punch", "Rename", "SyncD", "List", "Remove"];
    let seen = notes.0.lock().unwrap();
    assert_eq!(seen.len(), kinds.len() + 1);
    assert!(seen.iter().zip(kinds).all(|(text, kind)| text.starts_with(kind)), "{seen:?}");
}

#[test]
fn a_directory_is_removed_from_the_observed_device() {
    let root = tempfile::tempdir().unwrap();
    let inner = Arc::new(crate::device::FileDevice::create(root.path()).unwrap());
    let device = ObservedDevice::new(inner, Arc::new(Notes::default()));
    device.create_directory("d").unwrap();
    assert!(root.path().join("d").is_dir());
    device.remove_directory("d").unwrap();
    assert!(!root.path().join("d").exists());
}
