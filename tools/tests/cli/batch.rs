//! Batches: plans, sources of each kind, disks that fail, messages, exit codes and JSON.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dedupfs_batch::testing::{DISK_BYTES as MACHINE_BYTES, Machine};
use dedupfs_nbd::testing::{BITMAP, Export, Kind, Server, UNIT_BYTES};
use serde_json::Value;

use crate::site::{DEDUPFS, Ran, Site, run};

const DISK_BYTES: usize = 4 << 20;

struct Night {
    site: Site,
}

impl Night {
    fn if_fuse() -> Option<Self> {
        let site = Site::if_fuse()?;
        site.mount().ok();
        Some(Self { site })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.site.root.path().join(name)
    }

    fn disk(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        let bytes: Vec<u8> = (0..DISK_BYTES).map(|at| (at / 4096 * 7 + at % 251) as u8).collect();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs a plan with one host, these lines at its top, and these disks: name, source, and further lines.
    fn run(&self, top: &str, disks: &[(&str, &str, &str)], options: &[&str]) -> Ran {
        let mut plan = format!(
            "pool = {:?}\nretry_after = \"0s\"\n{top}\n[[host]]\nname = \"kvm1\"\nreaders = 2\n",
            self.site.mnt
        );
        for (name, source, more) in disks {
            plan += &format!("[[disk]]\nname = {name:?}\nhost = \"kvm1\"\nsource = {source:?}\n{more}\n");
        }
        let path = self.at("plan.toml");
        fs::write(&path, plan).unwrap();
        let words = [&["batch"], options, &[path.to_str().unwrap()]].concat();
        run(DEDUPFS, &words)
    }

    fn versions(&self, disk: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.site.mnt.join(disk)) else { return Vec::new() };
        let mut versions: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        versions.sort();
        versions
    }

    #[track_caller]
    fn assert_newest_is(&self, disk: &str, source: &Path) {
        let newest = self.versions(disk).pop().unwrap();
        let file = fs::read_dir(&newest).unwrap().next().unwrap().unwrap().path();
        assert!(fs::read(file).unwrap() == fs::read(source).unwrap(), "{}", newest.display());
    }
}

#[track_caller]
fn disks(ran: &Ran) -> Vec<Value> {
    let report: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    report["disks"].as_array().unwrap_or_else(|| panic!("{report}")).clone()
}

/// Names of versions have seconds.
fn next_second() {
    std::thread::sleep(std::time::Duration::from_millis(1100));
}

#[test]
fn each_disk_of_a_plan_becomes_a_version_of_which_the_next_reads_only_changes() {
    let Some(night) = Night::if_fuse() else { return };
    let [one, two] = ["one.raw", "two.raw"].map(|name| night.disk(name));
    fs::write(night.at("map"), "0 4096\n").unwrap();
    let program = night.at("program");
    // A hypervisor that counts its checkpoints.
    let text = format!(
        r#"case $1 in
            begin) echo $(( $(cat {0}/count || echo 0) + 1 )) >{0}/count
                echo "{{\"source\":\"{1}\",\"token\":\"t$(cat {0}/count)\",\"token_from\":\"$2\",\"map\":\"{0}/map\"}}" ;;
            *) echo $1 >>{0}/told ;;
        esac"#,
        night.site.root.path().display(),
        two.display()
    );
    fs::write(&program, text).unwrap();
    let disks_of_plan = [
        ("web/vda", format!("file:{}", one.display()), "priority = 1"),
        ("web/vdb", format!("exec:/bin/sh argument={}", program.display()), "group = \"web\""),
    ];
    let disks_of_plan: Vec<(&str, &str, &str)> =
        disks_of_plan.iter().map(|(name, source, more)| (*name, source.as_str(), *more)).collect();
    let top = "keep = { last = 1 }\nfull_verify_every = \"1d\"";
    night
        .run(top, &disks_of_plan, &["--dry-run"])
        .expect(0, &["web/vda on kvm1", "no version yet", "the night takes some"]);
    assert!(!night.site.mnt.join("web").exists());
    night.run(top, &disks_of_plan, &[]).expect(0, &["web/vda: 20", "2 disks stored, 0 failed, 0 not begun"]);
    for (disk, source) in [("web/vda", &one), ("web/vdb", &two)] {
        night.assert_newest_is(disk, source);
    }
    fs::File::options().write(true).open(&two).unwrap().write_all_at(b"changed", 100).unwrap();
    next_second();
    night.run(top, &disks_of_plan, &["--dry-run"]).expect(0, &["token t1"]);
    let ran = night.run(top, &disks_of_plan, &["--json"]).ok();
    let told = disks(&ran);
    assert_eq!((&told[1]["token"], &told[1]["outcome"]), (&"t2".into(), &"stored".into()), "{}", ran.out);
    assert!(told[1]["read_bytes"].as_u64() < Some(200_000) && told[1]["full_because"].is_null(), "{}", ran.out);
    assert!(told[0]["full_because"].as_str().is_some_and(|why| why.contains("tells no changes")), "{}", ran.out);
    night.assert_newest_is("web/vdb", &two);
    assert_eq!(fs::read_to_string(night.at("told")).unwrap(), "check\nstored\ncheck\nstored\n");
    assert_eq!(["web/vda", "web/vdb"].map(|disk| night.versions(disk).len()), [1, 1], "one is kept");
    night.site.umount().ok();
}

