//! A real qemu with a disk and no guest. Its monitor writes to the disk.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use dedupfs_nbd::{Address, STATE_DIRTY};

use super::*;

const DISK_BYTES: u64 = 16 << 20;

struct Machine {
    directory: tempfile::TempDir,
    qemu: Child,
    format: &'static str,
}

impl Machine {
    /// Starts a machine with a new disk, unless qemu is missing.
    fn if_qemu(format: &'static str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("makes");
        let disk = directory.path().join("disk");
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", format])
            .args([disk.as_os_str(), DISK_BYTES.to_string().as_ref()])
            .status();
        if made.is_err() || Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err()
        {
            eprintln!("NOT RUN: qemu-img or qemu-system-x86_64 is missing");
            return None;
        }
        let qemu = Self::start(&directory, format);
        Some(Self { directory, qemu, format })
    }

    fn start(directory: &tempfile::TempDir, format: &str) -> Child {
        let path = |name: &str| directory.path().join(name).display().to_string();
        let child = Command::new("qemu-system-x86_64")
            // Its processor stands still: the test alone writes.
            .args(["-machine", "q35", "-m", "32", "-S", "-nodefaults", "-display", "none"])
            .args(["-blockdev", &format!("driver=file,node-name=file0,filename={}", path("disk"))])
            .args(["-blockdev", &format!("driver={format},node-name=drive0,file=file0")])
            .args(["-device", "virtio-blk-pci,id=disk0,drive=drive0"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", path("qmp"))])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", path("guest"))])
            .spawn()
            .expect("starts");
        let begun = std::time::Instant::now();
        while std::os::unix::net::UnixStream::connect(path("guest")).is_err() {
            assert!(begun.elapsed().as_secs() < 30, "qemu does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child
    }

    /// Kills qemu, and starts it with the same disk.
    fn kill_and_start(&mut self) {
        self.qemu.kill().expect("is killed");
        self.qemu.wait().expect("ends");
        self.qemu = Self::start(&self.directory, self.format);
    }

    fn monitor(&self) -> Monitor {
        Monitor::connect(&self.directory.path().join("guest")).expect("connects")
    }

    /// Writes as the guest would.
    fn write(&self, pattern: u8, offset: u64, len_bytes: u64) {
        let line = format!(
            "qemu-io -d /machine/peripheral/disk0/virtio-backend \"write -f -P {pattern} {offset} {len_bytes}\""
        );
        let answer = self.monitor().ask("human-monitor-command", &json!({ "command-line": line })).expect("writes");
        assert_eq!(answer, "", "the disk is not writable");
    }

    fn driver(&self) -> Qmp {
        Qmp::new(self.directory.path().join("qmp"), vec![("drive0".to_owned(), self.directory.path().to_owned())])
    }

    /// Everything that is ours: bitmaps, nodes, jobs, exports and files.
    fn leftovers(&self) -> Vec<String> {
        let mut monitor = self.monitor();
        let ask = |monitor: &mut Monitor, what: &str| monitor.ask(what, &json!({})).expect("answers").to_string();
        let nodes = monitor.ask("query-named-block-nodes", &json!({ "flat": true })).expect("lists");
        let mut found: Vec<String> =
            Node::among(&nodes, "drive0").expect("is there").bitmaps.into_iter().map(|bitmap| bitmap.name).collect();
        for what in ["query-jobs", "query-block-exports"] {
            assert_eq!(ask(&mut monitor, what), "[]", "{what}");
        }
        assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");
        let files = std::fs::read_dir(self.directory.path()).expect("lists").flatten();
        found.extend(files.map(|file| file.file_name().display().to_string()).filter(|name| name.starts_with(OURS)));
        found
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
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

const UNIT: u64 = 64 << 10;

#[test]
fn a_disk_of_a_running_machine_stands_still_and_tells_what_changed() {
    let Some(machine) = Machine::if_qemu("qcow2") else { return };
    machine.write(1, 0, 4 << 20);
    let mut driver = machine.driver();
    let first = driver.begin(&[None]).expect("begins").remove(0);
    assert!(first.map.is_none() && first.without_map.is_none());
    let token = first.token.clone();
    // Written behind the point in time.
    machine.write(9, UNIT, UNIT);
    let (content, _) = read(&first);
    assert!(content[..4 << 20].iter().all(|byte| *byte == 1) && content[4 << 20..].iter().all(|byte| *byte == 0));
    driver.check(0).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    let name = |token: &Option<String>| format!("{OURS}{}", token.as_deref().unwrap_or_default());
    assert_eq!(machine.leftovers(), [name(&token)]);

    machine.write(2, 8 << 20, UNIT);
    let second = driver.begin(&[token.clone()]).expect("begins").remove(0);
    assert_eq!((&second.token_from, second.dirty_bytes), (&token, Some(2 * UNIT)));
    let (content, dirty) = read(&second);
    assert_eq!(dirty, [(UNIT, 2 * UNIT), (8 << 20, (8 << 20) + UNIT)]);
    assert!(content[UNIT as usize] == 9 && content[8 << 20] == 2);
    // It fails: the next one begins at the same state, and has what was written meanwhile.
    machine.write(3, 12 << 20, UNIT);
    driver.end(0, Verdict::Failed).expect("ends");
    assert_eq!(machine.leftovers(), [name(&token)]);

    // A run that is killed leaves all of it, and the next one lets go.
    let killed = machine.driver().begin(&[token.clone()]).expect("begins").remove(0);
    assert!(killed.map.is_some());
    let third = driver.begin(&[token.clone()]).expect("begins").remove(0);
    let (content, dirty) = read(&third);
    assert_eq!(dirty.last(), Some(&(12 << 20, (12 << 20) + UNIT)));
    assert_eq!((dirty.len(), content[12 << 20]), (3, 3));
    driver.check(0).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    assert_eq!(machine.leftovers(), [name(&third.token)]);
}

#[test]
fn bitmaps_that_a_killed_machine_leaves_cost_a_full_read() {
    let Some(mut machine) = Machine::if_qemu("qcow2") else { return };
    machine.write(1, 0, UNIT);
    let mut driver = machine.driver();
    let first = driver.begin(&[None]).expect("begins").remove(0);
    driver.end(0, Verdict::Stored).expect("ends");
    machine.write(1, 0, UNIT);
    machine.kill_and_start();
    let again = driver.begin(&[first.token.clone()]).expect("begins").remove(0);
    assert!(again.map.is_none() && again.token_from.is_none());
    let why = again.without_map.clone().expect("is told");
    assert!(why.contains("inconsistent") || why.contains("has no bitmap"), "{why}");
    assert_eq!(read(&again).0[0], 1);
    driver.check(0).expect("stood still");
    driver.end(0, Verdict::Stored).expect("ends");
    assert_eq!(machine.leftovers().len(), 1);
}

#[test]
fn a_monitor_that_cannot_be_used_is_named() {
    let error = Qmp::new(PathBuf::from("/none/qmp"), vec![("drive0".to_owned(), "/tmp".into())]).begin(&[None]);
    assert!(error.expect_err("is not there").contains("cannot connect to the monitor /none/qmp"));
    let Some(machine) = Machine::if_qemu("raw") else { return };
    let mut driver = Qmp::new(machine.directory.path().join("qmp"), vec![("none".to_owned(), "/tmp".into())]);
    assert!(driver.begin(&[None]).expect_err("is not there").contains("no block node none"));
    let mut driver = Qmp::new(machine.directory.path().join("qmp"), vec![("drive0".to_owned(), "/none/such".into())]);
    let error = driver.begin(&[None]).expect_err("has no room");
    assert!(error.contains("/none/such"), "{error}");
    assert_eq!(machine.leftovers(), [""; 0]);
    // A raw disk: its bitmap lives as long as qemu.
    let mut driver = machine.driver();
    let first = driver.begin(&[None]).expect("begins").remove(0);
    driver.end(0, Verdict::Stored).expect("ends");
    let second = driver.begin(&[first.token]).expect("begins").remove(0);
    assert!(second.map.is_some());
    driver.end(0, Verdict::Stored).expect("ends");
}
