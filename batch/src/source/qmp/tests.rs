//! A real qemu with a disk and no guest. Its monitor writes to the disk.

use std::path::{Path, PathBuf};
use std::slice::from_ref;

use dedupfs_nbd::{Address, STATE_DIRTY};

use super::*;
use crate::testing::{DISK_BYTES, Machine};

fn driver(machine: &Machine) -> Qmp {
    Qmp::new(machine.monitor(), vec![disk("drive0", machine.directory())])
}

fn disk(node: &str, scratch: &Path) -> QmpDisk {
    QmpDisk { node: node.to_owned(), scratch: scratch.to_owned(), identity: "/mnt/vm/vda".to_owned() }
}

/// Everything that is ours: bitmaps, nodes, jobs, exports and files.
fn leftovers(machine: &Machine) -> Vec<String> {
    let mut monitor = machine.guest();
    let nodes = monitor.ask("query-named-block-nodes", &json!({ "flat": true })).expect("lists");
    let mut found: Vec<String> =
        Node::among(&nodes, "drive0").expect("is there").bitmaps.into_iter().map(|bitmap| bitmap.name).collect();
    for list in ["query-jobs", "query-block-exports"] {
        assert_eq!(monitor.ask(list, &json!({})).expect("answers"), json!([]), "{list}");
    }
    assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");
    let files = std::fs::read_dir(machine.directory()).expect("lists").flatten();
    found.extend(files.map(|file| file.file_name().display().to_string()).filter(|name| name.starts_with(OURS)));
    found
}

/// Reads the disk at a point in time, and the ranges that its map calls dirty.
fn read(point: &Point) -> (Vec<u8>, Vec<(u64, u64)>) {
    let address = Address::parse(&point.source).expect("is an address");
    let context = point.map.as_deref().and_then(|map| map.strip_prefix("nbd:"));
    let wanted: Vec<&str> = context.into_iter().collect();
    let connection = dedupfs_nbd::connect(&address, &wanted, &|| true).expect("connects");
    let mut content = vec![1; DISK_BYTES as usize];
    connection.read(0, &mut content, &|| true).expect("reads");
    let dirty = context.map(|context| {
        let id = connection.agreed().context(context).expect("is told");
        let extents = connection.extents(id, 0..DISK_BYTES, 1000, &|| true).expect("are told");
        extents.iter().filter(|extent| extent.flags & STATE_DIRTY != 0).map(|extent| (extent.from, extent.to)).collect()
    });
    (content, dirty.unwrap_or_default())
}

/// Begins a backup of all disks.
fn begin(driver: &mut Qmp, last: &[Option<String>]) -> Result<Vec<Point>, String> {
    driver.prepare(last, &never)?;
    driver.begin(&never)?;
    driver.points(&never)
}

const UNIT: u64 = 64 << 10;

fn never() -> bool {
    false
}

#[test]
fn a_disk_of_a_running_machine_stands_still_and_tells_what_changed() {
    let Some(machine) = Machine::if_qemu("qcow2") else { return };
    machine.write(1, 0, 4 << 20);
    let mut driver = self::driver(&machine);
    let first = begin(&mut driver, &[None]).expect("begins").remove(0);
    assert!(first.map.is_none() && first.without_map.is_none());
    let token = first.token.clone();
    // Written behind the point in time.
    machine.write(9, UNIT, UNIT);
    let (content, _) = read(&first);
    assert!(content[..4 << 20].iter().all(|byte| *byte == 1) && content[4 << 20..].iter().all(|byte| *byte == 0));
    driver.check(0, &never).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    let name = |token: &Option<String>| disk("", Path::new("")).bitmap(token.as_deref().unwrap_or_default());
    assert_eq!(leftovers(&machine), [name(&token)]);

    machine.write(2, 8 << 20, UNIT);
    let second = begin(&mut driver, from_ref(&token)).expect("begins").remove(0);
    assert_eq!((&second.token_from, second.dirty_bytes), (&token, Some(2 * UNIT)));
    let (content, dirty) = read(&second);
    assert_eq!(dirty, [(UNIT, 2 * UNIT), (8 << 20, (8 << 20) + UNIT)]);
    assert!(content[UNIT as usize] == 9 && content[8 << 20] == 2);
    // It fails: the next one begins at the same state, and has what was written meanwhile.
    machine.write(3, 12 << 20, UNIT);
    driver.end(0, Verdict::Failed).expect("ends");
    assert_eq!(leftovers(&machine), [name(&token)]);

    // A run that is killed leaves all of it, and the next one lets go.
    let killed = begin(&mut self::driver(&machine), from_ref(&token)).expect("begins").remove(0);
    assert!(killed.map.is_some());
    let third = begin(&mut driver, from_ref(&token)).expect("begins").remove(0);
    let (content, dirty) = read(&third);
    assert_eq!(dirty.last(), Some(&(12 << 20, (12 << 20) + UNIT)));
    assert_eq!((dirty.len(), content[12 << 20]), (3, 3));
    driver.check(0, &never).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    assert_eq!(leftovers(&machine), [name(&third.token)]);
}

