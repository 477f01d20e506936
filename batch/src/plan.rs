//! Plans: which disks are backed up, from where, and which versions are kept. A TOML file.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU64;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use jiff::civil::Time;
use serde::Deserialize;

use crate::schedule::lists::Policy;
use crate::source::{Agent, Kind};

/// Disks of a plan at most.
const DISKS_MAX: usize = 10_000;
/// Attempts at a disk behind the first one at most.
const RETRIES_MAX: u32 = 100;
/// Readers of a host at most.
const READERS_MAX: usize = 64;
/// Time between two attempts, if the plan says nothing: what is busy may be free then.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Bytes a second of a host, if the plan says nothing. For estimates alone.
const RATE: u64 = 200_000_000;

/// A plan.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The mount, or a directory in it.
    pub pool: PathBuf,
    /// When disks may be begun.
    pub window: Option<Window>,
    /// The order in which readers take disks.
    #[serde(default)]
    pub order: Policy,
    /// Part of what is unchanged that is compared, as `dedupfs put --verify` takes it.
    pub verify: Option<String>,
    /// Everything is compared if that was last done so long ago.
    pub full_verify_every: Option<String>,
    /// Whether duplicates are detected in stages.
    #[serde(default)]
    pub staged: Staged,
    /// Versions that stay, for each disk.
    pub keep: Option<Keep>,
    /// How often a disk that failed is tried again.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Time between two attempts.
    pub retry_after: Option<String>,
    /// The hosts.
    #[serde(default, rename = "host")]
    pub hosts: Vec<Host>,
    /// The disks.
    #[serde(default, rename = "disk")]
    pub disks: Vec<Disk>,
}

fn default_retries() -> u32 {
    2
}

/// Whether duplicates are detected in stages, as `dedupfs put --staged` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Staged {
    /// Where that takes less time, by the index's reads so far.
    #[default]
    Auto,
    /// For every disk.
    Always,
    /// For none.
    Never,
}

/// A time of the day in which disks may be begun. It may go over midnight.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Such as `22:00`, by the clock of this machine.
    pub start: Time,
    /// The same.
    pub end: Time,
    /// The end for disks that are read then.
    #[serde(default)]
    pub at_end: AtEnd,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}", self.start.strftime("%H:%M"), self.end.strftime("%H:%M"))
    }
}

impl Window {
    /// Whether disks may be begun at this time.
    #[must_use]
    pub fn has(&self, time: Time) -> bool {
        match self.start <= self.end {
            true => (self.start..self.end).contains(&time),
            false => time >= self.start || time < self.end,
        }
    }
}

/// The end of a window for disks that are read then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtEnd {
    /// They are finished.
    #[default]
    Finish,
    /// They are given up.
    Stop,
}

/// Versions that stay: the rules of `dedupfs prune`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keep {
    /// The last ones.
    pub last: u32,
    /// The last one of so many hours.
    pub hourly: u32,
    /// The last one of so many days.
    pub daily: u32,
    /// The same of weeks.
    pub weekly: u32,
    /// The same of months.
    pub monthly: u32,
    /// The same of years.
    pub yearly: u32,
}

impl Keep {
    /// The options of `dedupfs prune`.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let Self { last, hourly, daily, weekly, monthly, yearly } = *self;
        let rules = [
            ("last", last),
            ("hourly", hourly),
            ("daily", daily),
            ("weekly", weekly),
            ("monthly", monthly),
            ("yearly", yearly),
        ];
        rules
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .flat_map(|(rule, count)| [format!("--keep-{rule}"), count.to_string()])
            .collect()
    }
}

/// A machine that has disks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name in this plan.
    pub name: String,
    /// Disks that are read at once.
    #[serde(default = "one")]
    pub readers: usize,
    /// Bytes a second that its readers take together at most.
    pub rate: Option<NonZeroU64>,
    /// Bytes a second that its readers reach together. For estimates alone.
    #[serde(default = "default_rate")]
    pub assumed_rate: u64,
}

fn one() -> usize {
    1
}

fn default_rate() -> u64 {
    RATE
}

