//! Exit codes: the only place that gives a failure its code. Results and notes are printed here, too.

use serde::Serialize;

use crate::control::{Failure, FailureKind};
use crate::report;

pub(crate) const OK: u8 = 0;
/// A failure without a code of its own.
pub(crate) const FAILED: u8 = 1;
/// put, get: copied in part. forget, prune: not all were removed. freeze: not all were frozen, or a live tree is left.
/// dedupfs-gc: `--stop` or an unmount ended it early.
pub(crate) const PARTLY: u8 = 9;

/// put of an image: the map of changes is wrong. Everything was read, and the version is right.
pub(crate) const MAP_IS_WRONG: u8 = 10;

/// fsck: something was wrong and was put right (as e2fsck).
pub(crate) const FSCK_CORRECTED: u8 = 1;
pub(crate) const FSCK_UNCORRECTED: u8 = 4;

/// fsck: ended early, by a signal, `--stop` or an unmount; added to the other codes.
pub(crate) const FSCK_ENDED_EARLY: u8 = 32;

#[cfg(feature = "remote")]
pub(crate) const HELP_OF_STORES: &str = "\
Exit codes: 0 ok; 1 failed, or the store cannot hold copies of pools; 2 usage; 5 no space.";

#[cfg(feature = "remote")]
pub(crate) const HELP_OF_REPLICAS: &str = "\
Exit codes: 0 ok; 1 failed, such as a store that cannot be reached; 2 usage, such as a wrong key; 3 not a pool, a part of it missing,
  or of an unknown format; 4 pool in use, or replicated already; 5 no space; 6 pool or replica damaged; 9 interrupted: the next run goes on.";

/// Lists of the exit codes in the `--help` of commands.
pub(crate) const HELP: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.";

pub(crate) const HELP_WITHOUT_MOUNT: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged.";

pub(crate) const HELP_OF_GC: &str = "\
Exit codes: 0 ok, or ended by --max-time or --max-io; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown
  format; 4 pool in use; 5 no space; 6 pool damaged, or its counts in doubt; 9 ended early by --stop or an unmount; 130 (SIGINT),
  143 (SIGTERM), 129 (SIGHUP) interrupted. The next run goes on.";

pub(crate) const HELP_OF_COPIES: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space in the pool, or at the destination; 6 pool damaged; 9 copied, but not all of it: messages name the rest;
  put of an image: 10 its map of changes is wrong, so all of it was read.
  get: 1 also if --include and --exclude leave nothing.";

pub(crate) const HELP_OF_DISKS: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 9 a disk is not stored, or has a problem: messages
  name it.";

pub(crate) const HELP_OF_FORGETTING: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 9 not all was done, such as a version that could not be removed: messages tell the rest.";

pub(crate) const HELP_OF_FREEZING: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 9 not all of them were frozen, or a live tree is left over: messages name the rest.";

pub(crate) const HELP_OF_MKFS: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 4 directory in use; 5 no space; 10 the directory holds a pool already, or something else.";

pub(crate) const HELP_OF_ALL: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.
  put and get: 9 copied, but not all of it. put: 10 the map of changes is wrong, so all of the image was read (11 is reserved).
  batch, cluster: 9 a disk is not stored, or has a problem.
  forget and prune: 9 not all of them removed.
  freeze: 9 not all of them frozen.
  mkfs: 10 the directory is taken. fsck and scrub have their own, as e2fsck: 0 clean; 1 corrected; 4 errors left;
  8 could not check; 16 usage; 32 ended early (added to the others).";

