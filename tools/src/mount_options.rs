//! The option `-o`: lists of options with commas, as in fstab(5).
//!
//! 1. Lists are split at commas. Double quotes keep commas together, as for mount(8).
//! 2. Options of mount(8) and systemd that mean nothing to a filesystem are ignored. Options of the kernel are passed on. Options of the
//!    pool are checked here, before anything is opened.

use std::path::{Path, PathBuf};

use dedupfs::{AccessTimes, FilterPlan, SpaceLimits};
use dedupfs_fuse::{KeepAwake, MountOptions};

use crate::control::{Failure, FailureKind};
use crate::gc_policy::Policy;
use crate::size;

/// Options of mount(8) and fstab(5), and options that hold for all mounts anyway. A value behind `=` does not matter.
const IGNORED_OPTIONS: &str = "defaults auto noauto nofail _netdev user nouser users nousers owner noowner group nogroup comment \
                               norelatime strictatime nostrictatime lazytime nolazytime iversion noiversion mand nomand silent loud \
                               default_permissions";
/// Options that the kernel shows of an existing mount. mount(8) gives them back in a remount.
const SHOWN_OPTIONS: [&str; 6] = ["user_id", "group_id", "rootmode", "fd", "max_read", "blksize"];
/// Options that the kernel or the fuse crate takes unchanged.
const PLAIN_OPTIONS: [&str; 9] = ["dev", "nodev", "suid", "nosuid", "exec", "noexec", "sync", "async", "dirsync"];
const OPTIONS_HELP: &str = "known are ro, rw, allow_other, relatime, noatime, nodiratime, dev, suid, noexec, sync, dirsync (and their \
                            opposites), no_open, threads=N, keep_awake=auto|on|off, data_limit=SIZE, meta_limit=SIZE, memory=SIZE, filters=LIST, \
                            log_file=FILE, gc[=on|idle|off], gc_threshold=PERCENT, gc_leave=PERCENT, gc_share=PERCENT, \
                            gc_window=HOUR-HOUR, gc_interval=SECONDS, arrange=idle|on|off, for replicas \
                            key=FILE, passphrase_file=FILE, cache=DIR, cache_size=SIZE, and those of mount(8) and systemd";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) mount: MountOptions,
    pub(crate) limits: SpaceLimits,
    directory_times: bool,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) filters: Option<FilterPlan>,
    pub(crate) log_file: Option<PathBuf>,
    pub(crate) gc: Policy,
    pub(crate) remount: bool,
    pub(crate) replica: ReplicaOptions,
}

/// How a replica is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplicaOptions {
    pub(crate) key: Option<PathBuf>,
    pub(crate) passphrase_file: Option<PathBuf>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cache_bytes: Option<u64>,
}

/// Splits lists at commas; `filters="open,sealed"` is one option.
pub(crate) fn split(lists: &[String]) -> Vec<String> {
    let mut options = Vec::new();
    for list in lists {
        let (mut option, mut is_quoted) = (String::new(), false);
        for letter in list.chars().chain([',']) {
            match letter {
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => options.push(std::mem::take(&mut option)),
                letter => option.push(letter),
            }
        }
        // A quote without its end.
        options.push(option);
    }
    options.retain(|option| !option.is_empty());
    options
}

/// Parses the options of a mount. An option that is unknown or makes no sense is a usage error.
pub(crate) fn parse(pool: &Path, lists: &[String]) -> Result<Options, Failure> {
    let (options, unknown) = parse_known(pool, lists)?;
    match unknown.first() {
        None => Ok(options),
        Some(option) => Err(usage(format!("mount option `{option}` is not known: {OPTIONS_HELP}"))),
    }
}

/// Like [`parse`], but returns unknown options beside the others.
pub(crate) fn parse_known(pool: &Path, lists: &[String]) -> Result<(Options, Vec<String>), Failure> {
    let source = pool.to_str().ok_or_else(|| {
        usage(format!("the path of pool {} is not UTF-8: rename a directory on the way or use a link", pool.display()))
    })?;
    let mut options = Options {
        mount: MountOptions { source: source.to_owned(), ..MountOptions::default() },
        limits: SpaceLimits::default(),
        directory_times: true,
        memory_bytes: None,
        filters: None,
        log_file: None,
        gc: Policy::default(),
        remount: false,
        replica: ReplicaOptions::default(),
    };
    let (mut unknown, mut shown) = (Vec::new(), Vec::new());
    for option in split(lists) {
        match options.take(&option)? {
            Taken::Known => {}
            Taken::Shown => shown.push(option),
            Taken::Unknown => unknown.push(option),
        }
    }
    if !options.remount {
        unknown.append(&mut shown);
        if options.gc.is_incomplete() {
            return Err(usage(
                "mount options gc_… say how to reclaim in the background, but only `gc`, `gc=idle`, `arrange` or `arrange=idle` turns it on: add one of them"
                    .to_owned(),
            ));
        }
        if options.mount.no_open && !options.mount.read_only {
            return Err(usage(
                "mount option `no_open` lets the kernel read without opening files, which is right only while nothing changes: add `ro`"
                    .to_owned(),
            ));
        }
    }
    if options.mount.read_only {
        options.gc.is_on = false;
    }
    Ok((options, unknown))
}

