//! `--memory` bounds the daemon's memory under any load: anonymous resident memory is at most the sum of that, 64
//! MiB, and 24 bytes for each inode that the kernel knows.
//!
//! Each test runs one workload on a mount in a memory cgroup and measures the daemon throughout. `DEDUPFS_MEMORY_SIZES`
//! (default `128M`) names the sizes, `DEDUPFS_MEMORY_SCALE=full` selects the workloads for long runs;
//! `tools/memory-soak.sh` prints the table. The rates in it are those of the build under test: a debug build's say
//! nothing about a release's.

mod cgroup;
mod meter;
mod workloads;

use std::fmt::Display;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{DEDUPFS, Tool};
use crate::site::Site;
use cgroup::Cgroup;
use meter::Meter;

const MIB: u64 = 1 << 20;
/// Memory of the process besides `--memory`.
const BESIDES_BYTES: u64 = 64 * MIB;
/// Memory for each inode that the kernel knows.
const INODE_BYTES: u64 = 24;
/// Added to the limit of the process for the page cache and the kernel's own memory for it: a runaway process is killed
/// long before the machine is short of memory, and one within its bound is not slowed down.
const CACHE_BYTES: u64 = 256 * MIB;

/// The size of the workloads.
#[derive(Clone, Copy)]
struct Scale {
    is_full: bool,
}

impl Scale {
    fn of_environment() -> Self {
        Self { is_full: std::env::var("DEDUPFS_MEMORY_SCALE").is_ok_and(|scale| scale == "full") }
    }

    fn pick<T>(self, usual: T, full: T) -> T {
        if self.is_full { full } else { usual }
    }
}

/// The work of a workload.
struct Done {
    amount: f64,
    unit: &'static str,
    /// Inodes that the kernel may know at the end.
    inodes: u64,
}

/// Returns the values of `--memory` in MiB from the environment.
fn sizes_mib() -> Vec<u64> {
    let sizes = std::env::var("DEDUPFS_MEMORY_SIZES").unwrap_or_else(|_| "128M".to_owned());
    let size = |text: &str| {
        let (number, factor) = match text.strip_suffix('G') {
            Some(number) => (number, 1024),
            None => (text.strip_suffix('M').unwrap_or(text), 1),
        };
        number.parse::<u64>().unwrap_or_else(|error| panic!("DEDUPFS_MEMORY_SIZES has {text:?}: {error}")) * factor
    };
    sizes.split([',', ' ']).filter(|text| !text.is_empty()).map(size).collect()
}

