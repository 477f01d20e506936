//! Exit codes, and the only place that turns an error into a message and a code.

use std::process::ExitCode;

use crate::control::{Failure, FailureKind};

/// Everything went well.
pub const OK: u8 = 0;
/// An I/O error or another failure without a code of its own.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// Not a pool, a part of the pool is missing, or its format is unknown.
pub const NOT_A_POOL: u8 = 3;
/// Another process holds the pool.
pub const POOL_IN_USE: u8 = 4;
/// The disk under the pool is full.
pub const NO_SPACE: u8 = 5;
/// The pool is damaged.
pub const DAMAGED: u8 = 6;
/// No FUSE on this machine, or not for this user.
pub const FUSE_UNAVAILABLE: u8 = 7;
/// The mountpoint is absent, taken, or busy.
pub const MOUNTPOINT: u8 = 8;

/// put and get: copied in part; messages name the rest. dedupfs-gc: --stop or an unmount ended it early.
pub const PARTLY: u8 = 9;
/// mkfs: the directory holds a pool or other files already.
pub const OCCUPIED: u8 = 10;

/// fsck: something was wrong and was put right (as e2fsck).
pub const FSCK_CORRECTED: u8 = 1;
/// fsck: something is wrong.
pub const FSCK_UNCORRECTED: u8 = 4;
/// fsck: the check could not be made.
pub const FSCK_OPERATIONAL: u8 = 8;
/// fsck: the command line makes no sense.
pub const FSCK_USAGE: u8 = 16;

/// fsck: ended early, by a signal, `--stop` or an unmount; added to the other codes.
pub const FSCK_ENDED_EARLY: u8 = 32;

/// Helpers of mount(8) and umount(8): the command line makes no sense.
pub const MOUNT_USAGE: u8 = 1;
/// Helpers of mount(8) and umount(8): no FUSE on this machine, or not for this user.
pub const MOUNT_SYSTEM: u8 = 2;
/// Helpers of mount(8) and umount(8): not mounted, or not unmounted.
pub const MOUNT_FAILED: u8 = 32;

/// The list in the `--help` of commands that mount.
pub const HELP: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.";

/// The list of commands that need no mountpoint.
pub const HELP_WITHOUT_MOUNT: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged.";

/// The list of reclaiming.
pub const HELP_OF_GC: &str = "\
Exit codes: 0 ok, or ended by --max-time or --max-io; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown
  format; 4 pool in use; 5 no space; 6 pool damaged, or its counts in doubt; 9 ended early by --stop or an unmount; 130 (SIGINT),
  143 (SIGTERM), 129 (SIGHUP) interrupted. The next run goes on.";

/// The list of put and get.
pub const HELP_OF_COPIES: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space in the pool, or at the destination; 6 pool damaged; 9 copied, but not all of it: messages name the rest.";

/// The list of mkfs.
pub const HELP_OF_MKFS: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 4 directory in use; 5 no space; 10 the directory holds a pool already, or something else.";

/// The list of all commands together.
pub const HELP_OF_ALL: &str = "\
Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.
  put and get: 9 copied, but not all of it. mkfs: 10 the directory is taken. fsck and scrub have their own, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage;
  32 ended early (added to the others).";

/// Returns the exit code of a kind of failure.
#[must_use]
pub const fn code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Failed => FAILED,
        FailureKind::Usage => USAGE,
        FailureKind::NotAPool => NOT_A_POOL,
        FailureKind::PoolInUse => POOL_IN_USE,
        FailureKind::NoSpace => NO_SPACE,
        FailureKind::Damaged => DAMAGED,
        FailureKind::FuseUnavailable => FUSE_UNAVAILABLE,
        FailureKind::MountpointUnusable => MOUNTPOINT,
        FailureKind::Occupied => OCCUPIED,
        FailureKind::Ended => PARTLY,
    }
}

/// Returns the exit code of fsck for a kind of failure.
#[must_use]
pub const fn fsck_code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Usage => FSCK_USAGE,
        FailureKind::Damaged => FSCK_UNCORRECTED,
        FailureKind::Ended => FSCK_ENDED_EARLY,
        FailureKind::Failed
        | FailureKind::NotAPool
        | FailureKind::PoolInUse
        | FailureKind::NoSpace
        | FailureKind::FuseUnavailable
        | FailureKind::MountpointUnusable
        | FailureKind::Occupied => FSCK_OPERATIONAL,
    }
}

/// Returns the exit code of the helpers of mount(8) and umount(8) for a kind of failure.
#[must_use]
pub const fn mount_code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Usage => MOUNT_USAGE,
        FailureKind::FuseUnavailable => MOUNT_SYSTEM,
        FailureKind::Failed
        | FailureKind::NotAPool
        | FailureKind::PoolInUse
        | FailureKind::NoSpace
        | FailureKind::Damaged
        | FailureKind::MountpointUnusable
        | FailureKind::Occupied
        | FailureKind::Ended => MOUNT_FAILED,
    }
}

/// Prints a failure and returns its code.
pub fn report(program: &str, failure: &Failure) -> u8 {
    eprintln!("{program}: {failure}");
    code(failure.kind)
}

/// Ends a program: prints the failure, if there is one, and returns the code.
pub fn conclude(program: &str, result: Result<u8, Failure>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|failure| report(program, &failure)))
}

/// Prints clap's message (help and version included) and returns the code.
pub fn usage(error: &clap::Error) -> u8 {
    // If even this cannot be printed, nothing is left to do.
    let _ = error.print();
    if error.use_stderr() { USAGE } else { OK }
}

/// Prints a note on standard error. A note is no result, so a failure to print it is ignored.
pub fn tell(text: &str) {
    let _unread = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

/// Prints a result on standard output. Output that cannot be written is a failure, but a closed pipe is none.
pub fn print(text: &str) -> Result<(), Failure> {
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