#[test]
fn disks_that_fail_are_tried_again_and_do_not_stop_the_others() {
    let Some(night) = Night::if_fuse() else { return };
    let good = night.disk("good.raw");
    let program = night.at("program");
    // It stands still at the second attempt only.
    let text = format!(
        r#"case $1 in
            begin) echo "{{\"source\":\"{}\"}}" ;;
            check) test -e {1}/once || {{ touch {1}/once; exit 1; }} ;;
            *) echo $1 >>{1}/told ;;
        esac"#,
        good.display(),
        night.site.root.path().display()
    );
    fs::write(&program, text).unwrap();
    let good_source = format!("file:{}", good.display());
    let exec = format!("exec:/bin/sh argument={}", program.display());
    let plan = [
        ("absent", "file:/none/such.raw", ""),
        ("qemu", "qmp:/none/qmp node=drive0 scratch=/none", ""),
        ("host", "nbd:nbd+unix:///x?socket=/none/nbd", ""),
        ("moves", exec.as_str(), ""),
        ("good", good_source.as_str(), ""),
    ];
    let ran =
        night.run("retries = 1", &plan, &["--json"]).expect(9, &["absent: attempt 1 of 2: cannot open /none/such.raw"]);
    let told = disks(&ran);
    let outcomes: Vec<&str> = told.iter().filter_map(|disk| disk["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["failed", "failed", "failed", "stored", "stored"], "{}", ran.out);
    for (place, why) in [(0, "cannot open"), (1, "cannot connect to the monitor"), (2, "cannot connect to nbd+unix")] {
        assert!(told[place]["problems"][0].as_str().is_some_and(|problem| problem.contains(why)), "{}", told[place]);
        assert_eq!(told[place]["attempts"], 2);
    }
    assert!(ran.err.contains("the batch does not let the version have its name"), "{}", ran.err);
    assert_eq!((night.versions("moves").len(), &told[3]["attempts"]), (1, &2.into()));
    assert_eq!(fs::read_to_string(night.at("told")).unwrap(), "failed\nstored\n");
    night.assert_newest_is("good", &good);
    night.run("", &plan, &["--only", "g*d"]).expect(0, &["1 disk stored, 0 failed"]);
    night.site.umount().ok();
}

#[test]
fn regression_a_disk_whose_versions_cannot_be_looked_up_does_not_stop_the_others() {
    let Some(night) = Night::if_fuse() else { return };
    let source = format!("file:{}", night.disk("one.raw").display());
    let blocking = night.site.mnt.join("db");
    fs::write(&blocking, "no directory").unwrap();
    let plan = [("db/vda", &*source, ""), ("web/vda", &*source, "")];
    night
        .run("", &plan, &["--dry-run"])
        .expect(9, &["db/vda on kvm1", "NOT TO BE BEGUN", "web/vda on kvm1", "no version yet"]);
    night.run("", &plan, &[]).expect(9, &["db/vda: NOT BEGUN", "1 disk stored, 0 failed, 1 not begun"]);
    night.assert_newest_is("web/vda", &night.at("one.raw"));
    assert_eq!(fs::read(&blocking).unwrap(), b"no directory");
    night.site.umount().ok();
}

#[test]
fn a_bitmap_of_an_nbd_server_that_lies_is_told() {
    let Some(night) = Night::if_fuse() else { return };
    let disk = night.disk("disk.raw");
    let program = night.at("program");
    let exec = format!("exec:/bin/sh argument={}", program.display());
    let run = |token: &str, dirty: std::ops::Range<u64>| {
        let socket = night.at(token);
        let export = Export { name: "vda".to_owned(), content: fs::read(&disk).unwrap(), dirty_units: vec![dirty] };
        let _server = Server::at(&socket, export, Kind::Good);
        let point = format!(
            r#"{{\"source\":\"nbd+unix:///vda?socket={}\",\"map\":\"nbd:{BITMAP}\",\"token\":\"{token}\",\"token_from\":\"$2\"}}"#,
            socket.display()
        );
        fs::write(&program, format!("case $1 in begin) echo \"{point}\" ;; esac")).unwrap();
        let ran = night.run("verify = \"full\"", &[("vda", &exec, "")], &["--json"]);
        next_second();
        ran
    };
    let write = |bytes: &[u8], unit| {
        fs::File::options().write(true).open(&disk).unwrap().write_all_at(bytes, unit * UNIT_BYTES).unwrap();
    };
    run("t1", 0..0).ok();
    write(b"changed", 5);
    let told = disks(&run("t2", 5..6).ok());
    assert!(told[0]["full_because"].is_null() && told[0]["exit_code"] == 0, "{told:?}");
    write(b"again", 9);
    let told = disks(&run("t3", 5..6).expect(9, &["its map of changes is wrong"]));
    assert_eq!((&told[0]["exit_code"], &told[0]["outcome"]), (&10.into(), &"stored".into()), "{told:?}");
    night.assert_newest_is("vda", &disk);
    night.site.umount().ok();
}

#[test]
fn a_running_machine_is_backed_up_night_by_night_also_after_it_was_killed() {
    let Some(night) = Night::if_fuse() else { return };
    let Some(mut machine) = Machine::if_qemu("qcow2") else { return };
    let source = format!("qmp:{} node=drive0 scratch={}", machine.monitor().display(), machine.directory().display());
    let mut expected = vec![0; MACHINE_BYTES as usize];
    let mut write = |machine: &Machine, pattern: u8, unit: u64| {
        machine.write(pattern, unit * UNIT_BYTES, UNIT_BYTES);
        expected[(unit * UNIT_BYTES) as usize..][..UNIT_BYTES as usize].fill(pattern);
        expected.clone()
    };
    let newest = |expected: &[u8]| {
        let version = night.versions("vm/vda").pop().unwrap();
        assert!(fs::read(version.join("disk0")).unwrap() == expected, "{}", version.display());
    };
    let run = || {
        let told = disks(&night.run("verify = \"full\"", &[("vm/vda", &source, "")], &["--json"]).ok());
        next_second();
        told[0].clone()
    };
    let expected = write(&machine, 1, 3);
    let first = run();
    assert!(first["token"].is_string() && first["full_because"].is_string(), "{first}");
    newest(&expected);
    let expected = write(&machine, 2, 200);
    let second = run();
    assert!(second["full_because"].is_null() && second["read_bytes"].as_u64() < Some(6 * UNIT_BYTES), "{second}");
    newest(&expected);
    let expected = write(&machine, 3, 7);
    machine.kill_and_start();
    let third = run();
    assert!(third["full_because"].as_str().is_some_and(|why| why.contains("bitmap")), "{third}");
    newest(&expected);
    let fourth = run();
    assert!(fourth["full_because"].is_null() && fourth["read_bytes"] == 0, "{fourth}");
    newest(&expected);
    night.site.umount().ok();
}

#[test]
fn plans_that_make_no_sense_are_refused_and_nothing_is_begun() {
    let Some(night) = Night::if_fuse() else { return };
    let disk = format!("file:{}", night.disk("disk.raw").display());
    let one = [("vda", disk.as_str(), "")];
    night.run("colour = 1", &one, &[]).expect(2, &["is no plan", "colour"]);
    night.run("", &[], &[]).expect(2, &["0 disks"]);
    night.run("", &[one[0], one[0]], &[]).expect(2, &["two disks have the name vda"]);
    night.run("", &[("vda", "tape:/dev/st0", "")], &[]).expect(2, &["tape"]);
    night.run("", &one, &["--only", "none"]).expect(2, &["no disk of the plan"]);
    night.run("", &one, &["--only", "["]).expect(2, &["--only ["]);
    run(DEDUPFS, &["batch", "/none/plan.toml"]).expect(1, &["cannot read the plan /none/plan.toml"]);
    let now = hour_now();
    let window = format!("window = {{ start = \"{:02}:00\", end = \"{:02}:00\" }}", (now + 2) % 24, (now + 4) % 24);
    night.run(&window, &one, &[]).expect(9, &["vda: NOT BEGUN", "--now begins disks at any time"]);
    assert_eq!(fs::read_dir(&night.site.mnt).unwrap().count(), 0, "nothing is begun");
    night.run(&window, &one, &["--now"]).expect(0, &["1 disk stored"]);
    night.site.umount().ok();
}

/// The hour of the day, by the clock of this machine.
fn hour_now() -> u32 {
    let date = std::process::Command::new("date").arg("+%H").output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn a_dry_run_tells_what_the_window_does_not_suffice_for() {
    let Some(night) = Night::if_fuse() else { return };
    let [one, two] = ["one.raw", "two.raw"].map(|name| format!("file:{}", night.disk(name).display()));
    // Each is read for 4096 s, so the first ends, and the second begins, behind the end.
    let plan = |more: &str| {
        let text = format!(
            "pool = {:?}\nwindow = {{ start = \"22:00\", end = \"23:00\"{more} }}\n[[host]]\nname = \"kvm1\"\nassumed_rate = 1024\n\
             [[disk]]\nname = \"a\"\nhost = \"kvm1\"\nsource = {one:?}\n[[disk]]\nname = \"b\"\nhost = \"kvm1\"\nsource = {two:?}\n",
            night.site.mnt
        );
        fs::write(night.at("plan.toml"), text).unwrap();
        run(DEDUPFS, &["batch", "--dry-run", "--json", night.at("plan.toml").to_str().unwrap()])
    };
    let misses = |ran: &Ran| disks(ran).iter().map(|disk| disk["misses_window"].as_bool().unwrap()).collect::<Vec<_>>();
    let finish = plan("");
    assert_eq!((finish.code, misses(&finish)), (9, vec![false, true]));
    assert_eq!(disks(&finish)[0]["estimated_bytes"], DISK_BYTES);
    let stop = plan(", at_end = \"stop\"");
    assert_eq!((stop.code, misses(&stop)), (9, vec![true, true]));
    night.site.umount().ok();
}

#[test]
fn regression_a_dry_run_names_sources_that_are_not_there() {
    let Some(night) = Night::if_fuse() else { return };
    let good = format!("file:{}", night.disk("good.raw").display());
    let gone = format!("file:{}", night.at("gone.raw").display());
    let directory = format!("file:{}", night.site.root.path().display());
    let disks_of_plan = [("good", good.as_str(), ""), ("gone", &gone, ""), ("directory", &directory, "")];
    let ran = night.run("", &disks_of_plan, &["--dry-run"]);
    ran.expect(
        9,
        &["NOT TO BE BEGUN: cannot open", "gone.raw", "neither a regular file nor a block device", "some 4 MiB from"],
    );
    night.run("", &disks_of_plan, &["--simulate"]).expect(9, &["gone NOT TO BE BEGUN"]);
    assert_eq!(fs::read_dir(&night.site.mnt).unwrap().count(), 0, "nothing is begun");
    night.site.umount().ok();
}

/// The good one was stored, and the guide says that a group begins as a whole.
#[test]
fn regression_a_group_with_a_file_that_is_not_there_is_not_begun() {
    let Some(night) = Night::if_fuse() else { return };
    let good = format!("file:{}", night.disk("good.raw").display());
    let gone = format!("file:{}", night.at("gone.raw").display());
    let group = [("good", good.as_str(), "group = \"g\""), ("gone", &gone, "group = \"g\""), ("alone", &good, "")];
    let planned = night.run("", &group, &["--dry-run"]);
    planned.expect(9, &["NOT TO BE BEGUN: cannot open", "NOT TO BE BEGUN: another disk of its group cannot begin"]);
    night.run("", &group, &["--simulate"]).expect(9, &["disks: 1, in units", "gone NOT TO BE BEGUN"]);
    let ran = night.run("retries = 0", &group, &[]);
    ran.expect(9, &["another disk of its group cannot begin", "1 disk stored, 2 failed, 0 not begun"]);
    assert_eq!(["good", "gone", "alone"].map(|disk| night.versions(disk).len()), [0, 0, 1]);
    night.site.umount().ok();
}

#[test]
fn a_simulation_tells_the_night_of_each_order_and_begins_nothing() {
    let Some(night) = Night::if_fuse() else { return };
    let source = format!("file:{}", night.disk("disk.raw").display());
    let disks: String =
        (0..3).map(|number| format!("[[disk]]\nname = \"{number}\"\nhost = \"h\"\nsource = {source:?}\n")).collect();
    let plan = |readers: usize| {
        let text = format!(
            "pool = {:?}\n[[host]]\nname = \"h\"\nreaders = {readers}\nassumed_rate = {DISK_BYTES}\n{disks}",
            night.site.mnt
        );
        fs::write(night.at("plan.toml"), text).unwrap();
        run(DEDUPFS, &["batch", "--simulate", "--json", night.at("plan.toml").to_str().unwrap()])
    };
    let told = |readers: usize, schedule: &str| {
        let ran = plan(readers).ok();
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let nights = report["nights"].as_array().unwrap();
        let night = nights.iter().find(|night| night["schedule"] == schedule).unwrap_or_else(|| panic!("{report}"));
        ["span_secs", "mean_life_secs", "longest_life_secs", "rounds"].map(|member| night[member].as_u64())
    };
    // At the whole rate each disk takes a second.
    assert_eq!(told(1, "mixed"), [Some(3), Some(1), Some(1), None]);
    assert_eq!(told(3, "longest"), [Some(3), Some(3), Some(3), None]);
    // A round reads twice. Three rounds of one disk each are as long as one of three, and the snapshots live for a third of that.
    assert_eq!(told(1, "dbp2"), [Some(6), Some(2), Some(2), Some(3)]);
    let path = night.at("plan.toml");
    run(DEDUPFS, &["batch", "--simulate", path.to_str().unwrap()]).expect(0, &["mixed (the plan's)", "bpl, 3 rounds"]);
    run(DEDUPFS, &["batch", "--simulate", "--dry-run", path.to_str().unwrap()]).expect(2, &["cannot be used with"]);
    assert_eq!(fs::read_dir(&night.site.mnt).unwrap().count(), 0, "nothing is begun");
    night.site.umount().ok();
}