impl Host {
    /// Bytes a second that one of its readers takes at most.
    #[must_use]
    pub fn rate_of_reader(&self) -> Option<u64> {
        self.rate.map(|rate| (rate.get() / self.readers as u64).max(1))
    }

    /// Bytes a second that its readers reach together, as far as they may.
    #[must_use]
    pub fn expected_rate(&self) -> u64 {
        self.rate.map_or(self.assumed_rate, |rate| self.assumed_rate.min(rate.get()))
    }
}

/// A disk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Directory below the pool for its versions, such as `web-1/vda`.
    pub name: String,
    /// The host that has it.
    pub host: String,
    /// Where it is read: [`Kind`].
    pub source: Kind,
    /// Disks of one group begin before the first of them is read; those of one monitor, at the same moment. A disk that is tried again has
    /// a moment of its own.
    pub group: Option<String>,
    /// The agent of the guest, which holds its changes for the moment of the checkpoint.
    pub quiesce: Option<Agent>,
    /// Higher ones are read first.
    #[serde(default)]
    pub priority: i32,
    /// Time of day by which it is to be stored. Disks with a deadline come first on a host that would miss one.
    pub deadline: Option<Time>,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// A text that names the line, or the disk and how to mend it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }

    /// Time after which everything is compared again.
    #[must_use]
    pub fn full_verify_every(&self) -> Option<Duration> {
        self.full_verify_every.as_deref().and_then(duration).filter(|every| !every.is_zero())
    }

    /// Time between two attempts at a disk.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after.as_deref().map_or(Some(RETRY_AFTER), duration).unwrap_or_default()
    }

    /// Returns the place of a host in [`hosts`](Self::hosts).
    #[must_use]
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    fn check(&self) -> Result<(), String> {
        if self.verify.as_deref().is_some_and(|verify| !is_verify(verify)) {
            return Err("verify is \"full\", \"none\" or a percentage such as \"0.5%\"".to_owned());
        }
        if self.retries > RETRIES_MAX {
            return Err(format!("retries is a number up to {RETRIES_MAX}"));
        }
        if self.retry_after.as_deref().is_some_and(|time| duration(time).is_none()) {
            return Err("retry_after is a time such as \"30s\"".to_owned());
        }
        if self.full_verify_every.is_some() && self.full_verify_every().is_none() {
            return Err("full_verify_every is a time such as \"7d\"".to_owned());
        }
        if self.window.as_ref().is_some_and(|window| window.start == window.end) {
            return Err("the window is empty: its start is its end".to_owned());
        }
        if self.keep.is_some_and(|keep| keep.options().is_empty()) {
            return Err(
                "`keep` keeps nothing: give rules such as { last = 7, weekly = 4 }, or leave it out to keep all"
                    .to_owned(),
            );
        }
        if self.disks.is_empty() || self.disks.len() > DISKS_MAX {
            return Err(format!("it has {} disks: a plan has 1 to {DISKS_MAX}, each in a [[disk]]", self.disks.len()));
        }
        let mut hosts = HashSet::new();
        for Host { name, readers, assumed_rate, .. } in &self.hosts {
            if !hosts.insert(name) {
                return Err(format!("two hosts have the name {name}"));
            }
            if !(1..=READERS_MAX).contains(readers) || *assumed_rate == 0 {
                return Err(format!("host {name}: readers is a number from 1 to {READERS_MAX}, assumed_rate above 0"));
            }
        }
        let mut names = HashSet::new();
        for disk in &self.disks {
            let name = &disk.name;
            if !is_name_of_disk(name) {
                return Err(format!("disk {name:?}: its name is a path below the pool, such as web-1/vda"));
            }
            if !names.insert(Path::new(name).components().collect::<PathBuf>()) {
                return Err(format!("two disks have the name {name}"));
            }
            if !hosts.contains(&disk.host) {
                return Err(format!("disk {name}: there is no [[host]] with the name {}", disk.host));
            }
            if disk.quiesce.is_some() && !disk.source.tells_changes() {
                return Err(format!("disk {name}: its source stands still, so there is no moment to quiesce for"));
            }
            let shares_monitor = |other: &&Disk| {
                other.name != *name
                    && other.source.monitor().is_some()
                    && other.source.monitor() == disk.source.monitor()
            };
            let apart = self
                .disks
                .iter()
                .filter(shares_monitor)
                .find(|other| other.group.is_none() || other.group != disk.group);
            if let Some(other) = apart {
                return Err(format!("disk {name}: disk {} has the same monitor: give both the same group", other.name));
            }
            let is_same_node = |other: &&Disk| shares_monitor(other) && other.source == disk.source;
            if let Some(other) = self.disks.iter().find(is_same_node) {
                return Err(format!("disk {name}: disk {} has the same node of the same monitor", other.name));
            }
            let is_elsewhere =
                |other: &&Disk| other.group.is_some() && other.group == disk.group && other.host != disk.host;
            if let Some(other) = self.disks.iter().find(is_elsewhere) {
                return Err(format!("disk {name}: its group has a disk of another host, {}", other.name));
            }
        }
        // Versions of one disk among the directories of another would be pruned as its own.
        for name in &names {
            if let Some(above) = name.ancestors().skip(1).find(|above| names.contains(*above)) {
                return Err(format!(
                    "disk {}: it lies within the directory of disk {}",
                    name.display(),
                    above.display()
                ));
            }
        }
        Ok(())
    }
}

