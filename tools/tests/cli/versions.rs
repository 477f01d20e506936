//! Versions: command lines, messages, exit codes and JSON.

use std::fs;
use std::path::Path;

use crate::site::{DEDUPFS, Ran, Site, run};

/// Runs a command with words and paths.
fn dedupfs(words: &[&dyn AsRef<std::ffi::OsStr>]) -> Ran {
    run(DEDUPFS, &words.iter().map(|word| word.as_ref().to_owned()).collect::<Vec<_>>())
}

/// The tools tell what becomes of a file alone.
#[test]
fn a_file_alone_becomes_a_live_file_and_no_version() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let source = site.root.path().join("file");
    fs::write(&source, "content").unwrap();
    let [noted, silent] = ["noted", "silent"].map(|name| site.mnt.join(name));
    dedupfs(&[&"put", &source, &noted]).expect(0, &["becomes a live file", "only directories become versions"]);
    assert_eq!(dedupfs(&[&"put", &"--live", &source, &silent]).ok().err, "");
    fs::write(&noted, "changed").unwrap();
    dedupfs(&[&"list", &site.mnt]).expect(0, &["no versions in"]);
    let out = site.root.path().join("out");
    dedupfs(&[&"get", &noted, &out]).ok();
    assert_eq!(fs::read_to_string(&out).unwrap(), "changed");
    site.umount().ok();
}

/// Returns the only line of standard output, which is JSON of this type.
#[track_caller]
fn message(ran: &Ran, message_type: &str) -> serde_json::Value {
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&value["type"], &value["version"]), (&message_type.into(), &1.into()), "{}", ran.out);
    assert!(ran.out.starts_with(&format!("{{\"type\":\"{message_type}\",\"version\":1,")), "{}", ran.out);
    value
}

#[test]
fn command_lines_are_checked_before_anything_happens() {
    for args in [
        &["snapshot"][..],
        &["snapshot", "/m/a"],
        &["freeze"],
        &["freeze", "--time", "yesterday", "/m/a"],
        &["forget"],
        &["prune"],
        &["series"],
        &["series", "set"],
        &["series", "dance", "/m"],
    ] {
        run(DEDUPFS, args).expect(2, &["--help"]);
    }
    for (option, advice) in
        [("--keep-daily=x", "such as 7, or all"), ("--keep-within=5", "30d"), ("--free-until=101%", "80%")]
    {
        run(DEDUPFS, &["prune", "/m", option]).expect(2, &[advice]);
        run(DEDUPFS, &["series", "set", "/m", option]).expect(2, &[advice]);
    }
    for command in ["snapshot", "freeze", "list", "forget", "prune"] {
        run(DEDUPFS, &[command, "--help"]).expect(0, &["Exit codes", "--json"]);
    }
    for command in ["set", "show", "unset"] {
        run(DEDUPFS, &["series", command, "--help"]).expect(0, &["Exit codes", "--json"]);
    }
    run(DEDUPFS, &["--help"]).expect(0, &["snapshot", "freeze", "forget", "prune", "series"]);
}

#[test]
fn rules_that_keep_nothing_are_refused_before_the_pool_is_asked() {
    for rules in ["--keep-last=0", "--relative-to=now"] {
        run(DEDUPFS, &["prune", "/no/such", rules]).expect(2, &["keep no version", "--keep-none"]);
        run(DEDUPFS, &["series", "set", "/no/such", rules]).expect(2, &["keep no version"]);
    }
    run(DEDUPFS, &["series", "set", "/no/such"]).expect(2, &["give rules", "series unset"]);
    // With the option the path is looked at.
    run(DEDUPFS, &["prune", "/no/such", "--keep-none"]).expect(1, &["/no/such"]);
}

#[test]
fn places_outside_of_a_mount_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let (plain, file) = (root.path().join("plain"), root.path().join("file"));
    fs::create_dir(&plain).unwrap();
    fs::write(&file, "").unwrap();
    let new = plain.join("new");
    dedupfs(&[&"snapshot", &plain, &new]).expect(2, &["is in no mounted dedupfs", "dedupfs put"]);
    dedupfs(&[&"snapshot", &file, &new]).expect(2, &["is no directory"]);
    dedupfs(&[&"forget", &plain]).expect(2, &["is in no mounted dedupfs"]);
    dedupfs(&[&"forget", &"/"]).expect(2, &["names no version"]);
    dedupfs(&[&"prune", &plain, &"--keep-last", &"1"]).expect(2, &["is in no mounted dedupfs"]);
    dedupfs(&[&"prune", &file, &"--keep-last", &"1"]).expect(2, &["is no directory"]);
    dedupfs(&[&"series", &"show", &plain]).expect(2, &["is in no mounted dedupfs"]);
    dedupfs(&[&"list", &plain]).expect(3, &["is not a dedupfs pool"]);
    dedupfs(&[&"list", &"/no/such"]).expect(3, &["does not exist"]);
    // Several: each is told of.
    let ran = dedupfs(&[&"forget", &plain, &file, &"--json"]).expect(9, &[]);
    let failed = &message(&ran, "forget")["failed"];
    assert_eq!(failed.as_array().unwrap().len(), 2, "{failed}");
    assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);
}