/// Returns the beginning of a command line that starts a program within a group.
fn entering(group: Option<&Cgroup>) -> Vec<String> {
    let entrance = group.map_or("/dev/null".to_owned(), |group| group.entrance().display().to_string());
    ["sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &entrance].map(str::to_owned).to_vec()
}

fn mount(site: &Site, size_mib: u64, group: Option<&Cgroup>) {
    let line = entering(group);
    let (program, arguments) = line.split_first().expect("a program");
    let size = format!("{size_mib}M");
    let tool = Tool::new(program).args(arguments).args([DEDUPFS, "mount", "--memory", &size]);
    tool.args([&site.pool, &site.mnt]).ok();
}

fn daemon(site: &Site) -> u32 {
    let note = std::fs::read_to_string(site.pool.join("lock")).expect("the lock of a mounted pool");
    note.split(' ').next().and_then(|number| number.parse().ok()).expect("the daemon's number")
}

fn report(name: &str, size_mib: u64, most_bytes: u64, rate: impl Display, group: Option<&Cgroup>) {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let group = group.map_or("no cgroup".to_owned(), |group| format!("cgroup v{}", group.version()));
    let most_mib = most_bytes as f64 / MIB as f64;
    // The test harness swallows println.
    let _ = writeln!(
        std::io::stderr(),
        "memory | {name} | {size_mib} MiB | {most_mib:.0} MiB | {rate} | {build} | {group}"
    );
}

fn check(name: &str, size_mib: u64, most_bytes: u64, inodes: u64) {
    let bound_bytes = size_mib * MIB + BESIDES_BYTES + inodes * INODE_BYTES;
    assert!(
        most_bytes <= bound_bytes,
        "{name}: {} MiB of anonymous memory with --memory {size_mib}M, more than {} MiB",
        most_bytes / MIB,
        bound_bytes / MIB
    );
}

/// Does the work on a mount of each size and checks the daemon's memory.
fn bounded(name: &str, prepare: impl Fn(&Site, Scale), work: impl Fn(&Site, Scale) -> Done) {
    for size_mib in sizes_mib() {
        let Some(site) = Site::if_fit() else { return };
        let scale = Scale::of_environment();
        site.mount();
        prepare(&site, scale);
        site.umount();
        let group = Cgroup::with_limit(size_mib * MIB + BESIDES_BYTES + CACHE_BYTES);
        mount(&site, size_mib, group.as_ref());
        let meter = Meter::of(daemon(&site));
        let begun = Instant::now();
        let done = work(&site, scale);
        let rate = format!("{:.1} {}/s", done.amount / begun.elapsed().as_secs_f64(), done.unit);
        site.note_progress();
        let most_bytes = meter.most_bytes();
        report(name, size_mib, most_bytes, rate, group.as_ref());
        assert!(meter.now_bytes().is_some(), "{name}: the daemon is gone: killed at the group's limit");
        let of_group = group.as_ref().map_or(0, Cgroup::anonymous_bytes);
        check(name, size_mib, most_bytes.max(of_group), done.inodes);
        drop(meter);
        site.umount();
        drop(site);
    }
}

/// Runs a program on an unmounted pool and checks its memory.
fn bounded_program(name: &str, site: &Site, size_mib: u64, arguments: &[&str]) {
    let group = Cgroup::with_limit(size_mib * MIB + BESIDES_BYTES + CACHE_BYTES);
    let line = entering(group.as_ref());
    let (program, before) = line.split_first().expect("a program");
    let begun = Instant::now();
    let child =
        Command::new(program).args(before).arg(DEDUPFS).args(arguments).arg(&site.pool).stdout(Stdio::null()).spawn();
    let mut child = child.expect("a program that runs");
    let meter = Meter::of(child.id());
    let status = child.wait().expect("its end");
    let rate = format!("{:.1} s", begun.elapsed().as_secs_f64());
    let most_bytes = meter.most_bytes();
    report(name, size_mib, most_bytes, rate, group.as_ref());
    assert!(status.success(), "{name}: {status}");
    check(name, size_mib, most_bytes, 0);
}

#[test]
fn regression_files_written_in_turns_share_one_budget() {
    bounded("files written in turns", |_, _| (), workloads::write_in_turns);
}

#[test]
fn regression_pages_written_at_random_through_a_mapping_keep_to_the_budget() {
    bounded("pages written at random by 16 threads", |_, _| (), workloads::write_pages);
}

#[test]
fn files_read_in_turns_share_one_budget() {
    bounded("files read in turns", workloads::make_files_to_read, workloads::read_in_turns);
}

#[test]
fn many_open_files_share_one_budget() {
    bounded("open files", |_, _| (), workloads::open_many);
}

#[test]
fn a_large_directory_keeps_to_the_budget() {
    bounded("a large directory", |_, _| (), workloads::large_directory);
}

#[test]
fn trees_put_and_got_keep_to_the_budget() {
    bounded("put and get", |_, _| (), workloads::put_and_get);
}

/// With the full scale the process grew to 249 MiB of 192: memory that was free, in the arenas of all threads.
#[test]
fn regression_versions_put_in_a_series_keep_to_the_budget() {
    bounded("versions put in a series", |_, _| (), workloads::put_versions);
}

#[test]
fn rebuilding_and_checking_keep_to_the_budget() {
    let Some(site) = Site::if_fit() else { return };
    site.mount();
    workloads::make_chunks(&site, Scale::of_environment());
    site.umount();
    for size_mib in sizes_mib() {
        let memory = format!("--memory={size_mib}M");
        bounded_program("rebuild of the index", &site, size_mib, &["fsck", "--rebuild-index", &memory]);
        bounded_program("check", &site, size_mib, &["fsck", &memory]);
    }
}

/// Memory of open files is given back when they are closed and the mount is idle.
#[test]
fn regression_memory_is_given_back_when_files_are_closed() {
    let group = Cgroup::with_limit(512 * MIB + BESIDES_BYTES + CACHE_BYTES);
    // The site is dropped before the group, so that its daemon has ended by then.
    let Some(site) = Site::if_fit() else { return };
    mount(&site, 512, group.as_ref());
    let meter = Meter::of(daemon(&site));
    let files_bytes = || {
        let parts = site.stats().memory.parts;
        parts
            .iter()
            .find(|part| part.name == "open files")
            .and_then(|part| part.used_bytes)
            .expect("a part that is counted")
    };
    workloads::write_in_turns(&site, Scale { is_full: false });
    let deadline = Instant::now() + Duration::from_secs(30);
    while files_bytes() > 0 {
        assert!(Instant::now() < deadline, "{} bytes are still held of files that are closed", files_bytes());
        std::thread::sleep(Duration::from_secs(1));
    }
    // The allocator gives it back, too: little is resident that no gauge counts.
    loop {
        let counted: u64 = site.stats().memory.parts.iter().filter_map(|part| part.used_bytes).sum();
        let resident = meter.now_bytes().expect("the daemon lives");
        if resident <= counted + BESIDES_BYTES {
            break;
        }
        assert!(Instant::now() < deadline, "{} MiB are resident, {} counted", resident / MIB, counted / MIB);
        std::thread::sleep(Duration::from_secs(1));
    }
}