/// Whether it is a path below a pool that a disk may have as its name.
pub(crate) fn is_name_of_disk(name: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(part) if part.to_str().is_some_and(|part| !part.starts_with(".dedupfs")));
    !name.is_empty() && Path::new(name).components().all(is_plain)
}

/// Whether `dedupfs put --verify` takes it.
fn is_verify(text: &str) -> bool {
    let percent = || text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    matches!(text, "full" | "none") || percent().is_ok_and(|percent| (0.0..=100.0).contains(&percent))
}

/// Reads a time such as `7d`.
fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let exact = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(exact).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
pool = "/mnt/backup"
window = { start = "22:00", end = "05:00", at_end = "stop" }
order = "longest"
verify = "1%"
full_verify_every = "7d"
keep = { last = 7, weekly = 4 }

[[host]]
name = "kvm1"
readers = 4

[[disk]]
name = "web-1/vda"
host = "kvm1"
source = "qmp:/run/qemu/web-1.qmp node=drive0 scratch=/var/lib/dedupfs"
group = "web-1"
quiesce = "qga:/run/qemu/web-1.qga"

[[disk]]
name = "web-1/vdb"
host = "kvm1"
source = "file:/var/disks/vdb.raw"
priority = 1
deadline = "04:00"
"#;

    #[test]
    fn a_plan_is_read_as_written() {
        let plan = Plan::parse(PLAN).expect("is good");
        assert_eq!((plan.disks.len(), plan.retries, plan.hosts[0].readers, plan.order), (2, 2, 4, Policy::Longest));
        assert_eq!(plan.full_verify_every(), Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(plan.keep.expect("is there").options(), ["--keep-last", "7", "--keep-weekly", "4"]);
        let window = plan.window.as_ref().expect("is there");
        let at = |text: &str| text.parse().expect("is a time");
        assert!(["22:00", "23:59", "00:00", "04:59"].into_iter().all(|time| window.has(at(time))));
        assert!(["05:00", "12:00", "21:59"].into_iter().all(|time| !window.has(at(time))));
        assert_eq!(window.at_end, AtEnd::Stop);
        let host = |more: &str| Plan::parse(&PLAN.replace("readers = 4", more)).expect("is good").hosts.remove(0);
        let limited = host("readers = 4\nrate = 50_000_000");
        assert_eq!((limited.rate_of_reader(), limited.expected_rate()), (Some(12_500_000), 50_000_000));
        assert_eq!(host("readers = 4").rate_of_reader(), None);
        assert_eq!((plan.retry_after(), plan.disks[0].quiesce.is_some()), (Duration::from_secs(30), true));
        assert_eq!(
            Plan::parse(&format!("retry_after = \"0s\"\n{PLAN}")).expect("is good").retry_after(),
            Duration::ZERO
        );
    }

    #[test]
    fn plans_that_make_no_sense_are_refused_by_name() {
        for (from, to, why) in [
            ("order = \"longest\"", "order = \"random\"", "random"),
            ("order = \"longest\"", "alfa = 0.5", "alfa"),
            ("\"1%\"", "\"101%\"", "verify"),
            ("\"1%\"", "\"some\"", "verify"),
            (
                "source = \"file:/var/disks/vdb.raw\"",
                "source = \"qmp:/run/qemu/web-1.qmp node=drive1 scratch=/s\"",
                "same monitor",
            ),
            ("file:/var/disks/vdb.raw", "file:vdb.raw", "absolute"),
            (
                "source = \"file:/var/disks/vdb.raw\"",
                "group = \"web-1\"\nsource = \"qmp:/run/qemu/web-1.qmp node=drive0 scratch=/var/lib/dedupfs\"",
                "same node",
            ),
            ("file:/var/disks/vdb.raw", "nbd:kvm1/vdb", "nbd://"),
            ("\"7d\"", "\"soon\"", "full_verify_every"),
            ("\"7d\"", "\"0d\"", "full_verify_every"),
            ("verify = \"1%\"", "retry_after = \"5\"", "retry_after"),
            ("readers = 4", "rate = 0", "nonzero"),
            ("priority = 1", "quiesce = \"qga:/run/web-1.qga\"", "stands still"),
            ("qga:/run", "/run", "qga:SOCKET"),
            ("file:/var/disks/vdb.raw", "lvm-thin:vg", "VG/LV"),
            ("file:/var/disks/vdb.raw", "lvm-thin:vg/../x", "VG/LV"),
            ("file:/var/disks/vdb.raw", "rbd:pool/image@snap", "POOL/IMAGE"),
            ("file:/var/disks/vdb.raw", "rbd:pool//image", "POOL/IMAGE"),
            ("file:/var/disks/vdb.raw", "rbd:pool/image user=a,b", "POOL/IMAGE"),
            ("end = \"05:00\"", "end = \"22:00\"", "window is empty"),
            ("end = \"05:00\"", "end = \"25:00\"", "25:00"),
            ("{ last = 7, weekly = 4 }", "{ last = 0 }", "keeps nothing"),
            ("readers = 4", "readers = 0", "readers"),
            ("name = \"web-1/vdb\"", "name = \"web-1/vda\"", "two disks"),
            ("name = \"web-1/vdb\"", "name = \"web-1//vda/\"", "two disks"),
            ("name = \"web-1/vdb\"", "name = \"web-1/vda/x\"", "within the directory of disk web-1/vda"),
            ("name = \"web-1/vdb\"", "name = \"../x\"", "below the pool"),
            ("name = \"web-1/vdb\"", "name = \"/x\"", "below the pool"),
            ("name = \"web-1/vdb\"", "name = \"\"", "below the pool"),
            ("[[host]]\nname = \"kvm1\"", "[[host]]\nname = \"kvm2\"", "no [[host]] with the name kvm1"),
            ("[[host]]", "[[host]]\nname = \"kvm1\"\n[[host]]", "two hosts"),
            ("qmp:", "telnet:", "telnet"),
            ("node=drive0", "note=drive0", "note"),
            (" scratch=/var/lib/dedupfs", "", "lacks scratch"),
            ("file:/var/disks/vdb.raw", "file:", "lacks a path"),
        ] {
            assert!(PLAN.contains(from), "{from}");
            let error = Plan::parse(&PLAN.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(why), "{to}: {error}");
        }
        assert!(Plan::parse("pool = \"/mnt\"").expect_err("has no disks").contains("0 disks"));
        let elsewhere = PLAN.replace("priority = 1", "group = \"web-1\"").replacen(
            "[[host]]",
            "[[host]]\nname = \"kvm2\"\n\n[[host]]",
            1,
        );
        let at = elsewhere.rfind("host = \"kvm1\"").expect("is there");
        let elsewhere = format!("{}host = \"kvm2\"{}", &elsewhere[..at], &elsewhere[at + 13..]);
        assert!(Plan::parse(&elsewhere).expect_err("has two hosts").contains("another host"));
    }
}
