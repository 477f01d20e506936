//! Freezing in place: existing backups become versions, and nothing that a client wrote is lost on the way.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::{forget, listed, names, series, snapshot};
use crate::command::{DEDUPFS, Ran, Tool};
use crate::compare::{assert_same_content, assert_same_tree};
use crate::files::Plan;
use crate::random::{Random, noise, seed};
use crate::site::Site;

#[track_caller]
fn freeze(arguments: &[&str], directory: &Path) -> Ran {
    Tool::new(DEDUPFS).env("TZ", "Europe/Berlin").arg("freeze").args(arguments).arg(directory).run()
}

fn is_version(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| dedupfs::is_frozen(metadata.ino()))
}

/// Names of hidden directories that have their mark: of one without it nothing but the name was made.
fn hidden(directory: &Path) -> Vec<String> {
    let has_mark = |name: &str| rustix::fs::getxattr(directory.join(name), "user.dedupfs.put", &mut [0; 16]).is_ok();
    names(directory).into_iter().filter(|name| name.starts_with(".dedupfs-put-") && has_mark(name)).collect()
}

/// Copies a directory to a place outside the mount.
fn copy(site: &Site, from: &Path, name: &str) -> PathBuf {
    let to = site.base.join(name);
    Tool::new("cp").arg("-a").args([from, &to]).ok();
    to
}

#[test]
fn a_directory_becomes_a_version_with_its_name_and_everything_in_it() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    Plan::new(3, 300, 9000).make(&live);
    fs::write(live.join("file"), noise(1, 2 << 20)).unwrap();
    fs::hard_link(live.join("file"), live.join("second")).unwrap();
    fs::hard_link(live.join("file"), series.join("elsewhere")).unwrap();
    symlink("file", live.join("link")).unwrap();
    Tool::new("setfattr").args(["-n", "user.x", "-v", "1"]).arg(live.join("file")).ok();
    let before = copy(&site, &live, "before");
    let inside = File::open(&live).unwrap();
    freeze(&["--dry-run"], &live).expect(0, &["current: would be frozen, backup of", "(now)"]);
    assert!(!is_version(&live));
    freeze(&[], &live).expect(0, &["current: ", " entries, ", "new 0 B", "fingerprint "]);
    assert!(is_version(&live));
    assert_same_tree(&before, &live);
    assert_eq!(fs::metadata(live.join("file")).unwrap().nlink(), 2, "only names in the version count");
    assert_eq!(fs::metadata(series.join("elsewhere")).unwrap().nlink(), 1);
    assert_eq!(
        (names(&series), listed(&series)),
        (vec!["current".to_owned(), "elsewhere".to_owned()], vec!["current".to_owned()])
    );
    assert_eq!(fs::write(live.join("new"), "x").unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    // Who is in the live tree is in a removed directory.
    let within = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&inside));
    fs::write(Path::new(&within).join("new"), "x").unwrap_err();
    drop(inside);
    // A name elsewhere is live.
    fs::write(series.join("elsewhere"), "other").unwrap();
    site.remount();
    assert_same_tree(&before, &live);
    freeze(&[], &live).expect(2, &["is a version already"]);
    forget(&[&live]).expect(0, &[]);
    site.gc();
    site.umount();
    site.assert_clean();
}

