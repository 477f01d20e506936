//! Batches of disks whose store keeps snapshots, with stand-ins for the programs of the store (`stores.py`), and of guests with an agent.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::{DEDUPFS, END_TIMEOUT, Ran, Site, output_of};

const BLOCK_BYTES: usize = 65_536;
const BLOCKS: usize = 64;

struct Store {
    site: Site,
    volume: Vec<u8>,
}

impl Store {
    fn if_fuse() -> Option<Self> {
        let site = Site::if_fuse()?;
        site.mount().ok();
        let volume = (0..BLOCKS * BLOCK_BYTES).map(|at| (at / 4096 * 11 + at % 251) as u8).collect();
        let store = Self { site, volume };
        fs::create_dir_all(store.at("snapshots")).unwrap();
        fs::create_dir(store.at("programs")).unwrap();
        let program = store.at("stores.py");
        fs::write(&program, include_str!("stores.py")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["lvs", "lvcreate", "lvremove", "dmsetup", "thin_delta", "rbd", "qemu-nbd"] {
            symlink(&program, store.at("programs").join(name)).unwrap();
        }
        fs::write(store.at("volume"), &store.volume).unwrap();
        Some(store)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.site.root.path().join(name)
    }

    fn write(&mut self, block: usize, pattern: u8) {
        self.volume[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(pattern);
        let file = fs::File::options().write(true).open(self.at("volume")).unwrap();
        file.write_all_at(&self.volume[block * BLOCK_BYTES..][..BLOCK_BYTES], (block * BLOCK_BYTES) as u64).unwrap();
    }

    fn snapshots(&self) -> usize {
        fs::read_dir(self.at("snapshots")).unwrap().count()
    }

    /// Runs a plan with this disk.
    fn run(&self, source: &str, host: &str, disk: &str) -> Ran {
        let ran = output_of(&mut self.command(source, host, disk));
        // Names of versions have seconds.
        std::thread::sleep(Duration::from_millis(1100));
        ran
    }

    fn command(&self, source: &str, host: &str, disk: &str) -> Command {
        let plan = format!(
            "pool = {:?}\nretries = 0\nkeep = {{ last = 2 }}\nverify = \"full\"\n[[host]]\nname = \"h\"\n{host}\n\
             [[disk]]\nname = \"vda\"\nhost = \"h\"\nsource = {source:?}\n{disk}\n",
            self.site.mnt
        );
        fs::write(self.at("plan.toml"), plan).unwrap();
        let path = format!("{}:{}", self.at("programs").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(DEDUPFS);
        command.args(["batch", "--json"]).arg(self.at("plan.toml")).stdin(Stdio::null());
        command.env("PATH", path).env("STORE", self.site.root.path());
        command
    }

    #[track_caller]
    fn assert_newest_is_the_volume(&self) {
        let mut versions: Vec<PathBuf> =
            fs::read_dir(self.site.mnt.join("vda")).unwrap().map(|entry| entry.unwrap().path()).collect();
        versions.sort();
        let newest = versions.pop().unwrap();
        let file = newest.join("volume");
        assert!(fs::read(file).unwrap() == self.volume);
    }
}

fn disk(ran: &Ran) -> Value {
    let report: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    report["disks"][0].clone()
}

/// Nights of one disk, whose snapshots are told by the store.
fn nights(source: &str) {
    let Some(mut store) = Store::if_fuse() else { return };
    let first = disk(&store.run(source, "", "").ok());
    assert!(first["token"].is_string(), "{first}");
    store.assert_newest_is_the_volume();
    store.write(7, 1);
    store.write(50, 2);
    let second = disk(&store.run(source, "", "").ok());
    assert!(second["full_because"].is_null(), "{second}");
    let read_bytes = second["read_bytes"].as_u64().unwrap();
    assert!((2 * BLOCK_BYTES as u64..6 * BLOCK_BYTES as u64).contains(&read_bytes), "{second}");
    store.assert_newest_is_the_volume();
    assert_eq!((store.snapshots(), &second["pruned"]), (1, &json!([])));
    // Somebody removes it.
    fs::remove_dir_all(store.at("snapshots")).unwrap();
    fs::create_dir(store.at("snapshots")).unwrap();
    let third = disk(&store.run(source, "rate = 1_000_000_000", "").ok());
    assert!(third["full_because"].as_str().is_some_and(|why| why.contains("no snapshot")), "{third}");
    assert_eq!(third["pruned"].as_array().map(Vec::len), Some(1), "{third}");
    // Nothing changed.
    let fourth = disk(&store.run(source, "", "").ok());
    assert!(fourth["full_because"].is_null() && fourth["read_bytes"] == 0, "{fourth}");
    store.assert_newest_is_the_volume();
    assert_eq!(store.snapshots(), 1);
    store.site.umount().ok();
}

#[test]
fn a_thin_volume_is_read_by_the_differences_of_its_snapshots() {
    nights("lvm-thin:vg/volume");
    let Some(store) = Store::if_fuse() else { return };
    for (source, why) in [
        ("lvm-thin:vg/thick", "not in a thin pool"),
        ("lvm-thin:vg/none", "there is no volume vg/none"),
        ("lvm-thin:none/volume", "Volume group \"none\" not found"),
    ] {
        store.run(source, "", "").expect(9, &[why]);
    }
    store.run("lvm-thin:vg/volume", "", "").ok();
    // A map that cannot be used costs time, and no backup.
    fs::write(store.at("cut"), "").unwrap();
    let told = disk(&store.run("lvm-thin:vg/volume", "", "").ok());
    assert!(told["full_because"].as_str().is_some_and(|why| why.contains("it is cut")), "{told}");
    fs::remove_file(store.at("cut")).unwrap();
    // The volume was replaced by one of another thin pool: numbers of its snapshots mean nothing there.
    let names: Vec<String> = fs::read_dir(store.at("snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    fs::write(store.at("moved"), names.join(" ")).unwrap();
    let told = disk(&store.run("lvm-thin:vg/volume", "", "").ok());
    assert!(told["full_because"].as_str().is_some_and(|why| why.contains("no snapshot")), "{told}");
    store.assert_newest_is_the_volume();
    store.site.umount().ok();
}

#[test]
fn a_group_begins_as_a_whole_or_not_at_all() {
    let Some(store) = Store::if_fuse() else { return };
    let other =
        "group = \"web\"\n[[disk]]\nname = \"vdb\"\nhost = \"h\"\ngroup = \"web\"\nsource = \"lvm-thin:vg/thick\"";
    let ran = store.run("lvm-thin:vg/volume", "", other);
    ran.expect(9, &["vda: attempt 1 of 1: another disk of its group cannot begin", "\"failed\":2"]);
    assert_eq!(store.snapshots(), 0);
    store.site.umount().ok();
}

#[test]
fn an_image_of_ceph_is_served_by_a_program_that_ends_with_the_batch() {
    if Command::new("qemu-nbd").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("DEDUPFS_REQUIRE_QEMU").is_none(), "qemu-nbd is missing");
        eprintln!("NOT RUN: qemu-nbd is missing");
        return;
    }
    nights("rbd:pool/volume user=backup");
    let Some(store) = Store::if_fuse() else { return };
    store.run("rbd:pool/none user=backup", "", "").expect(9, &["error opening image pool/none"]);
    store.run("rbd:pool/volume user=backup", "", "").ok();
    // Slow enough to be killed in between.
    let mut killed = store.command("rbd:pool/volume user=backup", "rate = 65536", "");
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let serves = || {
        let mut found = Command::new("pgrep");
        found.args(["-f", &format!("filename={}", store.at("snapshots").display())]);
        found.stdout(Stdio::null()).status().unwrap().success()
    };
    let until = |served: bool| {
        let deadline = Instant::now() + END_TIMEOUT;
        while serves() != served {
            assert!(Instant::now() < deadline, "qemu-nbd serves: {}", !served);
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until(true);
    killed.kill().unwrap();
    killed.wait().unwrap();
    until(false);
    assert_eq!(store.snapshots(), 2);
    let next = disk(&store.run("rbd:pool/volume user=backup", "", "").ok());
    assert!(next["full_because"].is_null(), "{next}");
    assert_eq!(store.snapshots(), 1, "what it left is gone");
    store.site.umount().ok();
}

#[test]
fn a_guest_holds_its_changes_for_the_moment_of_the_checkpoint_alone() {
    let Some(store) = Store::if_fuse() else { return };
    let socket = store.at("qga");
    let listener = UnixListener::bind(&socket).unwrap();
    let snapshots = store.at("snapshots");
    let agent = std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut client = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        while matches!(client.read_line(&mut line), Ok(1..)) {
            let question: Value = serde_json::from_str(&line).unwrap();
            line.clear();
            let command = question["execute"].as_str().unwrap().to_owned();
            let answer = if command == "guest-sync" { question["arguments"]["id"].clone() } else { json!(2) };
            writeln!(client.get_mut(), "{}", json!({ "return": answer })).unwrap();
            seen.push((command, fs::read_dir(&snapshots).unwrap().count()));
        }
        seen
    });
    let quiesce = format!("quiesce = \"qga:{}\"", socket.display());
    store.run("lvm-thin:vg/volume", "", &quiesce).ok();
    let expected = [("guest-sync", 0), ("guest-fsfreeze-freeze", 0), ("guest-fsfreeze-thaw", 1)]
        .map(|(command, count)| (command.to_owned(), count));
    assert_eq!(agent.join().unwrap(), expected);
    // Without its agent the disk is stored, and the problem told.
    let ran = store.run("lvm-thin:vg/volume", "", &quiesce).expect(9, &["not quiesced"]);
    assert_eq!(disk(&ran)["outcome"], "stored");
    store.assert_newest_is_the_volume();
    store.site.umount().ok();
}
