//! The tools that `rivals` compares, each as the commands that back up, restore and mount.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::Run;
use crate::{Outcome, command, files, machine, pool};

/// All tools, in the order of the table. `cp` and `cp2` are dedupfs, filled through its mount.
pub const KNOWN: [&str; 8] = ["dedupfs", "cp", "cp2", "restic", "rustic", "kopia", "borg", "s3ql"];

/// Returns whether a tool is a way to use dedupfs.
pub fn is_own(name: &str) -> bool {
    KNOWN[..3].contains(&name)
}

/// Returns whether a tool mounts a filesystem.
pub fn is_mounted(name: &str) -> bool {
    is_own(name) || name == "s3ql"
}

/// Returns whether the program of a tool is there.
pub fn is_installed(name: &str) -> bool {
    is_own(name) || machine::is_installed(if name == "s3ql" { "mount.s3ql" } else { name })
}

/// Returns the head of the tool's column.
pub fn version(name: &str) -> Outcome<String> {
    let words = |command: &mut Command, range: std::ops::Range<usize>| {
        command
            .text()
            .map(|text| text.split_whitespace().skip(range.start).take(range.len()).collect::<Vec<_>>().join(" "))
    };
    match name {
        "dedupfs" => words(&mut command!(pool::program("dedupfs"), "--version"), 0..9),
        "cp" => Ok("its mount, cp -a".to_owned()),
        "cp2" => Ok("two cp -a at once".to_owned()),
        "restic" => words(&mut command!("restic", "version"), 0..2),
        "kopia" => words(&mut command!("kopia", "--version"), 0..1).map(|version| format!("kopia {version}")),
        "s3ql" => Ok("s3ql".to_owned()),
        _ => words(&mut command!(name, "--version"), 0..9),
    }
}

/// Commands of each tool and step, with places in braces: `init` makes an empty repository, `mount` mounts it, `tree` backs up a directory in
/// memory, `tree-out` restores it to `out`, `pipe` backs up standard input, `pipe-out` restores it to standard output; `env` is the
/// environment. `cp2` copies the versions one by one, two at a time. By the same name, rustic 0.11.4 takes the second pipe for unchanged and
/// does not read it.
const COMMANDS: &str = "
dedupfs tree: dedupfs put {from} {mounted}
dedupfs tree-out: rmdir {out}
dedupfs tree-out: dedupfs get {mounted} {out}
dedupfs pipe: cat >{mounted}
dedupfs pipe: dedupfs sync {mnt}
dedupfs pipe-out: cat {mounted}
cp tree: cp -a {from} {mounted}
cp tree: dedupfs sync {mnt}
cp tree-out: cp -a {mounted}/. {out}
cp2 tree: mkdir {mounted}
cp2 tree: xargs -0 -a {from}.names -P 2 -I % cp -a {from}/% {mounted}
cp2 tree: dedupfs sync {mnt}
cp2 tree-out: xargs -0 -a {from}.names -P 2 -I % cp -a {mounted}/% {out}
restic env: RESTIC_REPOSITORY={repository} RESTIC_PASSWORD=none RESTIC_CACHE_DIR={cache}
restic init: restic init -q
restic tree: restic backup -q --tag {name} .
restic tree-out: restic restore -q latest --tag {name} --target {out}
restic ids: restic snapshots -q --json
restic list: restic snapshots -q
restic diff: restic diff -q {older} {newer}
restic walk-newest: restic mount -q {mnt}
restic walk-oldest: restic mount -q {mnt}
restic forget: restic forget -q {older}
restic reclaim: restic prune -q
restic pipe: restic backup -q --tag {name} --stdin --stdin-filename pipe
restic pipe-out: restic dump -q latest --tag {name} /pipe
rustic env: RUSTIC_REPOSITORY={repository} RUSTIC_PASSWORD=none RUSTIC_CACHE_DIR={cache}
rustic env: RUSTIC_NO_PROGRESS=true RUSTIC_LOG_LEVEL=warn
rustic init: rustic init --set-compression 1
rustic tree: rustic backup --tag {name} .
rustic tree-out: rustic restore --filter-tags {name} latest {out}
rustic pipe: rustic backup --tag {name} --stdin-filename {name} -
rustic pipe-out: rustic dump --filter-tags {name} latest:{name}
kopia env: KOPIA_CONFIG_PATH={cache}/kopia.config KOPIA_LOG_DIR={cache}/logs KOPIA_CACHE_DIRECTORY={cache}/kopia
kopia env: KOPIA_PASSWORD=none KOPIA_CHECK_FOR_UPDATES=false
kopia init: kopia repository create filesystem --path {repository}
kopia init: kopia policy set --global --compression=zstd-fastest
kopia tree: kopia snapshot create --no-progress --json {from} >{cache}/{name}.json
kopia tree-out: kopia restore --no-progress {root} {out}
kopia pipe: kopia snapshot create --no-progress --json --stdin-file pipe {name} >{cache}/{name}.json
kopia pipe-out: kopia show {root}/pipe
borg env: BORG_REPO={repository} BORG_BASE_DIR={cache} BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
borg init: borg init -e none
borg tree: borg create -C zstd,1 ::{name} .
borg tree-out: borg extract ::{name}
borg list: borg list
borg diff: borg diff ::{older} {newer}
borg walk-newest: borg mount ::{newer} {mnt}
borg walk-oldest: borg mount ::{older} {mnt}
borg forget: borg delete ::{older}
borg reclaim: borg compact
borg pipe: borg create -C zstd,1 --stdin-name pipe ::{name} -
borg pipe-out: borg extract --stdout ::{name} pipe
s3ql init: mkdir {repository}
s3ql init: mkfs.s3ql --plain --cachedir {cache} local://{repository}
s3ql mount: mount.s3ql --cachedir {cache} --compress zlib-1 local://{repository} {mnt}
s3ql tree: cp -a {from} {mounted}
s3ql tree: s3qlctrl flushcache {mnt}
s3ql tree-out: cp -a {mounted}/. {out}
s3ql pipe: cat >{mounted}
s3ql pipe: s3qlctrl flushcache {mnt}
s3ql pipe-out: cat {mounted}";