#[test]
fn what_cannot_be_frozen_is_refused_by_name() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::create_dir(live.join("sub")).unwrap();
    fs::write(live.join("sub/file"), "content").unwrap();
    snapshot(&live, &series.join("v")).expect(0, &[]);
    symlink("current", series.join("link")).unwrap();
    freeze(&[], &site.mnt).expect(2, &["the root of the mount, which stays live"]);
    freeze(&[], &series.join("v")).expect(2, &["is a version already"]);
    freeze(&[], &series.join("v/sub")).expect(2, &["is a version already, or lies in one"]);
    freeze(&[], &series).expect(2, &["v is a version"]);
    freeze(&[], &live.join("sub/file")).expect(2, &["is no directory"]);
    freeze(&[], &series.join("link")).expect(2, &["is a symbolic link"]);
    freeze(&[], &series.join("absent")).expect(1, &["absent"]);
    freeze(&[], &site.base).expect(2, &["is in no mounted dedupfs"]);
    freeze(&["--time", "name"], &live).expect(2, &["has no date", "--time mtime"]);
    // Open writers.
    let writer = File::options().append(true).open(live.join("sub/file")).unwrap();
    freeze(&[], &live).expect(1, &["current: sub/file is open for writing", "dedupfs snapshot"]);
    drop(writer);
    let mapping = "import mmap, sys\n\
                   file = open(sys.argv[1], 'r+b'); pages = mmap.mmap(file.fileno(), 7); file.close(); pages[0:1] = b'C'\n\
                   print('mapped', flush=True); sys.stdin.read()";
    let mut mapper = Command::new("python3");
    mapper.args(["-c", mapping]).arg(live.join("sub/file")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut mapper = mapper.spawn().unwrap();
    std::io::Read::read_exact(mapper.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    freeze(&[], &live).expect(1, &["sub/file is open for writing"]);
    drop(mapper.stdin.take());
    mapper.wait().unwrap();
    // What could not be removed.
    Tool::new("chattr").arg("+i").arg(live.join("sub/file")).ok();
    freeze(&[], &live).expect(1, &["sub/file is protected by chattr", "chattr -R -ia"]);
    Tool::new("chattr").arg("-i").arg(live.join("sub/file")).ok();
    let work = live.join("sub/.dedupfs-put-0123456789abcdef");
    fs::create_dir_all(work.join("x")).unwrap();
    rustix::fs::setxattr(&work, "user.dedupfs.put", b"", rustix::fs::XattrFlags::empty()).unwrap();
    freeze(&[], &live).expect(1, &["sub/.dedupfs-put-0123456789abcdef is a directory in which"]);
    freeze(&[], &work).expect(2, &["belongs to `dedupfs put`"]);
    freeze(&[], &work.join("x")).expect(2, &["belongs to `dedupfs put`"]);
    fs::remove_dir_all(&work).unwrap();
    // A removal must not reach what is mounted in it.
    let precious = site.mnt.join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "precious").unwrap();
    let place = live.join("sub/place");
    fs::create_dir(&place).unwrap();
    Tool::new("mount").arg("--bind").args([&precious, &place]).ok();
    let refused = freeze(&[], &live);
    Tool::new("umount").arg(&place).ok();
    refused.expect(2, &["has something mounted on"]);
    // Without the right to write.
    fs::set_permissions(&site.mnt, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(
        (names(&series), listed(&series)),
        (["current", "link", "v"].map(str::to_owned).to_vec(), vec!["v".to_owned()])
    );
    freeze(&[], &live).expect(0, &[]);
    assert_eq!(fs::read(live.join("sub/file")).unwrap(), b"Content", "with what was mapped");
    assert_eq!(fs::read(precious.join("file")).unwrap(), b"precious");
    site.umount();
    site.assert_clean();
}

/// Mounted somewhere that the tool does not see, or mounted since it looked.
#[test]
fn a_removal_ends_at_what_is_mounted_in_the_tree() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::create_dir(live.join("place")).unwrap();
    let precious = site.mnt.join("precious");
    fs::create_dir_all(precious.join("deep")).unwrap();
    fs::write(precious.join("deep/file"), "precious").unwrap();
    // A hidden directory with a live tree, as a killed freeze leaves it, and a mount of the same filesystem in it.
    let left = series.join(".dedupfs-put-0123456789abcdef");
    fs::create_dir(&left).unwrap();
    rustix::fs::setxattr(&left, "user.dedupfs.put", b"", rustix::fs::XattrFlags::empty()).unwrap();
    fs::rename(&live, left.join("current")).unwrap();
    let place = left.join("current/place");
    Tool::new("mount").arg("--bind").args([&precious, &place]).ok();
    let source = site.base.join("source");
    fs::create_dir(&source).unwrap();
    let put = Tool::new(DEDUPFS).arg("put").args([&source, &series.join("copy")]).run();
    Tool::new("umount").arg(&place).ok();
    put.expect(0, &[]);
    assert_eq!(fs::read(precious.join("deep/file")).unwrap(), b"precious");
    site.umount();
    site.assert_clean();
}