enum Taken {
    Known,
    /// Makes sense only for an existing mount.
    Shown,
    Unknown,
}

impl Options {
    pub(crate) fn access_times(&self) -> AccessTimes {
        match (self.mount.no_atime, self.directory_times) {
            (true, _) => AccessTimes::Never,
            (false, true) => AccessTimes::Relative,
            (false, false) => AccessTimes::RelativeButDirectories,
        }
    }

    fn take(&mut self, option: &str) -> Result<Taken, Failure> {
        let wrong = |advice: String| usage(format!("mount option `{option}`: {advice}"));
        let limit = |value: &str| match size::parse_size(value) {
            Ok(0) => Err(wrong("a limit of 0 would let nothing be written; use `ro` for that".to_owned())),
            Ok(bytes) => Ok(Some(bytes)),
            Err(advice) => Err(wrong(advice)),
        };
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if self.gc.take(name, value).map_err(wrong)? {
            return Ok(Taken::Known);
        }
        match (name, value) {
            ("ro", "") => self.mount.read_only = true,
            ("rw", "") => self.mount.read_only = false,
            ("no_open", "") => self.mount.no_open = true,
            ("remount", "") => self.remount = true,
            ("allow_other", "") => self.mount.allow_other = true,
            ("noatime", "") => self.mount.no_atime = true,
            ("atime" | "relatime", "") => self.mount.no_atime = false,
            ("nodiratime", "") => self.directory_times = false,
            ("diratime", "") => self.directory_times = true,
            ("threads", number) => {
                self.mount.session_threads = match number.parse() {
                    Ok(threads @ 1..=16) => threads,
                    _ => return Err(wrong("a number from 1 to 16 is needed".to_owned())),
                };
            }
            ("keep_awake", value) => {
                self.mount.keep_awake = match value {
                    "auto" => KeepAwake::Auto,
                    "on" => KeepAwake::On,
                    "off" => KeepAwake::Off,
                    _ => return Err(wrong("auto, on or off is needed".to_owned())),
                };
            }
            ("data_limit", value) => self.limits.data_bytes = limit(value)?,
            ("meta_limit", value) => self.limits.meta_bytes = limit(value)?,
            ("memory", value) => self.memory_bytes = Some(size::parse_memory(value).map_err(wrong)?),
            // In fstab a comma would end the option.
            ("filters", list) => {
                let plan = list.replace(':', ",").parse();
                self.filters = Some(plan.map_err(|advice| wrong(format!("{advice}; put `:` between filters")))?);
            }
            ("log_file" | "key" | "passphrase_file", "") => return Err(wrong("a file is needed".to_owned())),
            ("cache", "") => return Err(wrong("a directory is needed".to_owned())),
            ("key", path) => self.replica.key = Some(path.into()),
            ("passphrase_file", path) => self.replica.passphrase_file = Some(path.into()),
            ("cache", path) => self.replica.cache = Some(path.into()),
            ("cache_size", value) => self.replica.cache_bytes = Some(size::parse_size(value).map_err(wrong)?),
            ("log_file", path) => self.log_file = Some(path.into()),
            (name, "") if PLAIN_OPTIONS.contains(&name) => self.mount.extra.push(name.to_owned()),
            (name, _)
                if IGNORED_OPTIONS.split(' ').any(|ignored| ignored == name)
                    || name.starts_with("x-")
                    || name.starts_with("X-") => {}
            (name, _) if SHOWN_OPTIONS.contains(&name) => return Ok(Taken::Shown),
            _ => return Ok(Taken::Unknown),
        }
        Ok(Taken::Known)
    }
}