#[test]
fn a_failure_is_json_too_if_that_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let plain = root.path();
    for (args, code) in [
        (&[&"list" as &dyn AsRef<std::ffi::OsStr>, &plain, &"--json"][..], 3),
        (&[&"forget", &plain, &"--json"], 2),
        (&[&"snapshot", &plain, &"/x", &"--json"], 2),
        (&[&"prune", &plain, &"--keep-last", &"0", &"--json"], 2),
        (&[&"series", &"show", &plain, &"--json"], 2),
    ] {
        let ran = dedupfs(args).expect(code, &[]);
        let told = message(&ran, "error");
        assert_eq!(told["code"], code, "{told}");
        let said = told["message"].as_str().unwrap();
        assert!(ran.err.trim_end().ends_with(said), "{} is not {said}", ran.err);
    }
}

#[test]
fn an_unmounted_pool_without_versions_says_how_to_make_one() {
    let site = Site::new();
    dedupfs(&[&"list", &site.pool]).expect(0, &["no versions in", "dedupfs put SOURCE MNT/DIR/NAME"]);
    let listed = message(&dedupfs(&[&"list", &site.pool, &"--json"]).ok(), "list");
    assert_eq!((&listed["versions"], &listed["totals"]["count"]), (&serde_json::json!([]), &0.into()));
}

#[test]
fn sources_and_places_of_versions_are_told_apart() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let [live, series, other] = ["live", "series", "other"].map(|name| site.mnt.join(name));
    [&live, &series, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(live.join("file"), "content").unwrap();
    let snapshot = |from: &Path, to: &Path| dedupfs(&[&"snapshot", &from, &to]);
    let first = series.join("first");
    let said = snapshot(&live, &first).expect(0, &["1 entries, 7 B, new 0 B, ", "fingerprint "]).out;
    assert_eq!(said.lines().count(), 1, "{said}");
    snapshot(&live, &first).expect(2, &["is there already"]);
    snapshot(&live.join("file"), &other.join("x")).expect(2, &["is no directory"]);
    snapshot(&first, &other.join("x")).expect(2, &["is a version, or lies in one"]);
    snapshot(&series, &other.join("x")).expect(2, &["first is a version"]);
    snapshot(&live, &first.join("x")).expect(2, &["lies in a version"]);
    snapshot(&live, &site.mnt.join("absent/x")).expect(1, &["create the directory first"]);
    snapshot(&live, &site.root.path().join("x")).expect(2, &["is not in the mount of the source"]);
    snapshot(&site.mnt.join("absent"), &other.join("x")).expect(1, &["absent"]);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "something was left");

    dedupfs(&[&"forget", &live]).expect(2, &["is no version: `rm -r`"]);
    dedupfs(&[&"forget", &live.join("file")]).expect(2, &["is no version: `rm`"]);
    dedupfs(&[&"forget", &first.join("file")]).expect(2, &["as a whole"]);
    dedupfs(&[&"forget", &series.join("none")]).expect(1, &["does not exist"]);
    let future = other.join("2098-01-01");
    fs::create_dir(&future).unwrap();
    dedupfs(&[&"freeze", &"--time", &"name", &future]).expect(2, &["is of the future", "--time now"]);
    fs::remove_dir(&future).unwrap();
    dedupfs(&[&"forget", &"-n", &first]).expect(0, &["would remove", "together that frees", "nothing was changed"]);
    dedupfs(&[&"forget", &"-n", &first, &live]).expect(9, &["would remove", "is no version: `rm -r`"]);
    assert!(first.exists());
    dedupfs(&[&"list", &first]).expect(2, &["is a version, or lies in one"]);
    dedupfs(&[&"series", &"set", &first, &"--keep-last", &"1"]).expect(2, &["is a version, or lies in one"]);
    dedupfs(&[&"prune", &series]).expect(2, &["no rules", "series set"]);
    dedupfs(&[&"put", &live, &site.mnt.join("x")]).expect(2, &["dedupfs snapshot"]);

    // A read-only mount shows versions, and changes nothing.
    site.umount().ok();
    site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new("-oro")]).ok();
    snapshot(&live, &other.join("x")).expect(1, &["mounted read-only"]);
    dedupfs(&[&"forget", &first]).expect(1, &["read-only"]);
    dedupfs(&[&"series", &"set", &series, &"--keep-last", &"1"]).expect(1, &["read-only"]);
    dedupfs(&[&"list", &site.mnt]).expect(0, &["/series", "first", "1 version"]);
    assert_eq!(fs::read_to_string(first.join("file")).unwrap(), "content");
    site.umount().ok();
    dedupfs(&[&"list", &site.pool]).expect(0, &["/series", "first", "1 version"]);
}

