//! The decoders of exports, for the fuzz targets.

use dedupfs_store::PoolId;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use super::files::{self, Current, Owner};
use super::frames::ReadFrame;
use super::kept::kept;
use super::reached::Reached;

fn disk(path: &str, bytes: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new();
    device.create_directory(files::DIRECTORY).expect("is memory");
    device.open(path, OpenMode::CreateNew).and_then(|file| file.write_at(bytes, 0)).expect("is memory");
    device
}

/// Decodes a frame of a base or log, unpacks it, and decodes its items.
pub fn frame(bytes: &[u8], pool: &PoolId, generation: u64) {
    let device = disk("fuzzed", bytes);
    let file = device.open("fuzzed", OpenMode::Read).expect("is there");
    if let Ok(frame) = ReadFrame::read(&*file, "fuzzed", pool, generation, 0)
        && let Ok(raw) = frame.unpack("fuzzed")
        && let Ok(items) = frame.items("fuzzed", &raw)
    {
        let bytes: usize = items.iter().map(|item| item.key.len() + item.value.map_or(0, <[u8]>::len)).sum();
        assert!(bytes <= raw.len());
    }
}

/// Decodes the small files: `current` and `owner` (decoded values are written and read again), the kept slots, and the note of the
/// export's progress.
pub fn small(bytes: &[u8], pool: &PoolId) {
    let device = disk(&format!("{}/current", files::DIRECTORY), bytes);
    if let Ok(Some(current)) = Current::read(&device, pool) {
        current.write(&device, pool).expect("is memory");
        assert_eq!(Current::read(&device, pool).expect("decodes again"), Some(current));
    }
    let device = disk(&format!("{}/owner", files::DIRECTORY), bytes);
    if let Ok(Some(owner)) = Owner::read(&device, pool) {
        owner.write(&device, pool).expect("is memory");
        assert_eq!(Owner::read(&device, pool).expect("decodes again"), Some(owner));
    }
    let device = disk(&format!("{}/kept-slots", files::DIRECTORY), bytes);
    // Any answer will do except a panic.
    drop(kept(&device, pool, true));
    let device = disk(&format!("{}/reached", files::DIRECTORY), bytes);
    drop(Reached::read(&device, pool));
}
