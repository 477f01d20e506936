//! Exit codes: the only place that gives a failure its code. Results and notes are printed here, too.

use serde::Serialize;

use crate::control::{Failure, FailureKind};
use crate::report;

pub(crate) const OK: u8 = 0;
/// A failure without a code of its own.
pub(crate) const FAILED: u8 = 1;
/// put and get: copied in part; messages name the rest. forget and prune: not all were removed. freeze: not all were frozen. dedupfs-gc: --stop or an unmount ended it
/// early.
pub(crate) const PARTLY: u8 = 9;

/// fsck: something was wrong and was put right (as e2fsck).
pub(crate) const FSCK_CORRECTED: u8 = 1;
pub(crate) const FSCK_UNCORRECTED: u8 = 4;

/// fsck: ended early, by a signal, `--stop` or an unmount; added to the other codes.
pub(crate) const FSCK_ENDED_EARLY: u8 = 32;

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
  4 pool in use; 5 no space in the pool, or at the destination; 6 pool damaged; 9 copied, but not all of it: messages name the rest.";

pub(crate) const HELP_OF_FORGETTING: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 9 not all of them were removed: messages name the rest.";

pub(crate) const HELP_OF_FREEZING: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 9 not all of them were frozen, or a live tree is left over: messages name the rest.";

pub(crate) const HELP_OF_MKFS: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 4 directory in use; 5 no space; 10 the directory holds a pool already, or something else.";

pub(crate) const HELP_OF_ALL: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.
  put and get: 9 copied, but not all of it. forget and prune: 9 not all of them removed. freeze: 9 not all of them frozen. mkfs: 10 the directory is taken. fsck and scrub have their own, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage;
  32 ended early (added to the others).";

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

/// Prints a result on standard output as JSON or as text.
pub(crate) fn print_as<T: Serialize>(json: bool, result: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    print(&if json { report::json(result)? } else { text(result) })
}

/// Prints a result on standard output as one line of JSON of the given type, or as text. For the commands of `docs/json.md`.
pub(crate) fn print_message<T: Serialize>(
    json: bool,
    message_type: &str,
    result: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    print(&if json { report::message(message_type, result)? } else { text(result) })
}

/// Prints the failure of a command as JSON on standard output, too, if it was asked for JSON.
pub(crate) fn also_as_json(json: bool, result: Result<u8, Failure>) -> Result<u8, Failure> {
    if json && let Err(failure) = &result {
        let error = serde_json::json!({ "code": code(failure.kind), "message": failure.message });
        print(&report::message("error", &error)?)?;
    }
    result
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

    #[test]
    fn the_guide_documents_every_code() {
        let guide = include_str!("../../docs/guide.md");
        for code in KINDS.iter().map(|kind| code(*kind)) {
            assert!(guide.contains(&format!("| {code} |")), "exit code {code} is missing in docs/guide.md");
        }
    }
}
