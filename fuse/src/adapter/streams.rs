//! Where open directories end for those who read them.
//!
//! Entries are read in the order in which they came. A name that comes while somebody reads would be read by them in the end, and who moves
//! each entry elsewhere and back, or makes an entry for each one read, would read on without end. So a reader gets what was there when the directory was
//! opened, or read from its start again (rewinddir), as on btrfs. What comes later is left to the next reader, as POSIX allows.

use std::collections::HashMap;

use parking_lot::Mutex;

#[derive(Default)]
struct Table {
    last: u64,
    /// The end of each, as a cookie.
    ends: HashMap<u64, u64>,
}

/// Open directories, by their handles.
#[derive(Default)]
pub(super) struct Streams(Mutex<Table>);

impl Streams {
    /// A new handle; it is read up to `end`.
    pub(super) fn open(&self, end: u64) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let handle = table.last;
        table.ends.insert(handle, end);
        handle
    }

    /// Where the reading ends that goes on at `offset`. At the start it begins anew, and ends where the directory does `now`.
    pub(super) fn end(&self, handle: u64, offset: u64, now: impl FnOnce() -> u64) -> u64 {
        let mut table = self.0.lock();
        match table.ends.get_mut(&handle) {
            Some(end) if offset == 0 => {
                *end = now();
                *end
            }
            Some(end) => *end,
            // The kernel makes up no handle.
            None => u64::MAX,
        }
    }

    /// The handle is closed.
    pub(super) fn close(&self, handle: u64) {
        self.0.lock().ends.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_where_the_directory_did_when_it_was_opened_or_rewound() {
        let streams = Streams::default();
        let (one, other) = (streams.open(10), streams.open(20));
        assert_ne!((one, other), (0, 0));
        assert_eq!(streams.end(one, 5, || 30), 10);
        assert_eq!(streams.end(one, 0, || 30), 30);
        assert_eq!(streams.end(one, 7, || 40), 30);
        assert_eq!(streams.end(other, 7, || 40), 20);
        streams.close(one);
        assert_eq!(streams.end(one, 7, || 40), u64::MAX);
        assert_eq!(streams.0.lock().ends.len(), 1);
    }
}