fn usage(message: String) -> Failure {
    FailureKind::Usage.because(message)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn parse(lists: &[&str]) -> Result<Options, Failure> {
        let lists: Vec<_> = lists.iter().map(|list| (*list).to_owned()).collect();
        super::parse(Path::new("/pool"), &lists)
    }

    #[test]
    fn options_are_understood() {
        let options = parse(&["ro,noatime", "allow_other,dev,defaults,x-systemd.automount,threads=2"]).unwrap().mount;
        assert!(options.read_only && options.no_atime && options.allow_other);
        assert_eq!((options.source.as_str(), options.session_threads), ("/pool", 2));
        assert_eq!(options.extra, ["dev"]);
        assert_eq!(options.keep_awake, KeepAwake::Auto);
        assert_eq!(parse(&["keep_awake=off"]).unwrap().mount.keep_awake, KeepAwake::Off);
        assert!(!parse(&["ro", "rw"]).unwrap().mount.read_only);
        assert!(parse(&["no_open,ro"]).unwrap().mount.no_open && !parse(&["ro"]).unwrap().mount.no_open);
        assert!(parse(&["no_open"]).unwrap_err().message.contains("add `ro`"));
        assert!(parse(&["remount,rw,no_open"]).is_ok(), "the daemon refuses it");
    }

    #[test]
    fn the_last_option_says_what_reading_changes() {
        let times = |lists: &[&str]| parse(lists).unwrap().access_times();
        assert_eq!(times(&["ro"]), AccessTimes::Relative);
        assert_eq!(times(&["noatime,relatime"]), AccessTimes::Relative);
        assert_eq!(times(&["relatime", "noatime"]), AccessTimes::Never);
        assert_eq!(times(&["nodiratime"]), AccessTimes::RelativeButDirectories);
        assert_eq!(times(&["noatime,nodiratime"]), AccessTimes::Never);
        // Reads from the kernel's cache are not seen, so strict access times cannot be kept.
        assert_eq!(times(&["strictatime"]), AccessTimes::Relative);
    }

    #[test]
    fn what_fstab_has_besides_is_passed_over() {
        let line = "defaults,noauto,nofail,_netdev,user=me,users,owner,x-systemd.requires-mounts-for=/srv,X-mount.mkdir,\
                    comment=my pool,relatime,strictatime,nodiratime,lazytime,default_permissions,x-gvfs-hide";
        let options = parse(&[line]).unwrap();
        assert!(options.mount.extra.is_empty() && !options.mount.read_only && !options.remount, "{options:?}");
    }

    #[test]
    fn what_has_options_of_its_own_can_stand_in_fstab() {
        let options = parse(&["memory=1G,filters=open:bloom:sealed,log_file=/var/log/d,fs.log"]);
        assert!(options.unwrap_err().message.contains("fs.log"));
        let options = parse(&["memory=1G,filters=open:bloom:sealed,log_file=\"/var/log/d,fs.log\""]).unwrap();
        assert_eq!(options.memory_bytes, Some(1 << 30));
        assert_eq!(options.filters.unwrap().to_string(), "open,bloom,sealed");
        assert_eq!(options.log_file.unwrap(), Path::new("/var/log/d,fs.log"));
        assert_eq!(parse(&["filters=\"open,sealed\""]).unwrap().filters.unwrap().to_string(), "open,sealed");
        for option in ["memory=12", "memory", "filters=fast", "filters", "log_file", "log_file="] {
            let failure = parse(&[option]).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage);
            assert!(failure.message.contains(option), "{failure}");
        }
    }

    #[test]
    fn a_remount_takes_what_the_kernel_shows() {
        let shown = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        let options = parse(&[shown]).unwrap();
        assert!(options.remount && options.mount.read_only && options.mount.allow_other);
        assert!(parse(&["rw,user_id=0"]).unwrap_err().message.contains("user_id=0"));
    }

    #[test]
    fn unknown_options_can_be_told_apart() {
        let lists = ["ro,fast".to_owned(), "slow=1".to_owned()];
        let (options, unknown) = parse_known(Path::new("/pool"), &lists).unwrap();
        assert!(options.mount.read_only);
        assert_eq!(unknown, ["fast", "slow=1"]);
    }

    #[test]
    fn limits_are_sizes_for_each_root() {
        assert_eq!(parse(&["ro"]).unwrap().limits, SpaceLimits::default());
        let limits = parse(&["data_limit=2T,ro", "meta_limit=512M"]).unwrap().limits;
        assert_eq!(limits, SpaceLimits { data_bytes: Some(2 << 40), meta_bytes: Some(512 << 20) });
        for option in
            ["data_limit=much", "meta_limit=", "data_limit", "meta_limit=0", "data_limit=-1", "meta_limit=99999999T"]
        {
            let failure = parse(&[option]).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage);
            assert!(failure.message.contains(option), "{failure}");
        }
    }

    #[test]
    fn unknown_options_are_usage_errors_that_name_the_known() {
        for option in ["fast", "ro=1", "threads=0", "threads=x", "keep_awake", "auto_unmount", "fsname=x"] {
            let failure = parse(&[option]).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage);
            assert!(failure.message.contains(option), "{failure}");
        }
        assert!(parse(&["fast"]).unwrap_err().message.contains("allow_other"));
        assert!(parse(&["limit=1G"]).unwrap_err().message.contains("data_limit=SIZE, meta_limit=SIZE"));
    }
}
