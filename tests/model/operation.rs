//! The operations that are done on both sides.

use proptest::prelude::*;

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
    let (file, seed) = (0_u8..8, 0_u8..4);
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
        1 => (0_u8..2).prop_map(|directory| MakeDirectory { directory }),
        1 => (0_u8..2).prop_map(|directory| RemoveDirectory { directory }),
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
    ]
}

pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..40)
}
