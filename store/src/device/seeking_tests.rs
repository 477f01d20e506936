use std::sync::Arc;

use super::*;
use crate::device::{DeviceFile, MemoryDevice, OpenMode};

const MIB: u64 = 1 << 20;

/// A disk and a device on it.
fn disk() -> (Arc<SeekingDisk>, ObservedDevice) {
    let disk = SeekingDisk::new(Figures::default());
    let device = disk.below(Arc::new(MemoryDevice::new()));
    (disk, device)
}

fn file(device: &ObservedDevice, path: &str) -> Arc<dyn DeviceFile> {
    device.open(path, OpenMode::CreateOrWrite).expect("opens")
}

fn write(file: &Arc<dyn DeviceFile>, offset: u64, len_bytes: u64) {
    file.write_at(&vec![1; len_bytes as usize], offset).expect("writes");
}

fn read(file: &Arc<dyn DeviceFile>, offset: u64, len_bytes: u64) {
    file.read_exact_at(&mut vec![0; len_bytes as usize], offset).expect("reads");
}

/// The work of some operations.
fn cost(disk: &SeekingDisk, work: impl FnOnce()) -> Spent {
    let before = disk.spent();
    work();
    disk.spent().since(&before)
}

#[test]
fn a_seek_takes_as_long_as_the_root_of_its_distance_and_half_a_turn() {
    let figures = Figures::default();
    let seeks = [0, 1 << 36, 1 << 38, 1 << 40, 1 << 50].map(|distance| figures.seek_ns(distance));
    assert_eq!(seeks, [4_970_000, 8_770_000, 12_570_000, 20_170_000, 20_170_000]);
    assert_eq!((figures.transfer_ns(0), figures.transfer_ns(180_000_000)), (0, 1_000_000_000));
}

#[test]
fn requests_in_a_row_cost_their_transfer() {
    let (disk, device) = disk();
    let (first, second) = (file(&device, "a"), file(&device, "b"));
    let transfer_ns = Figures::default().transfer_ns(MIB);
    let written = cost(&disk, || {
        (0..4).for_each(|piece| write(&first, piece * MIB, MIB));
        (0..4).for_each(|piece| write(&second, piece * MIB, MIB));
    });
    assert_eq!(written, Spent { written_bytes: 8 * MIB, time_ns: 8 * transfer_ns, ..Spent::default() });
    // Back to the begin.
    let seek_ns = Figures::default().seek_ns(8 * MIB);
    let all = cost(&disk, || [&first, &second].iter().for_each(|file| read(file, 0, 4 * MIB)));
    assert_eq!(all, Spent { seeks: 1, read_bytes: 8 * MIB, time_ns: seek_ns + 8 * transfer_ns, written_bytes: 0 });
}

#[test]
fn a_gap_ahead_costs_its_transfer_or_a_seek() {
    let (disk, device) = disk();
    let file = file(&device, "a");
    write(&file, 0, 8 * MIB);
    read(&file, 0, 4096);
    let figures = Figures::default();
    let near = cost(&disk, || read(&file, MIB / 2, 4096));
    assert_eq!((near.seeks, near.time_ns), (0, figures.transfer_ns(MIB / 2 - 4096) + figures.transfer_ns(4096)));
    let far = cost(&disk, || read(&file, 4 * MIB, 4096));
    let distance = 4 * MIB - MIB / 2 - 4096;
    assert_eq!((far.seeks, far.time_ns), (1, figures.seek_ns(distance) + figures.transfer_ns(4096)));
    // The disk has forgotten what was read before the seek.
    assert_eq!(cost(&disk, || read(&file, MIB / 2, 4096)).seeks, 1);
}

#[test]
fn pieces_of_one_stretch_may_be_read_in_any_order() {
    let quarter = MIB / 4;
    let orders = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 2, 1]];
    let costs = orders.map(|order| {
        let (disk, device) = disk();
        let file = file(&device, "a");
        write(&file, 0, 8 * MIB);
        cost(&disk, || order.iter().for_each(|piece| read(&file, piece * quarter, quarter)))
    });
    let near = |other: &Spent| other.seeks == 1 && other.time_ns.abs_diff(costs[0].time_ns) < 10;
    assert!(costs.iter().all(near), "{costs:?}");
    // Not if it is longer than the disk remembers.
    let (disk, device) = disk();
    let file = file(&device, "a");
    write(&file, 0, 2 * REMEMBERED_BYTES);
    read(&file, 0, 2 * REMEMBERED_BYTES);
    assert_eq!(cost(&disk, || read(&file, REMEMBERED_BYTES, MIB)), Spent { read_bytes: MIB, ..Spent::default() });
    assert_eq!(cost(&disk, || read(&file, 0, MIB)).seeks, 1);
}

#[test]
fn extents_lie_in_the_order_in_which_they_were_first_used() {
    let (disk, device) = disk();
    let (first, second) = (file(&device, "a"), file(&device, "b"));
    write(&first, 0, 1);
    write(&second, 0, MIB);
    write(&first, MIB, MIB);
    read(&second, 0, MIB);
    // Behind the extent of the other file.
    assert_eq!(cost(&disk, || read(&first, MIB, MIB)).seeks, 0);
    // A renamed file lies where it lay; a new one of that name lies elsewhere.
    device.rename("a", "c").expect("renames");
    let renamed = device.open("c", OpenMode::Read).expect("opens");
    read(&second, 0, MIB);
    assert_eq!(cost(&disk, || read(&renamed, MIB, MIB)).seeks, 0);
    device.remove("c").expect("removes");
    let anew = self::file(&device, "c");
    write(&anew, 0, MIB);
    read(&second, 0, MIB);
    assert_eq!(cost(&disk, || read(&anew, 0, MIB)).seeks, 1);
}

#[test]
fn who_reads_along_reads_several_stretches_by_turns_with_few_seeks() {
    let seeks = [0, MIB].map(|along_bytes| {
        let (disk, device) = disk();
        let file = file(&device, "a");
        write(&file, 0, 64 * MIB);
        let (step, steps, begins) = (100_000, 32, [0, 20, 40].map(|begin| begin * MIB));
        let spent = cost(&disk, || {
            for number in 0..steps {
                for begin in begins {
                    let mut bytes = vec![0; step];
                    file.read_along(&mut bytes, begin + number * step as u64, along_bytes).expect("reads");
                }
            }
        });
        assert!(
            spent.read_bytes >= 3 * steps * step as u64 && spent.read_bytes <= 3 * (steps * step as u64 + along_bytes)
        );
        spent.seeks
    });
    // Each time 1.1 MB or, with the block that was kept, a little less.
    assert_eq!(seeks, [96, 9]);
}
