//! Helpers for tests of whole pools.

use dedupfs::Pool;
use dedupfs_service::{Caller, Errno, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};

pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// Returns bytes that do not repeat and do not compress.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Writes a file from its beginning, over any old content, and closes it.
pub fn try_write(pool: &Pool, name: &str, data: &[u8]) -> Result<(), Errno> {
    let service = pool.service();
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let (ino, handle) = match service.lookup(ROOT_INO, name.as_bytes()) {
        Ok(attributes) => (attributes.ino, service.open(CALLER, attributes.ino, how).expect("opens").handle),
        Err(_) => {
            let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
            let (attributes, opened) = service.create(CALLER, node, how).expect("creates");
            (attributes.ino, opened.handle)
        }
    };
    let mut outcome = Ok(());
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        let offset = (number << 20) as u64;
        let written = service.write(CALLER, ino, handle, offset, piece, WriteFlags::default()).map(|_| ());
        outcome = outcome.and(written);
    }
    let flushed = service.flush(ino, handle);
    service.release(ino, handle);
    service.forget(ino, 1);
    outcome.and(flushed)
}

/// Calls [`try_write`], which must succeed.
pub fn write(pool: &Pool, name: &str, data: &[u8]) {
    try_write(pool, name, data).expect("writes");
}

/// Returns the content, or `None` if any read gives an error.
pub fn read(pool: &Pool, name: &str) -> Option<Vec<u8>> {
    let service = pool.service();
    let attributes = service.lookup(ROOT_INO, name.as_bytes()).expect("is there");
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, attributes.ino, how).expect("opens").handle;
    let mut bytes = Vec::new();
    let outcome = service.read(attributes.ino, handle, 0, 1 << 30, &mut bytes);
    service.release(attributes.ino, handle);
    service.forget(attributes.ino, 1);
    outcome.is_ok().then_some(bytes)
}