/// All codes, each with the commands that have it, in the order of the table in `docs/guide.md`. A code may mean something else for another
/// command: scripts know which one they called.
#[cfg(test)]
const TABLE: [(u8, &str); 28] = [
    (0, "all"),
    (1, ALL_BUT_CHECKS),
    (2, ALL_BUT_CHECKS),
    (3, ALL_BUT_CHECKS),
    (4, ALL_BUT_CHECKS),
    (5, ALL_BUT_CHECKS),
    (6, ALL_BUT_CHECKS),
    (7, "`mount`"),
    (8, "`mount`, `umount`"),
    (9, "`put`, `get`"),
    (9, "`batch`, `cluster`"),
    (9, "`forget`, `prune`"),
    (9, "`freeze`"),
    (9, "`dedupfs-gc`"),
    (10, "`mkfs`"),
    (10, "`put`"),
    (11, "`put`"),
    (129, "`dedupfs-gc`"),
    (130, "`dedupfs-gc`"),
    (143, "`dedupfs-gc`"),
    (1, CHECKS),
    (4, CHECKS),
    (8, CHECKS),
    (16, CHECKS),
    (32, CHECKS),
    (1, HELPERS),
    (2, HELPERS),
    (32, HELPERS),
];
#[cfg(test)]
const ALL_BUT_CHECKS: &str = "all but `fsck`, `scrub` and the helpers";
#[cfg(test)]
const CHECKS: &str = "`fsck`, `scrub`";
#[cfg(test)]
const HELPERS: &str = "helpers of mount(8) and umount(8)";

/// Returns the exit code of a kind of failure. [`HELP_OF_ALL`] explains the codes.
pub(crate) const fn code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Failed => FAILED,
        FailureKind::Usage => 2,
        FailureKind::NotAPool => 3,
        FailureKind::PoolInUse => 4,
        FailureKind::NoSpace => 5,
        FailureKind::Damaged => 6,
        FailureKind::FuseUnavailable => 7,
        FailureKind::MountpointUnusable => 8,
        FailureKind::Occupied => 10,
        FailureKind::Ended => PARTLY,
    }
}

pub(crate) const fn fsck_code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Usage => 16,
        FailureKind::Damaged => FSCK_UNCORRECTED,
        FailureKind::Ended => FSCK_ENDED_EARLY,
        FailureKind::Failed
        | FailureKind::NotAPool
        | FailureKind::PoolInUse
        | FailureKind::NoSpace
        | FailureKind::FuseUnavailable
        | FailureKind::MountpointUnusable
        | FailureKind::Occupied => 8,
    }
}

pub(crate) const fn mount_code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Usage => 1,
        FailureKind::FuseUnavailable => 2,
        FailureKind::Failed
        | FailureKind::NotAPool
        | FailureKind::PoolInUse
        | FailureKind::NoSpace
        | FailureKind::Damaged
        | FailureKind::MountpointUnusable
        | FailureKind::Occupied
        | FailureKind::Ended => 32,
    }
}

