//! Reads and modelled time of restoring a version.

use super::categories::Layout;
use super::disk::Disk;
use super::store::Store;

/// The reads of a restore, or the mean of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Restore {
    /// Bytes of the version.
    pub restored_bytes: f64,
    /// Bytes read for it.
    pub read_bytes: f64,
    /// Containers or volumes read.
    pub reads: f64,
    /// Stretches on disk that were read in a row.
    pub seeks: f64,
}

impl Restore {
    /// Returns bytes read for a byte restored: the read amplification.
    pub fn amplification(&self) -> f64 {
        self.read_bytes / self.restored_bytes
    }

    /// Returns MB restored for each container read: the speed factor.
    pub fn speed_factor(&self) -> f64 {
        self.restored_bytes / 1e6 / self.reads
    }

    /// Returns the modelled time.
    pub fn seconds(&self, disk: Disk) -> f64 {
        self.seeks * disk.seek_seconds + self.read_bytes / disk.bytes_per_second
    }

    /// Returns the rate as a share of reading the same bytes in a row.
    pub fn rate(&self, disk: Disk) -> f64 {
        self.restored_bytes / disk.bytes_per_second / self.seconds(disk)
    }

    /// Returns the mean of some restores.
    pub fn mean(restores: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| restores.iter().map(of).sum::<f64>() / restores.len() as f64;
        Self {
            restored_bytes: mean(|one| one.restored_bytes),
            read_bytes: mean(|one| one.read_bytes),
            reads: mean(|one| one.reads),
            seeks: mean(|one| one.seeks),
        }
    }
}

/// Restores a version in its order from whole containers, of which the `cache` used last stay in memory. Versions are counted from the
/// oldest one kept.
pub fn from_containers(store: &Store<'_>, version: usize, restored_bytes: u64, cache: usize) -> Restore {
    let mut restore = Restore { restored_bytes: restored_bytes as f64, ..Restore::default() };
    // The one used last is at the end.
    let (mut cached, mut last_read) = (Vec::with_capacity(cache + 1), None);
    for (container, bytes) in store.containers_of(version) {
        if let Some(at) = cached.iter().rposition(|there| *there == container) {
            cached[at..].rotate_left(1);
            continue;
        }
        cached.push(container);
        if cached.len() > cache {
            cached.remove(0);
        }
        restore.reads += 1.0;
        restore.read_bytes += bytes as f64;
        restore.seeks += f64::from(u8::from(last_read.is_none_or(|last: u32| last + 1 != container)));
        last_read = Some(container);
    }
    restore
}

/// Restores a version out of its order, from the categories that it uses.
pub fn from_categories(layout: &Layout<'_>, version: u32, restored_bytes: u64) -> Restore {
    let reads = layout.reads(version);
    let (read_bytes, count) = (reads.iter().sum::<u64>() as f64, reads.len() as f64);
    Restore { restored_bytes: restored_bytes as f64, read_bytes, reads: count, seeks: count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mfdedup::store::Rewriting;
    use crate::mfdedup::trace::Trace;

    const DISK: Disk = Disk { seek_seconds: 1.0, bytes_per_second: 10.0 };

    #[test]
    fn the_container_used_last_stays_and_the_next_on_disk_needs_no_seek() {
        // Containers of two chunks: 0 has 0 and 1, 1 has 2 and 3, 2 has 4 and 5. The second version uses 0 1 0 2 0 1 2.
        let versions = vec![vec![0, 1, 2, 3, 4, 5], vec![0, 2, 1, 4, 0, 3, 5]];
        let trace = Trace { lens: vec![10; 6], versions };
        let mut store = Store::new(&trace, 20, Rewriting::None);
        trace.versions.iter().for_each(|chunks| store.back_up(chunks));
        let first = from_containers(&store, 0, 60, 2);
        assert_eq!(first, Restore { restored_bytes: 60.0, read_bytes: 60.0, reads: 3.0, seeks: 1.0 });
        assert_eq!((first.seconds(DISK), first.amplification()), (7.0, 1.0));
        // 0, 1 behind it, 2 behind it (1 goes), 0 is there, 1 (2 goes), 2 behind it.
        let second = from_containers(&store, 1, 70, 2);
        assert_eq!(second, Restore { restored_bytes: 70.0, read_bytes: 100.0, reads: 5.0, seeks: 2.0 });
        assert_eq!((second.seconds(DISK), second.rate(DISK)), (12.0, 7.0 / 12.0));
        assert_eq!(from_containers(&store, 1, 70, 3).reads, 3.0);
        let mean = Restore::mean(&[first, second]);
        assert_eq!((mean.reads, mean.read_bytes), (4.0, 80.0));
        assert_eq!(first.speed_factor(), 60.0 / 1e6 / 3.0);
    }

    #[test]
    fn internal_duplicates_are_read_once_from_categories() {
        let trace = Trace { lens: vec![10; 3], versions: vec![vec![0, 1, 0, 0], vec![0, 2, 0, 2]] };
        let mut layout = Layout::new(&trace);
        trace.versions.iter().for_each(|chunks| _ = layout.back_up(chunks));
        let oldest = from_categories(&layout, 1, 40);
        assert_eq!(oldest, Restore { restored_bytes: 40.0, read_bytes: 20.0, reads: 2.0, seeks: 2.0 });
        assert_eq!(from_categories(&layout, 2, 40).seeks, 1.0);
    }
}