/// Each write that was answered is in the version, or the directory is still live and has it.
#[test]
fn a_writer_loses_nothing_that_was_answered() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, _) = series(&site);
    let mut random = Random::new(seed(72));
    let (mut frozen, mut refused) = (0, 0);
    for round in 0..12 {
        let live = series.join(format!("live{round}"));
        fs::create_dir_all(live.join("sub")).unwrap();
        (0..300).for_each(|number| fs::write(live.join(format!("sub/old-{number}")), noise(number, 3000)).unwrap());
        let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let pause_micros = [0, 200, 2000, 30_000][round % 4];
        // Returns what was answered.
        let write = |client: u64| {
            let mut answered: (Vec<u64>, Vec<String>) = Default::default();
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                let appended = File::options()
                    .append(true)
                    .create(true)
                    .open(live.join(format!("log-{client}")))
                    .and_then(|mut log| log.write_all(&number.to_le_bytes()));
                if appended.is_ok() {
                    answered.0.push(number);
                }
                let name = format!("sub/new-{client}-{number}");
                if fs::write(live.join(&name), "new").is_ok() {
                    answered.1.push(name.clone());
                    let moved = format!("sub/moved-{client}-{number}");
                    if fs::rename(live.join(&name), live.join(&moved)).is_ok() {
                        answered.1.pop();
                        answered.1.push(moved);
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(pause_micros));
            }
            answered
        };
        let answers = std::thread::scope(|scope| {
            let writers = [0, 1].map(|client| scope.spawn(move || write(client)));
            std::thread::sleep(Duration::from_millis(20 + random.below(20)));
            for _ in 0..4 {
                let ran = freeze(&[], &live);
                match ran.code {
                    0 => frozen += 1,
                    _ => {
                        refused += 1;
                        ran.expect(1, &["cannot freeze"]);
                    }
                }
                if is_version(&live) {
                    break;
                }
            }
            let at = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < at + 4 {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::Relaxed);
            writers.map(|writer| writer.join().unwrap())
        });
        for (client, (numbers, files)) in answers.into_iter().enumerate() {
            let log = fs::read(live.join(format!("log-{client}"))).unwrap_or_default();
            let logged: BTreeSet<u64> =
                log.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect();
            assert!(numbers.iter().all(|number| logged.contains(number)), "round {round}: appended bytes are missing");
            for file in files {
                assert_eq!(fs::read(live.join(&file)).ok().as_deref(), Some(&b"new"[..]), "round {round}: {file}");
            }
        }
        assert_eq!(hidden(&series), [""; 0]);
    }
    println!("{frozen} frozen, {refused} refused");
    assert!(frozen >= 1 && refused >= 2, "{frozen} frozen, {refused} refused");
    site.umount();
    site.assert_clean();
}

/// Makes backups as scripts do: rsync with hard links to the backup before, a name with the date, and a link to the last.
fn backups(site: &Site, series: &Path, days: &[u32]) {
    let source = site.base.join("source");
    fs::create_dir_all(source.join("etc")).unwrap();
    fs::write(source.join("etc/same"), noise(7, 200_000)).unwrap();
    let mut last: Option<PathBuf> = None;
    for day in days {
        // Of another length each day, which rsync sees.
        fs::write(source.join("etc/changed"), vec![b'x'; *day as usize]).unwrap();
        let to = series.join(format!("2026-11-{day:02}"));
        let mut rsync = Tool::new("rsync").args(["-a", "--delete"]);
        if let Some(last) = &last {
            rsync = rsync.arg(format!("--link-dest={}", last.display()));
        }
        rsync.arg(format!("{}/", source.display())).arg(&to).ok();
        last = Some(to);
    }
    symlink(last.unwrap().file_name().unwrap(), series.join("latest")).unwrap();
}

