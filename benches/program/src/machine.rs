//! The machine: its description above the tables, and whether a measurement can run on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::command::Run;
use crate::table::human;
use crate::{Outcome, command, fail, files, pool};

/// Returns TMPDIR, or /var/tmp without one.
pub fn scratch_parent() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned())
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn kib(name: &str) -> u64 {
    let value = field("/proc/meminfo", name).unwrap_or_default();
    value.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the machine, as a Markdown line.
pub fn describe_processor() -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = kib("MemTotal") as f64 / 1_048_576.0;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("- machine: {cpu}, {cores} cores, {memory:.0} GiB of memory, Linux {}", kernel.trim())
}

/// Returns the machine, the filesystem that holds `directory`, the version of dedupfs and the load, as Markdown lines.
pub fn describe(directory: &Path) -> Outcome<String> {
    let backing = command!("findmnt", "-n", "-o", "SOURCE,FSTYPE", "-T", directory).text()?;
    let (device, kind) = backing.trim().rsplit_once(' ').unwrap_or((backing.trim(), "unknown"));
    let version = command!(pool::program("dedupfs"), "--version").text()?;
    Ok(format!(
        "{}\n- backing filesystem: {kind} on {}\n- {}; load average at the start {}",
        describe_processor(),
        device.trim(),
        version.trim(),
        load()
    ))
}

/// Returns the line on medians, date and load after the last run.
pub fn describe_end(runs: u64) -> Outcome<String> {
    let date = command!("date", "-u", "+%Y-%m-%d").text()?;
    Ok(format!("- medians of {runs} runs, {}; load average at the end {}", date.trim(), load()))
}

/// Fails if `directory` has no room for `bytes`.
pub fn need_room(directory: &Path, bytes: u64) -> Outcome {
    let stat =
        rustix::fs::statvfs(directory).map_err(Into::into).or_else(files::at("ask for the room in", directory))?;
    let available = stat.f_bavail * stat.f_frsize;
    if available >= bytes {
        return Ok(());
    }
    let (needed, there) = (human(bytes), human(available));
    let directory = directory.display();
    fail(format!("this needs {needed} in {directory}, there are {there}: choose a smaller size or another directory"))
}

/// Fails if the machine has no memory for `bytes` of files in /dev/shm.
pub fn need_memory(bytes: u64) -> Outcome {
    let available = kib("MemAvailable") * 1024;
    if available < bytes {
        let (needed, there) = (human(bytes), human(available));
        return fail(format!("this size needs {needed} of memory, there are {there}: choose a smaller size"));
    }
    need_room(Path::new("/dev/shm"), bytes)
}

/// Returns whether a program is installed.
pub fn is_installed(name: &str) -> bool {
    static PATH: OnceLock<String> = OnceLock::new();
    let path = PATH.get_or_init(|| format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    path.split(':').any(|directory| Path::new(directory).join(name).is_file())
}

/// Fails if one of these programs, one that every measurement needs, or FUSE is missing.
pub fn need_commands(names: &[&str]) -> Outcome {
    if let Some(name) = names.iter().chain(&["findmnt", "split"]).find(|name| !is_installed(name)) {
        return fail(format!("{name} is missing: please install it"));
    }
    if !Path::new("/dev/fuse").exists() {
        return fail(
            "no /dev/fuse: load the module fuse, or start the container with --device /dev/fuse --cap-add SYS_ADMIN",
        );
    }
    Ok(())
}
