//! Reading as suits the disk: where a seek takes long, the bytes between two regions are cheaper than a second seek.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dedupfs_store::device::{AlignedBuffer, DIRECT_ALIGNMENT_BYTES};
use dedupfs_sync::clock::Instant;

use super::ContainerStore;

/// Gap that is read along on a disk that does not seek: its bytes cost about as much as another request.
const GAP_BYTES_MIN: u32 = 128 << 10;
/// Gap that is read along at most.
const GAP_BYTES_MAX: u32 = 2 << 20;
/// Bytes of one read at most, on a disk that does not seek and on one that does.
const READ_BYTES_MAX: [u32; 2] = [1 << 20, 4 << 20];
/// Distance that readers are kept ahead, likewise. The regions being loaded are the second bound.
const AHEAD_BYTES: [u64; 2] = [16 << 20, 64 << 20];
/// Rate at which a disk that seeks is assumed to read.
const BYTES_PER_MS: u32 = 160 << 10;
/// A disk whose reads take longer seeks.
const SEEK_MIN: Duration = Duration::from_millis(2);
const MEASURED_READS: usize = 16;
const MEASURED_MAX: Duration = Duration::from_millis(250);

/// The reads that suit the disk.
pub(super) struct Seeks {
    gap_bytes: AtomicU32,
}

impl Default for Seeks {
    fn default() -> Self {
        Self { gap_bytes: AtomicU32::new(GAP_BYTES_MIN) }
    }
}

impl Seeks {
    /// Unneeded bytes that are read along to save another read.
    pub(super) fn gap_bytes(&self) -> u32 {
        self.gap_bytes.load(Ordering::Relaxed)
    }

    /// Whether order on the disk matters.
    pub(super) fn matter(&self) -> bool {
        self.gap_bytes() > GAP_BYTES_MIN
    }

    pub(super) fn read_bytes_max(&self) -> u32 {
        let [short, long] = READ_BYTES_MAX;
        if self.matter() { long } else { short }
    }

    /// Bytes behind a read that are read along, for the readers of a version: it lies in many containers, and a reader goes on in each of
    /// them by turns. As many as a seek costs: at worst the disk works twice as long.
    pub(super) fn along_bytes(&self) -> Option<u32> {
        self.matter().then(|| self.gap_bytes())
    }

    fn ahead_bytes(&self) -> u64 {
        let [near, far] = AHEAD_BYTES;
        if self.matter() { far } else { near }
    }

    pub(super) fn set(&self, seek: Duration) {
        let gap_bytes = match seek >= SEEK_MIN {
            true => (seek.as_micros() as u64 * u64::from(BYTES_PER_MS) / 1000).min(GAP_BYTES_MAX.into()) as u32,
            false => GAP_BYTES_MIN,
        };
        self.gap_bytes.store(gap_bytes.max(GAP_BYTES_MIN), Ordering::Relaxed);
    }
}

impl ContainerStore {
    /// Distance that a sequential reader is kept ahead.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.shared.seeks.ahead_bytes()
    }

    /// Measures the time of a random read of the disk, and reads from then on as suits it. Reads a block of each of 16 containers, for a
    /// quarter of a second at most. Returns the median, or `None` if there are too few containers, or they cannot be read.
    pub fn measure_seeks(&self) -> Option<Duration> {
        let mut records = Vec::new();
        self.for_each_closed(&mut |record| records.push(record.address));
        if records.len() < MEASURED_READS {
            return None;
        }
        records.sort_unstable_by_key(|address| (address.file, address.slot));
        let (mut block, started, mut times) = (AlignedBuffer::new(), Instant::now(), Vec::new());
        block.resize_zeroed(DIRECT_ALIGNMENT_BYTES);
        for number in 0..MEASURED_READS {
            // From one half of the disk to the other and back.
            let part = (number % 2) * MEASURED_READS / 2 + number / 2;
            let address = records.get(part * records.len() / MEASURED_READS)?;
            let before = Instant::now();
            self.shared.slots.read_into(*address, 0, &mut block).ok()?;
            times.push(before.elapsed());
            if started.elapsed() > MEASURED_MAX {
                break;
            }
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied();
        median.inspect(|seek| self.shared.seeks.set(*seek))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_reads_gaps_along_and_goes_further_ahead() {
        let seeks = Seeks::default();
        seeks.set(Duration::from_micros(1_900));
        assert_eq!((seeks.gap_bytes(), seeks.read_bytes_max(), seeks.ahead_bytes()), (128 << 10, 1 << 20, 16 << 20));
        seeks.set(Duration::from_millis(8));
        assert_eq!(
            (seeks.gap_bytes(), seeks.read_bytes_max(), seeks.ahead_bytes()),
            (8 * BYTES_PER_MS, 4 << 20, 64 << 20)
        );
        seeks.set(Duration::from_secs(3));
        assert_eq!((seeks.gap_bytes(), seeks.along_bytes()), (GAP_BYTES_MAX, Some(GAP_BYTES_MAX)));
        seeks.set(Duration::from_micros(80));
        assert!(!seeks.matter() && seeks.along_bytes().is_none(), "measured again");
    }
}