#[test]
fn all_backups_of_a_directory_become_versions_of_their_dates() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let series = site.mnt.join("web1");
    fs::create_dir(&series).unwrap();
    fs::write(series.join("backup.log"), "a file stays").unwrap();
    // Not in the order of their names.
    backups(&site, &series, &[23, 20, 22, 21, 24]);
    let days = ["2026-11-20", "2026-11-21", "2026-11-22", "2026-11-23", "2026-11-24"];
    let (shared, stored) = (series.join("2026-11-20/etc/same"), site.stats().unique_chunk_bytes);
    assert_eq!(fs::metadata(&shared).unwrap().nlink(), 5, "rsync has linked them");
    let before = copy(&site, &series, "before");
    let dry = freeze(&["--all", "--dry-run"], &series)
        .expect(0, &["would freeze 5 directories (nothing was changed)"])
        .text();
    assert!(dry.contains("2026-11-20: would be frozen, backup of 2026-11-20T00:00:00+01:00 (by its name)\n"), "{dry}");
    assert_eq!(listed(&series), [""; 0]);
    // One cannot be frozen. The others are.
    let writer = File::options().append(true).open(series.join("2026-11-22/etc/changed")).unwrap();
    freeze(&["--all"], &series).expect(9, &["4 directories frozen", "2026-11-22: etc/changed is open for writing"]);
    drop(writer);
    let json = freeze(&["--all", "--json"], &series).expect(0, &[]).text();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["type"].as_str(), json["frozen"].as_array().map(Vec::len)), (Some("freeze"), Some(1)), "{json}");
    assert_eq!(json["frozen"][0]["time"], "name");
    assert_eq!(listed(&series), days, "in the order of their dates, also the one that came later");
    freeze(&["--all"], &series).expect(0, &["0 directories frozen"]);
    // The second run froze a directory that the first one had left live, since no live directory had a date any more.
    let current = series.join("current");
    fs::create_dir(&current).unwrap();
    freeze(&["--all"], &series).expect(0, &["current stays live", "0 directories frozen"]);
    fs::remove_dir(&current).unwrap();
    // Nothing says that these are backups.
    let undated = site.mnt.join("undated");
    fs::create_dir_all(undated.join("daily.0")).unwrap();
    freeze(&["--all"], &undated).expect(2, &["none with a date", "--time mtime"]);
    freeze(&["--all", "--time", "mtime"], &undated).expect(0, &["daily.0", "(by its mtime)", "1 directory frozen"]);
    for day in days {
        assert_same_content(&before.join(day), &series.join(day));
        assert_eq!(fs::metadata(series.join(day).join("etc/same")).unwrap().nlink(), 1, "names in this version count");
    }
    assert_eq!(site.stats().unique_chunk_bytes, stored, "content is shared");
    assert_eq!(hidden(&series), [""; 0]);
    assert_eq!(fs::read_link(series.join("latest")).unwrap(), Path::new("2026-11-24"));
    let list = Tool::new(DEDUPFS).env("TZ", "Europe/Berlin").arg("list").arg(&series).ok().text();
    assert!(list.contains("2026-11-20  2026-11-20T00:00:00+01:00"), "{list}");
    // They count as backups of their days, also beside one of today.
    let put = site.base.join("source");
    Tool::new(DEDUPFS).arg("put").args([&put, &series.join("today")]).ok();
    let prune =
        |rules: &[&str]| Tool::new(DEDUPFS).env("TZ", "Europe/Berlin").arg("prune").arg(&series).args(rules).run();
    prune(&["--keep-last", "2"]).expect(0, &["removed 4 of 6"]);
    assert_eq!(listed(&series), ["2026-11-24", "today"]);
    // An older one that is converted now is the oldest all the same.
    Tool::new("cp").arg("-a").args([&before.join("2026-11-20"), &series.join("2026-11-19")]).ok();
    freeze(&["--time", "name"], &series.join("2026-11-19")).expect(0, &["(by its name)"]);
    prune(&["--keep-last", "2"]).expect(0, &["remove  2026-11-19", "removed 1 of 3"]);
    site.gc();
    site.remount();
    assert_same_content(&before.join("2026-11-24"), &series.join("2026-11-24"));
    site.umount();
    site.assert_clean();
}

fn begin(arguments: &[&Path]) -> Child {
    let mut command = Command::new(DEDUPFS);
    command.arg("freeze").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The live directory or the version, whole; and the next command tidies up.
#[test]
fn a_freeze_that_is_killed_can_be_started_again() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let series = site.mnt.join("web1");
    let mut random = Random::new(seed(73));
    let plan = Plan::new(8, 1500, 4000);
    let original = site.base.join("original");
    plan.make(&original);
    let mut seen = [0; 3];
    for round in 0..16 {
        fs::create_dir_all(&series).unwrap();
        let live = series.join(format!("r{round}"));
        Tool::new("cp").arg("-a").args([&original, &live]).ok();
        let mut child = begin(&[&live]);
        std::thread::sleep(Duration::from_micros(random.below([20_000, 60_000, 1_500_000][round % 3])));
        let kills_daemon = round % 4 == 3;
        if kills_daemon {
            site.kill_daemon();
        } else {
            let signal = if round % 4 == 2 { Signal::INT } else { Signal::KILL };
            // It may have ended already.
            let _ = kill_process(Pid::from_child(&child), signal);
        }
        let code = child.wait().unwrap().code();
        if kills_daemon {
            site.mount();
        }
        if kills_daemon && !live.exists() {
            // The copy itself was not durable yet.
            assert_ne!(code, Some(0));
            continue;
        }
        let was = is_version(&live);
        assert!(was || code != Some(0), "it said that it is frozen");
        seen[if was { 1 + usize::from(hidden(&series).is_empty()) } else { 0 }] += 1;
        if !kills_daemon || was {
            assert_same_content(&original, &live);
        }
        if !was {
            // The daemon may still be at it, for a killed tool, for half a minute at most.
            let mut ran = freeze(&[], &live);
            while ran.code == 4 && ran.said().contains("another `dedupfs freeze`") {
                std::thread::sleep(Duration::from_millis(500));
                ran = freeze(&[], &live);
            }
            ran.expect(0, &[]);
        }
        let other = series.join("other");
        fs::create_dir(&other).unwrap();
        let mut ran = freeze(&[], &other);
        while ran.code != 0 {
            std::thread::sleep(Duration::from_millis(500));
            ran = freeze(&[], &other);
        }
        assert_eq!(hidden(&series), [""; 0], "round {round}: left over");
        forget(&[&live, &other]).expect(0, &[]);
    }
    println!("live {}, frozen with leftovers {}, frozen {}", seen[0], seen[1], seen[2]);
    site.gc();
    site.umount();
    site.assert_clean();
}
