//! Every command with `--json` prints lines of one shape, for results and for failures, of types that the documentation has.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;

use crate::site::{DEDUPFS, GC, Ran, STATS, Site, run};

type Words<'a> = &'a [&'a dyn AsRef<OsStr>];

/// Types that no command of this test prints: `progress` needs a second of work.
const NOT_SEEN: [&str; 1] = ["progress"];

fn json(program: &str, words: Words<'_>) -> Ran {
    let words = words.iter().map(|word| word.as_ref().to_owned());
    run(program, &words.chain(["--json".into()]).collect::<Vec<_>>())
}

/// The types whose section tells the members of their lists, too.
const LISTS: [&str; 11] = [
    "replicas",
    "profile",
    "list",
    "diff",
    "history",
    "freeze",
    "prune",
    "batch",
    "batch_plan",
    "batch_simulation",
    "cluster",
];

/// The section of a type in `docs/json.md`.
fn section(name: &str) -> &'static str {
    let mut sections = include_str!("../../../docs/json.md").split("\n## ").skip(1);
    let has = |section: &&str| section.lines().next().is_some_and(|title| title.split(", ").any(|one| one == name));
    sections.find(has).unwrap_or_default()
}

/// Checks that the documents tell each member.
#[track_caller]
fn check_members(value: &serde_json::Value, name: &str) {
    // Its section tells the most important ones of many.
    if name == "stats" {
        return;
    }
    for (member, value) in value.as_object().unwrap() {
        let is_told = |member: &str| section(name).contains(&format!("`{member}`"));
        assert!(is_told(member) || ["type", "version"].contains(&&**member), "docs/json.md: {name} lacks {member}");
        let of_list = value.as_array().into_iter().flatten().filter_map(|value| value.as_object());
        for member in of_list.filter(|_| LISTS.contains(&name)).flat_map(|object| object.keys()) {
            let inherits = name == "freeze" && section("snapshot").contains(&format!("`{member}`"));
            assert!(is_told(member) || inherits, "docs/json.md: the list of {name} lacks {member}");
        }
    }
}

/// Checks each line of standard output; returns the types.
#[track_caller]
fn types(ran: &Ran) -> Vec<String> {
    let of_line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let name = value["type"].as_str().unwrap_or_default().to_owned();
        assert!(line.starts_with(&format!("{{\"type\":\"{name}\",\"version\":1")), "{}: {line}", ran.line);
        assert_eq!(line.matches(&"\"version\":1").count(), 1, "a member has the same name: {line}");
        check_members(&value, &name);
        name
    };
    ran.out.lines().map(of_line).collect()
}

/// The types that `docs/json.md` documents.
fn documented() -> BTreeSet<String> {
    let text = include_str!("../../../docs/json.md");
    let titles = text.lines().filter_map(|line| line.strip_prefix("## ")).filter(|title| *title != "Shape");
    titles.flat_map(|title| title.split(", ")).map(str::to_owned).collect()
}

