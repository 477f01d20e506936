//! Ends the reading of directories that change meanwhile.
//!
//! Entries are read in the order in which they came. A reader could reach every name that comes while it reads. A client that moves each
//! entry elsewhere and back, or makes an entry for each one it read, would never come to an end. So a reader gets the entries that existed
//! when the directory was opened, or read from its start again (rewinddir), as on btrfs. Later entries are left to the next reader, as
//! POSIX allows.

use std::collections::HashMap;

use parking_lot::Mutex;

#[derive(Default)]
struct Table {
    last: u64,
    /// The end of each open directory, as a cookie.
    ends: HashMap<u64, u64>,
}

#[derive(Default)]
pub(super) struct Streams(Mutex<Table>);

impl Streams {
    /// Returns a new handle, which is read up to `end`.
    pub(super) fn open(&self, end: u64) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let handle = table.last;
        table.ends.insert(handle, end);
        handle
    }

    /// Returns the end of a reading that continues at `offset`. At offset 0 it begins anew and ends where the directory does `now`.
    pub(super) fn end(&self, handle: u64, offset: u64, now: impl FnOnce() -> u64) -> u64 {
        let mut table = self.0.lock();
        match table.ends.get_mut(&handle) {
            Some(end) if offset == 0 => {
                *end = now();
                *end
            }
            Some(end) => *end,
            // The kernel did not open it, because nothing changes: it ends by itself.
            None => u64::MAX,
        }
    }

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
