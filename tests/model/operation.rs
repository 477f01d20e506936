//! The operations that are done on both sides.

use proptest::prelude::*;

/// Number of files.
pub const FILES: u8 = 12;
/// Number of files that are not regular.
pub const SPECIALS: u8 = 4;
/// Number of directories below the root.
pub const DIRECTORIES: u8 = 4;
/// Number of names that versions have in a directory.
pub const VERSION_NAMES: u8 = 3;

/// One operation; files are named by small numbers so that operations meet.
#[derive(Clone, Debug)]
pub enum Operation {
    Write {
        file: u8,
        offset: u32,
        len: u32,
        seed: u8,
        keep_open: bool,
    },
    Append {
        file: u8,
        len: u32,
        seed: u8,
    },
    Truncate {
        file: u8,
        size: u32,
    },
    Zero {
        file: u8,
        from: u32,
        len: u32,
    },
    /// copy_file_range(2), in one file or between two.
    Clone {
        from: u8,
        to: u8,
        offset: u32,
        at: u32,
        len: u32,
        keep_open: bool,
    },
    Rename {
        from: u8,
        to: u8,
        exchange: bool,
    },
    Link {
        from: u8,
        to: u8,
    },
    Unlink {
        file: u8,
    },
    MakeDirectory {
        directory: u8,
    },
    RemoveDirectory {
        directory: u8,
    },
    Xattr {
        file: u8,
        name: u8,
        len: u16,
    },
    RemoveXattr {
        file: u8,
        name: u8,
    },
    Chmod {
        file: u8,
        mode: u16,
    },
    Read {
        file: u8,
        offset: u32,
        len: u32,
    },
    CloseAll,
    Sync,
    Remount,
    /// A power loss right after a sync.
    Crash {
        seed: u64,
    },
    /// The daemon dies right after a sync; the system lives on.
    Kill,
    Reclaim {
        threshold_percent: u8,
    },
    RebuildIndex,
    /// Makes a symbolic link, a pipe, a socket or a device, or removes it.
    Special {
        special: u8,
        kind: u8,
    },
    /// Gives a file, a special one or a directory another owner and time.
    Own {
        file: u8,
        uid: u8,
        secs: i32,
    },
    /// Changes mode, owner, time and an attribute of a directory.
    ChangeDirectory {
        directory: u8,
        mode: u16,
        secs: i32,
        len: u16,
    },
    /// Exchanges the names of two directories.
    ExchangeDirectories,
    /// Makes a version of a directory; 0 is the root.
    Snapshot {
        source: u8,
        into: u8,
        name: u8,
    },
    /// The power goes right behind a snapshot, which nobody has synced.
    SnapshotAndCrash {
        source: u8,
        into: u8,
        name: u8,
        seed: u64,
    },
    /// Freezes a directory in place, or tries to, because something changes in the last moment.
    Freeze {
        source: u8,
        name: u8,
        changes: bool,
    },
    /// Removes a version.
    Forget {
        version: u8,
    },
    /// The power goes right behind the removal, which nobody has synced.
    ForgetAndCrash {
        version: u8,
        seed: u64,
    },
    /// Compares a version with what was frozen.
    ReadVersion {
        version: u8,
    },
    /// Renames a version, perhaps in exchange for another name.
    MoveVersion {
        version: u8,
        into: u8,
        name: u8,
        exchange: bool,
    },
    /// Changes something in the source of puts.
    ChangeSource {
        kind: u8,
        name: u8,
        other: u8,
        seed: u8,
        len: u32,
    },
    /// Puts a version of the source. Without `reads_all` it takes over what did not change since the last one.
    PutVersion {
        into: u8,
        name: u8,
        reads_all: bool,
    },
    /// Removes all but the last versions of a directory.
    Prune {
        into: u8,
        keep_last: u8,
    },
    /// Makes a live tree of a version.
    ThawTree {
        version: u8,
    },
    /// Compares two versions.
    Compare {
        before: u8,
        after: u8,
    },
    /// Asks what became of a path in the versions of a directory.
    History {
        into: u8,
        file: u8,
    },
    /// Clones a file of a version over a live one.
    Thaw {
        version: u8,
        nth: u8,
        to: u8,
    },
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..9_000, 3 => 0_u32..200_000, 1 => 0_u32..4_000_000]
}

fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0_u32), 3 => 0_u32..9_000, 2 => 0_u32..200_000, 1 => 0_u32..5_000_000]
}