#[test]
fn every_command_prints_lines_of_one_shape() {
    let Some(site) = Site::if_fuse() else { return };
    let root = site.root.path();
    let [source, second, out, man] = ["source", "second", "out", "man"].map(|name| root.join(name));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    let series = site.mnt.join("series");
    let [v1, v2, v3, live, thawed] = ["v1", "v2", "v3", "live", "thawed"].map(|name| series.join(name));
    let file_in_pool = site.mnt.join("file");
    let mut seen = BTreeSet::new();
    let mut ok = |program: &str, words: Words<'_>, expected: &[&str]| {
        let ran = json(program, words).ok();
        assert_eq!(types(&ran), expected, "{}", ran.line);
        seen.extend(expected.iter().map(|&name| name.to_owned()));
    };
    ok(DEDUPFS, &[&"mkfs", &second], &["mkfs"]);
    ok(DEDUPFS, &[&"generate", &"--man", &man], &["done"]);
    ok(DEDUPFS, &[&"mount", &site.pool, &site.mnt], &["done"]);
    fs::create_dir(&series).unwrap();
    ok(DEDUPFS, &[&"put", &source, &v1], &["put"]);
    fs::write(source.join("file"), "other content").unwrap();
    ok(DEDUPFS, &[&"put", &source, &v2], &["put"]);
    ok(DEDUPFS, &[&"put", &"--live", &source, &live], &["put"]);
    ok(DEDUPFS, &[&"put", &source.join("file"), &file_in_pool], &["put"]);
    ok(DEDUPFS, &[&"snapshot", &live, &v3], &["snapshot"]);
    ok(DEDUPFS, &[&"thaw", &v1, &thawed], &["thaw"]);
    ok(DEDUPFS, &[&"get", &v1, &out, &"--include", &"file"], &["get"]);
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "content");
    let plan = root.join("plan.toml");
    let text = "[[host]]\nname = \"h\"\n[[disk]]\nname = \"disk\"\nhost = \"h\"\nsource = ";
    let disk = format!("file:{}", source.join("file").display());
    fs::write(&plan, format!("pool = {:?}\n{text}{disk:?}\n", site.mnt)).unwrap();
    ok(DEDUPFS, &[&"batch", &plan, &"--dry-run"], &["batch_plan"]);
    ok(DEDUPFS, &[&"batch", &plan, &"--simulate"], &["batch_simulation"]);
    ok(DEDUPFS, &[&"batch", &plan], &["batch"]);
    let alone = root.join("alone.toml");
    let text = "night = \"n\"\n[[machine]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\n[[disk]]\nname = \"c\"\nmachine = \"m\"\nsource = ";
    let file = source.join("file");
    fs::write(&alone, format!("pool = {:?}\nwork = {root:?}\n{text}{file:?}\n", site.mnt)).unwrap();
    ok(DEDUPFS, &[&"cluster", &alone, &"--machine", &"m"], &["cluster"]);
    ok(DEDUPFS, &[&"list", &series, &"--sizes"], &["list"]);
    ok(DEDUPFS, &[&"diff", &v1, &v2], &["diff", "diff_sums"]);
    ok(DEDUPFS, &[&"history", &series, &"file"], &["history"]);
    ok(DEDUPFS, &[&"series", &"set", &series, &"--keep-last", &"2"], &["series"]);
    ok(DEDUPFS, &[&"series", &"show", &series], &["series"]);
    ok(DEDUPFS, &[&"prune", &series, &"--dry-run"], &["prune"]);
    ok(DEDUPFS, &[&"series", &"unset", &series], &["series"]);
    ok(DEDUPFS, &[&"forget", &"--dry-run", &v3], &["forget"]);
    assert!(v3.exists());
    ok(DEDUPFS, &[&"forget", &v3], &["forget"]);
    ok(DEDUPFS, &[&"freeze", &live, &"--dry-run"], &["freeze"]);
    ok(DEDUPFS, &[&"freeze", &live], &["freeze"]);
    ok(DEDUPFS, &[&"sync", &site.mnt], &["done"]);
    ok(STATS, &[&site.mnt], &["stats"]);
    ok(STATS, &[&site.mnt, &"--profile"], &["profile"]);
    ok(STATS, &[&"--would-free", &v1], &["would_free"]);
    ok(STATS, &[&"--tree", &v1], &["tree"]);
    ok(STATS, &[&"--tree", &site.mnt], &["tree"]);
    ok(GC, &[&site.mnt, &"--dry-run"], &["gc"]);
    ok(GC, &[&site.mnt], &["gc"]);
    ok(GC, &[&site.mnt, &"--status"], &["gc_status"]);
    ok(GC, &[&site.mnt, &"--pause"], &["done"]);
    ok(GC, &[&site.mnt, &"--resume"], &["done"]);
    ok(DEDUPFS, &[&"scrub", &site.mnt], &["scrub"]);
    ok(DEDUPFS, &[&"scrub", &"--status", &site.mnt], &["scrub_status"]);
    ok(DEDUPFS, &[&"umount", &site.mnt], &["done"]);
    ok(DEDUPFS, &[&"list", &site.pool, &"--sizes"], &["list"]);
    ok(DEDUPFS, &[&"fsck", &site.pool], &["fsck"]);
    ok(DEDUPFS, &[&"fsck", &"--trial-recovery", &site.pool], &["trial_recovery"]);
    ok(DEDUPFS, &[&"fsck", &"--repair", &"--yes", &site.pool], &["repair"]);
    ok(DEDUPFS, &[&"recover", &"--force", &"--yes", &site.pool], &["recover"]);
    fs::create_dir(root.join("objects")).unwrap();
    let objects = root.join("objects");
    ok(DEDUPFS, &[&"store-check", &objects], &["store_check"]);
    ok(DEDUPFS, &[&"replicate", &site.pool, &objects, &"--init", &"--plain"], &["replicate"]);
    ok(DEDUPFS, &[&"replica", &"status", &site.pool], &["replicas"]);
    ok(DEDUPFS, &[&"replica", &"verify", &objects], &["replica_verify"]);
    ok(DEDUPFS, &[&"replica", &"gc", &objects], &["replica_gc"]);
    ok(DEDUPFS, &[&"recover", &root.join("recovered"), &"--from", &objects], &["recover"]);

    site.mount().ok();
    let absent = root.join("absent");
    let mut fail = |program: &str, words: Words<'_>| {
        let ran = json(program, words);
        assert_ne!(ran.code, 0, "{}", ran.line);
        assert_eq!(types(&ran), ["error"], "{}: {}", ran.line, ran.err);
        let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(told["code"], ran.code, "{}", ran.line);
        let said = told["message"].as_str().unwrap();
        assert!(ran.err.trim_end().ends_with(said), "{}: {} is not {said}", ran.line, ran.err);
        seen.insert("error".to_owned());
    };
    fail(DEDUPFS, &[&"mkfs", &second]);
    fail(DEDUPFS, &[&"generate", &"--man", &source.join("file")]);
    fail(DEDUPFS, &[&"mount", &absent, &site.mnt]);
    fail(DEDUPFS, &[&"umount", &absent]);
    for words in [&["put"][..], &["get"], &["snapshot"], &["thaw"], &["diff"]] {
        fail(DEDUPFS, &[&words[0], &absent, &series.join("x")]);
    }
    fail(DEDUPFS, &[&"get", &v1, &absent, &"--include", &"nothing"]);
    assert!(!absent.exists());
    for command in ["batch", "list", "freeze", "forget", "prune", "sync", "fsck", "scrub"] {
        fail(DEDUPFS, &[&command, &absent]);
    }
    fail(DEDUPFS, &[&"cluster", &absent, &"--machine", &"m"]);
    fail(DEDUPFS, &[&"history", &absent, &"file"]);
    fail(DEDUPFS, &[&"series", &"show", &absent]);
    fail(DEDUPFS, &[&"recover", &absent]);
    fail(DEDUPFS, &[&"store-check", &absent]);
    fail(DEDUPFS, &[&"replicate", &site.mnt, &absent]);
    fail(DEDUPFS, &[&"replica", &"status", &absent]);
    fail(DEDUPFS, &[&"replica", &"verify", &absent]);
    fail(DEDUPFS, &[&"replica", &"gc", &absent]);
    fail(STATS, &[&absent]);
    fail(STATS, &[&"--would-free", &absent]);
    fail(STATS, &[&"--tree", &absent]);
    fail(GC, &[&absent]);
    fail(GC, &[&site.mnt, &"--stop"]);
    site.umount().ok();

    seen.extend(NOT_SEEN.map(str::to_owned));
    assert_eq!(seen, documented(), "what is printed is what docs/json.md has");
}