#[test]
fn results_as_json_have_a_type_and_a_version() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let (live, series) = (site.mnt.join("live"), site.mnt.join("series"));
    [&live, &series].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(live.join("file"), "content").unwrap();
    let names = ["1", "2", "3"].map(|name| series.join(name));
    let made = names.each_ref().map(|name| message(&dedupfs(&[&"snapshot", &live, name, &"--json"]).ok(), "snapshot"));
    assert_eq!(made[0]["fingerprint"], made[1]["fingerprint"], "equal trees");
    assert_eq!(made[2]["path"], names[2].to_str().unwrap());
    let listed = message(&dedupfs(&[&"list", &series, &"--json"]).ok(), "list");
    let of = |key: &str| {
        listed["versions"].as_array().unwrap().iter().map(|version| version[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("name"), ["1", "2", "3"]);
    assert_eq!(of("directory"), ["series", "series", "series"]);
    assert_eq!(of("source")[0], live.to_str().unwrap());
    assert_eq!(of("fingerprint")[0], made[0]["fingerprint"]);
    assert_eq!(listed["totals"], serde_json::json!({"count": 3, "files": 3, "logical_bytes": 21, "new_bytes": 0}));

    let set = message(&dedupfs(&[&"series", &"set", &series, &"--keep-last", &"2", &"--json"]).ok(), "series");
    assert_eq!(set["rules"], "--keep-last 2");
    assert_eq!(message(&dedupfs(&[&"series", &"show", &series, &"--json"]).ok(), "series"), set);
    let plan = message(&dedupfs(&[&"prune", &series, &"--dry-run", &"--json"]).ok(), "prune");
    let keep: Vec<bool> = plan["versions"].as_array().unwrap().iter().map(|it| it["keep"].as_bool().unwrap()).collect();
    assert_eq!(
        (keep, &plan["dry_run"], &plan["rules"]),
        (vec![false, true, true], &true.into(), &"--keep-last 2".into())
    );
    assert!(names[0].exists(), "a plan removes nothing");
    // Three equal versions: the last one still holds everything.
    assert_eq!((&plan["would_free"]["chunks"], &plan["would_free"]["nodes"]), (&0.into(), &0.into()), "{plan}");
    let text =
        dedupfs(&[&"prune", &series, &"--dry-run"]).expect(0, &["would remove 1 of 3", "together that frees 0 B"]);
    assert!(text.out.contains("dedupfs-gc"), "{}", text.out);
    let pruned = message(&dedupfs(&[&"prune", &series, &"--json"]).ok(), "prune");
    assert_eq!(pruned["versions"][0]["removed"], true);
    assert!(!names[0].exists() && names[1].exists());
    let unset = message(&dedupfs(&[&"series", &"unset", &series, &"--json"]).ok(), "series");
    assert_eq!(unset["rules"], serde_json::Value::Null);

    let forgotten = dedupfs(&[&"forget", &names[1], &names[0], &"--json"]).expect(9, &["does not exist"]);
    let forgotten = message(&forgotten, "forget");
    assert_eq!(forgotten["removed"], serde_json::json!([names[1].to_str().unwrap()]));
    assert_eq!(forgotten["failed"][0]["path"], names[0].to_str().unwrap());
    site.umount().ok();
}

#[test]
fn a_pool_of_an_earlier_release_gets_live_trees_until_it_gets_a_series() {
    let Some(site) = Site::if_fuse() else { return };
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/format-1.tar.gz");
    fs::remove_dir_all(&site.pool).unwrap();
    run("tar", &["-xzf".as_ref(), fixture.as_ref(), "-C".as_ref(), site.root.path().as_os_str()]).ok();
    fs::rename(site.root.path().join("pool"), &site.pool).unwrap();
    site.mount().ok();
    let source = site.root.path().join("source");
    let [live, series, version] = ["live", "series", "series/v1"].map(|name| site.mnt.join(name));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    fs::create_dir(&series).unwrap();
    dedupfs(&[&"put", &source, &live]).expect(0, &["live is a live tree", "`dedupfs series set`"]);
    fs::write(live.join("file"), "changed").unwrap();
    dedupfs(&[&"snapshot", &live, &version]).expect(2, &["`dedupfs series set MNT/DIR`"]);
    let set = || dedupfs(&[&"series", &"set", &series, &"--keep-last", &"3"]);
    set().expect(0, &["releases without versions refuse it"]);
    assert_eq!(set().ok().err, "");
    dedupfs(&[&"put", &source, &version]).ok();
    assert!(fs::write(version.join("file"), "changed").is_err());
    dedupfs(&[&"list", &series]).expect(0, &["v1"]);
    site.umount().ok();
}