/// A tool with its places.
pub struct Tool<'a> {
    /// Its name in `--tools`.
    pub name: &'a str,
    /// Its pool or repository.
    pub repository: PathBuf,
    /// Its cache.
    pub cache: PathBuf,
    /// The mountpoint, for those that mount.
    pub mnt: PathBuf,
    /// Sources and restored files in memory.
    pub ram: PathBuf,
    /// The older and the newer of two versions, as it calls them.
    pub versions: [String; 2],
}

impl Tool<'_> {
    fn lines(&self, step: &str) -> impl Iterator<Item = &'static str> {
        let head = format!("{} {step}: ", self.name);
        COMMANDS.lines().filter_map(move |line| line.strip_prefix(&head))
    }

    /// Returns the commands of a step, which run one after the other. `source` is a directory or a file in memory.
    pub fn commands(&self, step: &str, source: &str) -> Outcome<Vec<Command>> {
        let (from, out) = (self.ram.join(source), self.ram.join("out"));
        let name = format!("{}-{source}", step.trim_end_matches("-out"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let places = [
            ("{from}", text(&from)),
            ("{out}", text(&out)),
            ("{mounted}", text(&self.mnt.join(&name))),
            ("{mnt}", text(&self.mnt)),
            ("{cache}", text(&self.cache)),
            ("{repository}", text(&self.repository)),
            ("{older}", self.versions[0].clone()),
            ("{newer}", self.versions[1].clone()),
            ("{root}", self.kopia_root(&name)),
            ("{name}", name),
        ];
        let fill = |word: &str| places.iter().fold(word.to_owned(), |word, (name, place)| word.replace(name, place));
        let make = |line: &str| {
            let mut words = line.split(' ').map(fill);
            let program = words.next().unwrap_or_default();
            let mut command = command!(if program == "dedupfs" { pool::program("dedupfs") } else { program.into() });
            for (name, value) in
                self.lines("env").flat_map(|line| line.split(' ')).filter_map(|pair| pair.split_once('='))
            {
                command.env(name, fill(value));
            }
            // Names in a backup are relative to the tree.
            command.current_dir(match (self.name, step) {
                ("borg", "tree-out") => &out,
                (_, "tree") => &from,
                _ => &self.ram,
            });
            if self.name == "kopia" {
                command.stderr(Stdio::null());
            }
            for word in words {
                match word.strip_prefix('>') {
                    Some(path) => drop(command.writes(path.as_ref())?),
                    None => drop(command.arg(word)),
                }
            }
            Ok(command)
        };
        self.lines(step).map(make).collect()
    }

    /// Returns kopia's name of the root of a snapshot, which its report holds.
    fn kopia_root(&self, name: &str) -> String {
        let report = std::fs::read_to_string(self.cache.join(format!("{name}.json"))).unwrap_or_default();
        let root = report.split("\"obj\":\"").nth(1).and_then(|rest| rest.split('"').next());
        root.unwrap_or_default().to_owned()
    }

    /// Removes the repository, the cache and the restored files.
    pub fn remove(&self) -> Outcome {
        [&self.repository, &self.cache, &self.ram.join("out")].into_iter().try_for_each(|path| files::remove(path))
    }
}
