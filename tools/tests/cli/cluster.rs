//! Disks of several machines into one pool. Here machines are processes with addresses of their own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::site::{DEDUPFS, Ran, Site, run};

const MIB: usize = 1 << 20;
const NAMES: [&str; 3] = ["a", "b", "c"];

struct Machines {
    site: Site,
    ports: Vec<u16>,
    plan: PathBuf,
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

impl Machines {
    fn if_fuse(count: usize) -> Option<Self> {
        let site = Site::if_fuse()?;
        site.mount().ok();
        fs::create_dir(site.root.path().join("work")).unwrap();
        let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let plan = site.root.path().join("plan.toml");
        Some(Self { site, ports, plan })
    }

    fn source(&self, disk: &str) -> PathBuf {
        self.site.root.path().join(disk)
    }

    /// Writes the plan of a night: disks, each with its machine and further lines.
    fn plan(&self, night: &str, rounds: usize, disks: &[(&str, &str, &str)]) {
        let work = self.site.root.path().join("work");
        let mut text = format!("pool = {:?}\nwork = {work:?}\nnight = \"{night}\"\nrounds = {rounds}\n", self.site.mnt);
        for (name, port) in NAMES.iter().zip(&self.ports) {
            text += &format!("[[machine]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
        }
        for (disk, machine, more) in disks {
            let source = self.source(disk);
            text += &format!("[[disk]]\nname = \"{disk}\"\nmachine = \"{machine}\"\nsource = {source:?}\n{more}\n");
        }
        fs::write(&self.plan, text).unwrap();
    }

    fn start(&self, machine: &str) -> Child {
        let mut command = Command::new(DEDUPFS);
        command.args(["cluster", "--json", "--join-within", "20", "--machine", machine]).arg(&self.plan);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs all machines to the end.
    fn run(&self) -> Vec<Ran> {
        let children: Vec<_> = NAMES.iter().take(self.ports.len()).map(|name| self.start(name)).collect();
        children.into_iter().map(ended).collect()
    }

    /// Waits until a machine has so many commits.
    fn wait_for_commits(&self, machine: &str, count: usize) {
        let directory = self.site.root.path().join("work").join(machine);
        let until = Instant::now() + Duration::from_secs(30);
        while walk(&directory) < count {
            assert!(Instant::now() < until, "{machine} commits nothing");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Puts a disk by itself, with a token, in place of a version.
    fn put(&self, disk: &str, night: &str, token: &str) {
        let version = self.site.mnt.join(disk).join(night);
        let renamed = self.site.mnt.join(disk).join("before");
        fs::rename(&version, renamed).unwrap();
        let words = [
            "put".into(),
            "--token".into(),
            token.into(),
            self.source(disk).into_os_string(),
            version.into_os_string(),
        ];
        run(DEDUPFS, &words).ok();
    }

    fn assert_restored(&self, disk: &str, night: &str) {
        let version = self.site.mnt.join(disk).join(night);
        let found = fs::read(version.join(disk)).unwrap();
        assert!(found == fs::read(self.source(disk)).unwrap(), "{disk} of {night}");
    }
}

/// Counts the commits below a directory.
fn walk(directory: &Path) -> usize {
    let jobs = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = jobs.flat_map(|job| fs::read_dir(job.path()).into_iter().flatten().flatten());
    files.filter(|file| !file.file_name().to_string_lossy().starts_with('.')).count()
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    Ran { line: "dedupfs cluster".to_owned(), code: output.status.code().unwrap_or(-1), out, err }
}

#[test]
fn disks_of_three_machines_are_stored_once_in_one_pool() {
    let Some(machines) = Machines::if_fuse(3) else { return };
    let (shared, own) = (noise(1, 6 * MIB), |seed| noise(seed, 3 * MIB));
    // All share content that the pool does not have yet; each has some of its own, and zeros.
    for (disk, seed) in [("one", 2), ("two", 3), ("three", 4)] {
        fs::write(machines.source(disk), [&shared[..], &vec![0; 2 * MIB], &own(seed)].concat()).unwrap();
    }
    let disks = [("one", "a", "assumed_bytes = 3"), ("two", "b", "assumed_bytes = 2"), ("three", "c", "")];
    machines.plan("1", 1, &disks);
    let ran = machines.run();
    let [first, others @ ..] = &ran[..] else { panic!() };
    assert!(
        ran.iter().all(|ran| ran.code == 0),
        "{}{}",
        first.err,
        others.iter().map(|ran| ran.err.clone()).collect::<String>()
    );
    let report: serde_json::Value = serde_json::from_str(&first.out).unwrap();
    let came: u64 = report["disks"].as_array().unwrap().iter().map(|disk| disk["read_bytes"].as_u64().unwrap()).sum();
    let all = (6 + 3 * 3) * MIB as u64;
    // What is shared travels once, but for chunks at its end.
    assert!((all - MIB as u64 / 4..all + MIB as u64 / 4).contains(&came), "{report}");
    for disk in ["one", "two", "three"] {
        machines.assert_restored(disk, "1");
    }
    // The next night tells changes of one disk. Another took over content of the third.
    let mut bytes = fs::read(machines.source("two")).unwrap();
    bytes[7 * MIB..][..5000].copy_from_slice(&noise(9, 5000));
    fs::write(machines.source("two"), &bytes).unwrap();
    let map = machines.source("map");
    fs::write(&map, format!("{} 5000\n", 7 * MIB)).unwrap();
    let changed = format!("changed = {map:?}\ntoken_from = \"1\"\ntoken = \"2\"");
    fs::write(machines.source("one"), own(4)).unwrap();
    machines.plan("2", 2, &[("one", "a", ""), ("two", "b", &changed), ("three", "c", "")]);
    let ran = machines.run();
    let report: serde_json::Value = serde_json::from_str(&ran[0].out).unwrap();
    // The base names no state: what was new is not enough.
    let of_two = report["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == "two").unwrap();
    assert_eq!(of_two["stored"], false, "{report}");
    // The machine of the disk says so, too.
    assert_eq!(ran.iter().map(|ran| ran.code).collect::<Vec<_>>(), [9, 9, 0], "{report}");
    // Started again, they try again what is missing.
    assert_eq!(machines.run().iter().map(|ran| ran.code).collect::<Vec<_>>(), [9, 9, 0]);
    machines.put("two", "1", "1");
    assert!(machines.run().iter().all(|ran| ran.code == 0), "the base has the state now");
    machines.assert_restored("two", "2");
    machines.plan("2 again", 1, &[("two", "b", "token = \"2\""), ("one", "a", "")]);
    assert!(machines.run().iter().all(|ran| ran.code == 0));
    // Another plan of the same night does not take these versions for its own.
    machines.plan("2 again", 1, &[("two", "b", "token = \"other\"")]);
    let ran = machines.run();
    assert!(ran[0].code == 9 && ran[0].out.contains("is there already"), "{}", ran[0].out);
    bytes[0] ^= 1;
    fs::write(machines.source("two"), &bytes).unwrap();
    fs::write(&map, "0 1\n").unwrap();
    let changed = format!("changed = {map:?}\ntoken_from = \"2\"\ntoken = \"3\"");
    machines.plan("3", 1, &[("two", "b", &changed)]);
    let ran = machines.run();
    assert!(ran.iter().all(|ran| ran.code == 0), "{}{}", ran[0].out, ran[1].err);
    let report: serde_json::Value = serde_json::from_str(&ran[0].out).unwrap();
    assert!(report["disks"][0]["read_bytes"].as_u64().unwrap() < MIB as u64 / 4, "{report}");
    assert!(
        serde_json::from_str::<serde_json::Value>(&ran[1].out).unwrap()["chunk_bytes"].as_u64() < Some(6 * MIB as u64)
    );
    for (disk, night) in [("one", "2"), ("three", "2"), ("one", "2 again"), ("two", "3")] {
        machines.assert_restored(disk, night);
    }
    machines.site.umount().ok();
    run(DEDUPFS, &["fsck".into(), "--read-data".into(), machines.site.pool.clone().into_os_string()]).ok();
}

#[test]
fn a_machine_that_is_killed_costs_a_round_at_most() {
    let Some(machines) = Machines::if_fuse(2) else { return };
    let disks = ["one", "two", "three", "four"];
    for (number, disk) in disks.iter().enumerate() {
        fs::write(machines.source(disk), noise(number as u64 + 1, 24 * MIB)).unwrap();
    }
    machines.plan("1", 2, &[("one", "a", ""), ("two", "b", ""), ("three", "a", ""), ("four", "b", "")]);
    for (victim, survivor, commits) in [("b", "a", 1), ("a", "b", 3)] {
        let (mut killed, survives) = (machines.start(victim), machines.start(survivor));
        // In the second round.
        machines.wait_for_commits("a", commits);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let begun = Instant::now();
        let again = machines.start(victim);
        let (again, survived) = (ended(again), ended(survives));
        assert_eq!((again.code, survived.code), (0, 0), "{}{}{}", again.err, survived.err, survived.out);
        assert!(begun.elapsed() < Duration::from_secs(60));
        disks.iter().for_each(|disk| machines.assert_restored(disk, "1"));
        let text = fs::read_to_string(&machines.plan).unwrap();
        fs::write(&machines.plan, text.replace("night = \"1\"", "night = \"2\"")).unwrap();
    }
    // All rounds are committed: nothing is left to do.
    let text = fs::read_to_string(&machines.plan).unwrap();
    fs::write(&machines.plan, text.replace("night = \"2\"", "night = \"1\"")).unwrap();
    assert!(machines.run().iter().all(|ran| ran.code == 0));
    // A version that was removed is put again.
    let gone = machines.site.mnt.join("two/1");
    run(DEDUPFS, &["forget".into(), gone.clone().into_os_string()]).ok();
    assert!(machines.run().iter().all(|ran| ran.code == 0) && gone.exists());
    machines.assert_restored("two", "1");
    machines.site.umount().ok();
    run(DEDUPFS, &["fsck".into(), machines.site.pool.clone().into_os_string()]).ok();
}

#[test]
fn a_disk_that_is_not_stored_takes_those_with_it_that_repeat_its_new_chunks() {
    let Some(machines) = Machines::if_fuse(2) else { return };
    for (seed, disk) in [(1, "one"), (2, "two")] {
        fs::write(machines.source(disk), noise(seed, 6 * MIB)).unwrap();
    }
    let first = "token = \"1\"";
    machines.plan("1", 1, &[("one", "a", first), ("two", "b", first)]);
    assert!(machines.run().iter().all(|ran| ran.code == 0));
    // The same new content on both.
    for disk in ["one", "two"] {
        let file = fs::File::options().write(true).open(machines.source(disk)).unwrap();
        file.write_all_at(&noise(3, 2 * MIB), 0).unwrap();
    }
    let map = machines.source("map");
    fs::write(&map, format!("0 {}\n", 2 * MIB)).unwrap();
    let since = |from: &str| format!("changed = {map:?}\ntoken_from = \"{from}\"\ntoken = \"2\"");
    machines.plan("2", 1, &[("one", "a", &since("other")), ("two", "b", &since("1"))]);
    let ran = machines.run();
    assert_eq!((ran[0].code, ran[1].code), (9, 9));
    assert!(
        ran[0].out.contains("the base is the state 1") && ran[0].out.contains("is not in the pool"),
        "{}",
        ran[0].out
    );
    // Mended, both are stored.
    machines.plan("2", 1, &[("one", "a", &since("1")), ("two", "b", &since("1"))]);
    assert!(machines.run().iter().all(|ran| ran.code == 0));
    ["one", "two"].iter().for_each(|disk| machines.assert_restored(disk, "2"));
    machines.site.umount().ok();
    run(DEDUPFS, &["fsck".into(), "--read-data".into(), machines.site.pool.clone().into_os_string()]).ok();
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_made() {
    let Some(machines) = Machines::if_fuse(2) else { return };
    fs::write(machines.source("one"), noise(1, MIB)).unwrap();
    machines.plan("1", 1, &[("one", "a", "")]);
    let cluster = |words: &[&str]| {
        let words = ["cluster"].iter().chain(words).map(std::ffi::OsString::from);
        run(DEDUPFS, &words.chain([machines.plan.clone().into_os_string()]).collect::<Vec<_>>())
    };
    cluster(&["--machine", "z"]).expect(2, &["the plan has no machine z", "a, b"]);
    cluster(&["--machine", "a", "--join-within", "1"]).expect(1, &["did not come"]);
    let text = fs::read_to_string(&machines.plan).unwrap();
    fs::write(&machines.plan, format!("chunk_bytes = 4096\n{text}")).unwrap();
    cluster(&["--machine", "a", "--join-within", "1"]).expect(2, &["write chunker = \"mincdc\", chunk_bytes = 8192"]);
    fs::write(&machines.plan, format!("chunker = \"other\"\n{text}")).unwrap();
    cluster(&["--machine", "b", "--join-within", "1"]).expect(2, &["does not know the chunker"]);
    fs::remove_file(machines.source("one")).unwrap();
    fs::write(&machines.plan, &text).unwrap();
    cluster(&["--machine", "a", "--join-within", "1"]).expect(1, &["disk one", "cannot open"]);
    assert!(!machines.site.mnt.join("one").exists());
    machines.site.umount().ok();
}