#[test]
fn bitmaps_that_a_killed_machine_leaves_cost_a_full_read() {
    let Some(mut machine) = Machine::if_qemu("qcow2") else { return };
    machine.write(1, 0, UNIT);
    let mut driver = self::driver(&machine);
    let first = begin(&mut driver, &[None]).expect("begins").remove(0);
    driver.end(0, Verdict::Stored).expect("ends");
    // The bitmap is in the file now.
    machine.quit_and_start();
    let kept = begin(&mut driver, from_ref(&first.token)).expect("begins").remove(0);
    assert!(kept.map.is_some(), "{:?}", kept.without_map);
    driver.end(0, Verdict::Failed).expect("ends");
    machine.write(1, 0, UNIT);
    machine.kill_and_start();
    let again = begin(&mut driver, from_ref(&first.token)).expect("begins").remove(0);
    assert!(again.map.is_none() && again.token_from.is_none());
    let why = again.without_map.clone().expect("is told");
    assert!(why.contains("inconsistent"), "{why}");
    assert_eq!(read(&again).0[0], 1);
    driver.check(0, &never).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    assert_eq!(leftovers(&machine).len(), 1);
}

#[test]
fn a_machine_that_is_killed_between_checkpoint_and_reading_fails_and_is_read_as_a_whole_later() {
    let Some(mut machine) = Machine::if_qemu("qcow2") else { return };
    machine.write(1, 0, UNIT);
    let mut driver = self::driver(&machine);
    let first = begin(&mut driver, &[None]).expect("begins").remove(0);
    driver.end(0, Verdict::Stored).expect("ends");
    machine.write(2, 0, UNIT);
    let second = begin(&mut driver, from_ref(&first.token)).expect("begins").remove(0);
    machine.kill_and_start();
    let address = Address::parse(&second.source).expect("is an address");
    assert!(dedupfs_nbd::connect(&address, &[], &|| true).is_err());
    assert!(driver.check(0, &never).is_err() && driver.end(0, Verdict::Failed).is_err());
    let third = begin(&mut driver, from_ref(&first.token)).expect("begins").remove(0);
    assert!(third.map.is_none() && third.without_map.is_some());
    assert_eq!(read(&third).0[0], 2);
    driver.end(0, Verdict::Stored).expect("ends");
    assert_eq!(leftovers(&machine).len(), 1);
}

#[test]
fn a_monitor_that_cannot_be_used_is_named() {
    let error = begin(&mut Qmp::new(PathBuf::from("/none/qmp"), vec![disk("drive0", Path::new("/tmp"))]), &[None]);
    assert!(error.expect_err("is not there").contains("cannot connect to the monitor /none/qmp"));
    let Some(machine) = Machine::if_qemu("raw") else { return };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(machine.directory(), open).expect("opens");
    let error = begin(&mut self::driver(&machine), &[None]).expect_err("others could read it");
    assert!(error.contains("mode 0700"), "{error}");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(machine.directory(), closed).expect("closes");
    let mut driver = Qmp::new(machine.monitor(), vec![disk("none", machine.directory())]);
    assert!(begin(&mut driver, &[None]).expect_err("is not there").contains("no block node none"));
    let mut driver = Qmp::new(machine.monitor(), vec![disk("drive0", Path::new("/none/such"))]);
    let error = begin(&mut driver, &[None]).expect_err("has no room");
    assert!(error.contains("/none/such"), "{error}");
    assert_eq!(leftovers(&machine), [""; 0]);
    // A raw disk: its bitmap lives as long as qemu.
    let mut driver = self::driver(&machine);
    let first = begin(&mut driver, &[None]).expect("begins").remove(0);
    driver.end(0, Verdict::Stored).expect("ends");
    let second = begin(&mut driver, &[first.token]).expect("begins").remove(0);
    assert!(second.map.is_some());
    driver.end(0, Verdict::Stored).expect("ends");
}