/// Prints a note on standard error. A note is no result, so a failure to print it is ignored.
pub(crate) fn tell(text: &str) {
    let _unread = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

/// Prints a result on standard output as one line of JSON of the given type (`docs/json.md`), or as text.
pub(crate) fn print_message<T: Serialize>(
    json: bool,
    message_type: &str,
    result: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    print(&if json { report::message(message_type, result)? } else { text(result) })
}

/// Prints the failure of a command as JSON on standard output, too, if it was asked for JSON. `code` is that of the command.
pub(crate) fn also_as_json(
    json: bool,
    code: impl Fn(FailureKind) -> u8,
    result: Result<u8, Failure>,
) -> Result<u8, Failure> {
    if json && let Err(failure) = &result {
        print_error(code(failure.kind), &failure.message)?;
    }
    result
}

/// Prints an error as JSON.
pub(crate) fn print_error(code: u8, message: &str) -> Result<(), Failure> {
    print(&report::message("error", &serde_json::json!({ "code": code, "message": message }))?)
}

/// Says in JSON, if it was asked for, that a command whose only result is that has done `what`.
pub(crate) fn print_done(json: bool, what: &str) -> Result<(), Failure> {
    print_message(json, "done", &serde_json::json!({ "command": what }), |_| String::new())
}

/// Prints a result on standard output. Output that cannot be written is a failure, but a closed pipe is none.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `dedupfs-stats POOL | head -1` is no error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FailureKind; 10] = [
        FailureKind::Failed,
        FailureKind::Usage,
        FailureKind::NotAPool,
        FailureKind::PoolInUse,
        FailureKind::NoSpace,
        FailureKind::Damaged,
        FailureKind::FuseUnavailable,
        FailureKind::MountpointUnusable,
        FailureKind::Occupied,
        FailureKind::Ended,
    ];

    #[test]
    fn codes_are_distinct_and_documented() {
        let codes: std::collections::BTreeSet<_> = KINDS.iter().map(|kind| code(*kind)).collect();
        assert_eq!(codes.len(), KINDS.len());
        assert!(!codes.contains(&OK));
        for code in codes {
            assert!(HELP_OF_ALL.contains(&format!(" {code} ")), "{code} is missing in the help");
        }
        assert!(HELP_OF_ALL.starts_with(HELP) && HELP.starts_with(HELP_WITHOUT_MOUNT.trim_end_matches('.')));
    }

    #[test]
    fn fsck_follows_e2fsck() {
        assert_eq!(fsck_code(FailureKind::Damaged), 4);
        assert_eq!(fsck_code(FailureKind::PoolInUse), 8);
        assert_eq!(fsck_code(FailureKind::NotAPool), 8);
        assert_eq!(fsck_code(FailureKind::Usage), 16);
        assert_eq!(fsck_code(FailureKind::Ended), 32);
    }

    /// The rows of the table in the guide: code and commands.
    fn rows_of_the_guide() -> Vec<(u8, String)> {
        let guide = include_str!("../../docs/guide.md");
        let section = guide.split("\n## Exit codes\n").nth(1).and_then(|rest| rest.split("\n## ").next());
        let cells = section.unwrap_or_default().lines().map(|line| line.split(" | ").collect::<Vec<_>>());
        let row = |cells: Vec<&str>| match cells[..] {
            [code, commands, _meaning] => Some((code.trim_start_matches("| ").parse().ok()?, commands.to_owned())),
            _ => None,
        };
        cells.filter_map(row).collect()
    }

    #[test]
    fn the_guide_has_the_table_and_the_table_has_every_code() {
        let table: Vec<(u8, String)> = TABLE.iter().map(|(code, commands)| (*code, (*commands).to_owned())).collect();
        assert_eq!(rows_of_the_guide(), table);
        let has = |code: u8, commands: &str| TABLE.contains(&(code, commands));
        for kind in KINDS {
            let commands = match kind {
                FailureKind::FuseUnavailable => "`mount`",
                FailureKind::MountpointUnusable => "`mount`, `umount`",
                FailureKind::Occupied => "`mkfs`",
                FailureKind::Ended => "`dedupfs-gc`",
                _ => ALL_BUT_CHECKS,
            };
            assert!(has(code(kind), commands), "{kind:?}");
            assert!(has(fsck_code(kind), CHECKS), "fsck: {kind:?}");
            assert!(has(mount_code(kind), HELPERS), "mount.dedupfs: {kind:?}");
        }
        for commands in ["`put`, `get`", "`batch`, `cluster`", "`forget`, `prune`", "`freeze`", "`dedupfs-gc`"] {
            assert!(has(PARTLY, commands), "{commands}");
        }
        for code in [FSCK_CORRECTED, FSCK_UNCORRECTED, FSCK_ENDED_EARLY] {
            assert!(has(code, CHECKS), "{code}");
        }
        // What is reserved is given by nothing yet.
        assert!(KINDS.iter().all(|kind| code(*kind) != 11));
    }

    #[test]
    fn helps_list_codes_of_the_table_only() {
        let all: std::collections::BTreeSet<u8> = TABLE.iter().map(|(code, _)| *code).collect();
        for help in [
            HELP,
            HELP_WITHOUT_MOUNT,
            HELP_OF_GC,
            HELP_OF_COPIES,
            HELP_OF_DISKS,
            HELP_OF_FORGETTING,
            HELP_OF_FREEZING,
            HELP_OF_MKFS,
            HELP_OF_ALL,
        ] {
            let numbers = help.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
            // e2fsck has a digit in its name.
            let strange: Vec<u8> = numbers.filter(|code| !all.contains(code)).collect();
            assert!(strange.is_empty(), "{strange:?} in {help}");
        }
    }
}