/// Lengths of clones: whole files and parts, short enough to be copied or long enough to be shared.
fn clone_length() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(u32::MAX), 2 => length(), 2 => 1_000_000_u32..6_000_000]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    // Few seeds: much of the written data has been written before.
    let (file, seed) = (0_u8..FILES, 0_u8..4);
    prop_oneof![
        12 => (file.clone(), offset(), length(), seed.clone(), any::<bool>())
            .prop_map(|(file, offset, len, seed, keep_open)| Write { file, offset, len, seed, keep_open }),
        5 => (file.clone(), length(), seed).prop_map(|(file, len, seed)| Append { file, len, seed }),
        4 => (file.clone(), offset()).prop_map(|(file, size)| Truncate { file, size }),
        2 => (file.clone(), offset(), length()).prop_map(|(file, from, len)| Zero { file, from, len }),
        6 => (file.clone(), file.clone(), offset(), offset(), clone_length(), any::<bool>())
            .prop_map(|(from, to, offset, at, len, keep_open)| Clone { from, to, offset, at, len, keep_open }),
        3 => (file.clone(), file.clone(), any::<bool>()).prop_map(|(from, to, exchange)| Rename { from, to, exchange }),
        2 => (file.clone(), file.clone()).prop_map(|(from, to)| Link { from, to }),
        4 => file.clone().prop_map(|file| Unlink { file }),
        4 => (0_u8..DIRECTORIES).prop_map(|directory| MakeDirectory { directory }),
        1 => (0_u8..DIRECTORIES).prop_map(|directory| RemoveDirectory { directory }),
        1 => (file.clone(), 0_u8..3, 0_u16..300).prop_map(|(file, name, len)| Xattr { file, name, len }),
        1 => (file.clone(), 0_u8..3).prop_map(|(file, name)| RemoveXattr { file, name }),
        1 => (file.clone(), 0_u16..0o7777).prop_map(|(file, mode)| Chmod { file, mode }),
        4 => (file, offset(), length()).prop_map(|(file, offset, len)| Read { file, offset, len }),
        1 => Just(CloseAll),
        1 => Just(Sync),
        2 => Just(Remount),
        1 => any::<u64>().prop_map(|seed| Crash { seed }),
        1 => Just(Kill),
        2 => prop_oneof![Just(0_u8), Just(50), Just(100)].prop_map(|threshold_percent| Reclaim { threshold_percent }),
        1 => Just(RebuildIndex),
        2 => (0_u8..SPECIALS, 0_u8..5).prop_map(|(special, kind)| Special { special, kind }),
        2 => (0_u8..FILES + SPECIALS, any::<u8>(), any::<i32>()).prop_map(|(file, uid, secs)| Own { file, uid, secs }),
        1 => (0_u8..DIRECTORIES, 0_u16..0o7777, any::<i32>(), 0_u16..3000)
            .prop_map(|(directory, mode, secs, len)| ChangeDirectory { directory, mode, secs, len }),
        1 => Just(ExchangeDirectories),
        1 => on_versions(),
    ]
}

fn on_versions() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let (file, name) = (0_u8..FILES, 0_u8..VERSION_NAMES);
    // Nothing above a version can be frozen again.
    let source = prop_oneof![1 => Just(0), 2 => 1_u8..=2, 6 => 3_u8..=DIRECTORIES];
    let into = prop_oneof![6 => Just(0), 1 => 1_u8..=2, 1 => 3_u8..=DIRECTORIES];
    prop_oneof![
        6 => (source.clone(), into.clone(), name.clone())
            .prop_map(|(source, into, name)| Snapshot { source, into, name }),
        1 => (source.clone(), into.clone(), name.clone(), any::<u64>())
            .prop_map(|(source, into, name, seed)| SnapshotAndCrash { source, into, name, seed }),
        2 => (source, name.clone(), (0_u8..4)).prop_map(|(source, name, one)| Freeze { source, name, changes: one == 0 }),
        3 => any::<u8>().prop_map(|version| Forget { version }),
        1 => (any::<u8>(), any::<u64>()).prop_map(|(version, seed)| ForgetAndCrash { version, seed }),
        3 => any::<u8>().prop_map(|version| ReadVersion { version }),
        12 => change_of_source(),
        6 => (into.clone(), name.clone(), (0_u8..6))
            .prop_map(|(into, name, one)| PutVersion { into, name, reads_all: one == 0 }),
        1 => (into.clone(), 1_u8..3).prop_map(|(into, keep_last)| Prune { into, keep_last }),
        1 => any::<u8>().prop_map(|version| ThawTree { version }),
        2 => any::<(u8, u8)>().prop_map(|(before, after)| Compare { before, after }),
        1 => (into.clone(), any::<u8>()).prop_map(|(into, file)| History { into, file }),
        2 => (any::<u8>(), into, name, any::<bool>())
            .prop_map(|(version, into, name, exchange)| MoveVersion { version, into, name, exchange }),
        2 => (any::<u8>(), any::<u8>(), file).prop_map(|(version, nth, to)| Thaw { version, nth, to }),
    ]
}

fn change_of_source() -> impl Strategy<Value = Operation> {
    let (name, seed) = (0_u8..20, 0_u8..4);
    (0_u8..12, name.clone(), name, seed, length()).prop_map(|(kind, name, other, seed, len)| Operation::ChangeSource {
        kind,
        name,
        other,
        seed,
        len,
    })
}

pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..60)
}

/// Operations on a tree in which each directory has entries, many of them on versions.
pub fn operations_on_versions() -> impl Strategy<Value = Vec<Operation>> {
    use Operation::*;
    let mut filled: Vec<Operation> = (0..DIRECTORIES).map(|directory| MakeDirectory { directory }).collect();
    filled.extend((0..SPECIALS).map(|special| Special { special, kind: special }));
    let len = |file: u8| 3_u32.pow(file.into());
    filled.extend((0..FILES).map(|file| Write { file, offset: 0, len: len(file), seed: file % 4, keep_open: false }));
    filled.extend([Unlink { file: 8 }, Link { from: 9, to: 8 }, Unlink { file: 1 }, Link { from: 11, to: 1 }]);
    let operation = prop_oneof![2 => operation(), 1 => on_versions()];
    prop::collection::vec(operation, 1..60).prop_map(move |operations| [&filled[..], &operations].concat())
}
