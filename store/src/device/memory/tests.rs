#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::file::FileDevice;
use super::tree::join;
use super::*;

fn write(device: &dyn Device, path: &str, bytes: &[u8]) -> Arc<dyn DeviceFile> {
    let file = device.open(path, OpenMode::CreateOrWrite).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

fn read(device: &dyn Device, path: &str) -> Option<Vec<u8>> {
    match device.read_file(path, 1 << 30) {
        Ok(bytes) => Some(bytes),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn only_synced_bytes_and_names_survive_for_certain() {
    let disk = MemoryDevice::new();
    write(&disk, "both", b"old").sync().unwrap();
    write(&disk, "name only", b"lost");
    disk.sync_directory("").unwrap();
    write(&disk, "both", b"new and longer");
    write(&disk, "bytes only", b"x").sync().unwrap();
    disk.create_directory("d").unwrap();
    write(&disk, "d/file", b"x").sync().unwrap();
    disk.sync_directory("d").unwrap();

    let after = disk.crash(0);
    assert_eq!(read(&after, "both").unwrap(), b"old");
    assert_eq!(read(&after, "name only").unwrap(), b"");
    assert!(!after.exists("bytes only").unwrap());
    assert!(!after.exists("d").unwrap(), "its own name was not synced");
    assert_eq!(read(&disk, "both").unwrap(), b"new and longer", "the old device goes on");

    disk.sync_directory("").unwrap();
    assert_eq!(read(&disk.crash(0), "d/file").unwrap(), b"x");
    let clean = disk.snapshot_all_synced();
    assert_eq!(read(&clean, "both").unwrap(), b"new and longer");
    assert_eq!(read(&clean.crash(0), "both").unwrap(), b"new and longer");
}

#[test]
fn a_crash_is_the_same_for_the_same_seed_and_seeds_differ() {
    let disk = MemoryDevice::new();
    for name in ["a", "b", "c"] {
        write(&disk, name, &[7; 20_000]);
    }
    let state = |seed| ["a", "b", "c"].map(|name| read(&disk.crash(seed), name));
    let states: Vec<_> = (0..4000).map(state).collect();
    assert_eq!(states, (0..4000).map(state).collect::<Vec<_>>());
    assert_eq!(states[0], [None, None, None]);
    for wanted in [
        |found: &[Option<Vec<u8>>; 3]| found[0].is_some() && found[1].is_none(),
        |found: &[Option<Vec<u8>>; 3]| found.iter().all(|file| file.as_deref() == Some(&[7; 20_000])),
        |found: &[Option<Vec<u8>>; 3]| found[0].as_deref() == Some(&[]),
        // A torn write: the length is there, some sectors are not.
        |found: &[Option<Vec<u8>>; 3]| {
            found[0].as_ref().is_some_and(|f| f.len() == 20_000 && f.contains(&0) && f.contains(&7))
        },
    ] {
        assert!(states.iter().any(wanted));
    }
}

#[test]
fn renames_within_a_directory_are_atomic_in_every_crash() {
    for seed in 0..100 {
        let disk = MemoryDevice::new();
        disk.replace_file("", "m", b"one").unwrap();
        write(&disk, "m.new", b"two").sync().unwrap();
        disk.rename("m.new", "m").unwrap();
        let found = read(&disk.crash(seed), "m").unwrap();
        assert!(found == b"one" || found == b"two", "seed {seed}: {found:?}");
        disk.sync_directory("").unwrap();
        assert_eq!(read(&disk.crash(seed), "m").unwrap(), b"two");
    }
}

#[test]
fn changes_of_different_names_survive_in_any_combination_and_of_one_name_in_order() {
    let disk = MemoryDevice::new();
    write(&disk, "a", b"").sync().unwrap();
    write(&disk, "b", b"").sync().unwrap();
    disk.rename("a", "c").unwrap();
    disk.remove("c").unwrap();
    let names =
        |seed| -> Vec<String> { disk.crash(seed).list("").unwrap().into_iter().map(|entry| entry.name).collect() };
    let found: std::collections::BTreeSet<_> = (0..300).map(names).collect();
    let possible: [&[&str]; 6] = [&[], &["a"], &["a", "b"], &["b"], &["b", "c"], &["c"]];
    assert!(found.iter().eq(&possible), "{found:?}");
}

#[test]
fn renames_between_directories_are_two_changes_of_one_file() {
    let disk = MemoryDevice::new();
    disk.create_directory("d").unwrap();
    write(&disk, "a", b"x").sync().unwrap();
    disk.sync_directory("").unwrap();
    disk.rename("a", "d/a").unwrap();
    disk.sync_directory("d").unwrap();
    let both = disk.crash(0);
    assert_eq!(read(&both, "d/a").as_deref(), Some(&b"x"[..]));
    write(&both, "a", b"y");
    assert_eq!(read(&both, "d/a").as_deref(), Some(&b"y"[..]), "one file with two names");
    both.rename("a", "d/a").unwrap();
    both.remove("a").unwrap();
    assert_eq!(both.used_bytes(), 4096);
    both.remove("d/a").unwrap();
    assert_eq!(both.used_bytes(), 0);
    disk.sync_directory("").unwrap();
    assert!(!disk.crash(0).exists("a").unwrap());
}

#[test]
fn a_cut_survives_wholly_or_not_at_all() {
    let disk = MemoryDevice::new();
    let file = write(&disk, "a", &[1; 9000]);
    file.sync().unwrap();
    disk.sync_directory("").unwrap();
    file.set_len(100).unwrap();
    file.set_len(200).unwrap();
    let lost = vec![1; 9000];
    let cut = vec![1; 100];
    let regrown = [cut.clone(), vec![0; 100]].concat();
    let found: Vec<_> = (0..100).map(|seed| read(&disk.crash(seed), "a").unwrap()).collect();
    assert!([&lost, &cut, &regrown].iter().all(|wanted| found.contains(wanted)));
    assert!(found.iter().all(|bytes| [&lost, &cut, &regrown].contains(&bytes)));
}

#[test]
fn a_punch_survives_wholly_or_not_at_all() {
    let disk = MemoryDevice::new();
    let file = write(&disk, "a", &[1; 9000]);
    file.sync().unwrap();
    disk.sync_directory("").unwrap();
    file.punch(1000, 5000).unwrap();
    let (lost, kept) = (vec![1; 9000], read(&disk, "a").unwrap());
    assert_eq!(kept, [vec![1; 1000], vec![0; 5000], vec![1; 3000]].concat());
    file.set_len(9001).unwrap();
    let found: Vec<_> = (0..100).map(|seed| read(&disk.crash(seed), "a").unwrap()).collect();
    let grown = [kept.clone(), vec![0]].concat();
    assert!([&lost, &kept, &grown].iter().all(|wanted| found.contains(wanted)));
    assert!(found.iter().all(|bytes| [&lost, &kept, &grown].contains(&bytes)));
}

#[test]
fn removals_come_back_until_they_are_synced() {
    let disk = MemoryDevice::with_capacity(8192);
    write(&disk, "a", &[1; 8192]).sync().unwrap();
    disk.sync_directory("").unwrap();
    disk.remove("a").unwrap();
    write(&disk, "b", &[2; 8192]).sync().unwrap();
    assert_eq!(read(&disk.crash(0), "a").unwrap(), [1; 8192]);
    disk.sync_directory("").unwrap();
    assert!(!disk.crash(0).exists("a").unwrap());
    assert_eq!(read(&disk.crash(0), "b").unwrap(), [2; 8192]);
}

#[test]
fn a_failed_sync_is_not_mended_by_the_next_one() {
    let disk = MemoryDevice::new();
    let file = write(&disk, "a", &[1; 5000]);
    file.sync().unwrap();
    disk.sync_directory("").unwrap();
    file.write_at(&[2; 5000], 1000).unwrap();
    assert!(!disk.is_synced("a").unwrap());
    disk.unsynced("a").unwrap().lose();
    file.sync().unwrap();
    assert_eq!(read(&disk, "a").unwrap()[1000..], [2; 5000], "still read");
    let after = read(&disk.crash(1), "a").unwrap();
    assert_eq!(after[..5000], [1; 5000]);
    assert_eq!(after[5000..], [0; 1000]);
    file.write_at(&[2; 5000], 1000).unwrap();
    file.sync().unwrap();
    assert_eq!(read(&disk.crash(0), "a"), read(&disk, "a"), "written again, it is durable");
}

#[test]
fn a_full_disk_refuses_growth_only() {
    let disk = MemoryDevice::with_capacity(3 * 4096);
    let file = write(&disk, "a", &[1; 4096 * 2]);
    assert!(matches!(file.write_at(&[2; 8193], 4096), Err(StoreError::NoSpace { .. })));
    assert_eq!(read(&disk, "a").unwrap(), [1; 8192], "nothing was written");
    file.write_at(&[3; 8192], 4096).unwrap();
    assert_eq!(disk.space().unwrap(), Space { total_bytes: 12_288, available_bytes: 0 });
    file.write_at(&[4; 12_288], 0).unwrap();
    file.set_len(1 << 40).unwrap();
    disk.create_directory("d/e").unwrap();
    let other = disk.open("d/e/b", OpenMode::CreateNew).unwrap();
    assert!(other.write_at(b"x", 0).is_err());
    file.punch(0, 4096).unwrap();
    other.write_at(b"x", 0).unwrap();
    assert_eq!(disk.used_bytes(), 12_288);
    disk.remove("a").unwrap();
    assert_eq!(disk.used_bytes(), 12_288, "open handles keep the space");
    drop(file);
    assert_eq!(disk.used_bytes(), 4096);
    disk.set_capacity(0);
    other.write_at(b"y", 0).unwrap();
    assert!(other.write_at(b"y", 4096).is_err());
}

#[test]
fn a_crash_amid_other_threads_is_one_moment() {
    let disk = MemoryDevice::new();
    let (first, second) = (write(&disk, "first", &[0; 8]), write(&disk, "second", &[0; 8]));
    disk.sync_directory("").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=2000_u64 {
                for file in [&first, &second] {
                    file.write_at(&number.to_le_bytes(), 0).unwrap();
                    file.sync().unwrap();
                }
            }
        });
        for _ in 0..200 {
            let after = disk.crash(0);
            let number = |path| u64::from_le_bytes(read(&after, path).unwrap().try_into().unwrap_or_default());
            assert!(number("first") >= number("second"));
        }
    });
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Open { path: usize, mode: OpenMode },
    Close { handle: usize },
    Write { handle: usize, offset: u64, len: usize, byte: u8 },
    Read { handle: usize, offset: u64, len: usize },
    SetLen { handle: usize, len_bytes: u64 },
    Punch { handle: usize, offset: u64, len_bytes: u64 },
    Sync { handle: usize },
    Remove { path: usize },
    Rename { from: usize, to: usize },
    CreateDirectory { path: usize },
    SyncDirectory { path: usize },
    List { path: usize },
    Exists { path: usize },
}

const PATHS: [&str; 8] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/f", "a/x"];
const PATHS_BYTES: u64 = 20_000;

fn step() -> impl Strategy<Value = Step> {
    let path = 0..PATHS.len();
    let handle = 0..4_usize;
    let offset = 0..PATHS_BYTES;
    let mode = prop::sample::select(vec![
        OpenMode::Read,
        OpenMode::Write,
        OpenMode::CreateOrWrite,
        OpenMode::CreateOrWrite,
        OpenMode::CreateNew,
    ]);
    prop_oneof![
        6 => (path.clone(), mode).prop_map(|(path, mode)| Step::Open { path, mode }),
        1 => handle.clone().prop_map(|handle| Step::Close { handle }),
        8 => (handle.clone(), offset.clone(), 0..9000_usize, 1_u8..)
            .prop_map(|(handle, offset, len, byte)| Step::Write { handle, offset, len, byte }),
        3 => (handle.clone(), offset.clone(), 0..9000_usize)
            .prop_map(|(handle, offset, len)| Step::Read { handle, offset, len }),
        2 => (handle.clone(), offset.clone()).prop_map(|(handle, len_bytes)| Step::SetLen { handle, len_bytes }),
        2 => (handle.clone(), offset, 0..12_000_u64)
            .prop_map(|(handle, offset, len_bytes)| Step::Punch { handle, offset, len_bytes }),
        2 => handle.prop_map(|handle| Step::Sync { handle }),
        1 => path.clone().prop_map(|path| Step::Remove { path }),
        2 => (path.clone(), path.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        2 => path.clone().prop_map(|path| Step::CreateDirectory { path }),
        2 => path.clone().prop_map(|path| Step::SyncDirectory { path }),
        1 => path.clone().prop_map(|path| Step::List { path }),
        1 => path.prop_map(|path| Step::Exists { path }),
    ]
}

/// A device and the files that a history has open on it.
struct Run<'a> {
    device: &'a dyn Device,
    handles: Vec<Arc<dyn DeviceFile>>,
}

impl Run<'_> {
    /// Does one step. Returns the answer in a form that can be compared between devices.
    fn act(&mut self, step: &Step) -> String {
        let show = |result: Result<String>| result.unwrap_or_else(|error| kind_of(&error));
        let chosen = |handle: usize| self.handles.get(handle % self.handles.len().max(1)).cloned();
        let on = |handle: usize, act: &dyn Fn(&dyn DeviceFile) -> Result<String>| {
            chosen(handle).map_or_else(String::new, |file| show(act(&*file)))
        };
        let done = |()| String::new();
        match *step {
            Step::Open { path, mode } => match self.device.open(PATHS[path], mode) {
                Ok(file) => {
                    self.handles.insert(0, file);
                    self.handles.truncate(4);
                    "opened".to_owned()
                }
                Err(error) => kind_of(&error),
            },
            Step::Close { handle } => {
                if handle < self.handles.len() {
                    self.handles.remove(handle);
                }
                String::new()
            }
            Step::Write { handle, offset, len, byte } => {
                // The bytes differ within the write, so that misplaced parts show.
                let bytes: Vec<u8> = (0..len).map(|at| byte.wrapping_add((at / 300) as u8)).collect();
                on(handle, &|file| file.write_at(&bytes, offset).map(done))
            }
            Step::Read { handle, offset, len } => on(handle, &|file| {
                let mut bytes = vec![0xee; len];
                let found = file.read_at(&mut bytes, offset)?;
                Ok(format!("{found} {:x}", crate::codec::checksum(&bytes[..found])))
            }),
            Step::SetLen { handle, len_bytes } => on(handle, &|file| file.set_len(len_bytes).map(done)),
            Step::Punch { handle, offset, len_bytes } => on(handle, &|file| file.punch(offset, len_bytes).map(done)),
            Step::Sync { handle } => on(handle, &|file| file.sync().map(done)),
            Step::Remove { path } => show(self.device.remove(PATHS[path]).map(done)),
            Step::Rename { from, to } => show(self.device.rename(PATHS[from], PATHS[to]).map(done)),
            Step::CreateDirectory { path } => show(self.device.create_directory(PATHS[path]).map(done)),
            Step::SyncDirectory { path } => show(self.device.sync_directory(PATHS[path]).map(done)),
            // In memory nothing has a time.
            Step::List { path } => show(self.device.list(PATHS[path]).map(|mut entries| {
                entries.iter_mut().for_each(|entry| entry.modified_secs = None);
                format!("{entries:?}")
            })),
            Step::Exists { path } => show(self.device.exists(PATHS[path]).map(|found| found.to_string())),
        }
    }
}

/// The kind of the error without the system's wording; the path is part of it.
fn kind_of(error: &StoreError) -> String {
    match error {
        StoreError::Io { operation, path, source } => format!("{operation} {path}: {:?}", source.kind()),
        StoreError::SyncFailed { path, source } => format!("sync {path}: {:?}", source.kind()),
        other => other.to_string(),
    }
}

/// Every file with its bytes; directories with none.
fn tree(device: &dyn Device) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut rest = vec![String::new()];
    while let Some(directory) = rest.pop() {
        for entry in device.list(&directory).unwrap() {
            let path = join(&directory, &entry.name);
            if entry.is_directory {
                rest.push(path.clone());
                found.insert(path, None);
            } else {
                let bytes = read(device, &path).unwrap();
                assert_eq!(bytes.len() as u64, entry.len_bytes);
                found.insert(path, Some(bytes));
            }
        }
    }
    found
}

/// The state that must survive any power loss: a second, simpler account of names and bytes, kept from the outside.
#[derive(Default)]
struct Synced {
    names: BTreeMap<String, Vec<String>>,
}

impl Synced {
    /// Remembers a directory's names after it was synced.
    fn directory(&mut self, device: &dyn Device, path: &str) {
        let names = device.list(path).unwrap().into_iter().map(|entry| entry.name).collect();
        self.names.insert(path.to_owned(), names);
    }
}

/// A punch beyond a later, shorter length once dropped a page of the durable state that the volatile one kept.
#[test]
fn regression_a_crash_counts_the_same_space() {
    let disk = MemoryDevice::new();
    let file = write(&disk, "a", b"");
    file.write_at(&[1; 8916], 11_247).unwrap();
    file.punch(10_919, 6639).unwrap();
    file.set_len(16_385).unwrap();
    file.sync().unwrap();
    disk.sync_directory("").unwrap();
    assert_eq!(disk.crash(0).used_bytes(), disk.used_bytes());
}

/// Linux answers ENOTEMPTY where the target is an ancestor of the source, EISDIR otherwise.
#[test]
fn regression_renaming_over_any_directory_is_the_same_error() {
    let root = tempfile::tempdir().unwrap();
    let devices: [Box<dyn Device>; 2] =
        [Box::new(FileDevice::open(root.path()).unwrap()), Box::new(MemoryDevice::new())];
    for device in devices {
        device.create_directory("d/e").unwrap();
        write(&*device, "d/a", b"x");
        for target in ["d", "d/e"] {
            let error = device.rename("d/a", target).unwrap_err();
            assert_eq!(kind_of(&error), "rename d/a: IsADirectory", "{target}");
        }
    }
}

#[test]
fn a_fork_has_the_cache_too_and_goes_its_own_way() {
    let memory = MemoryDevice::new();
    memory.create_directory("d").unwrap();
    write(&memory, "d/a", &[1; 5000]).sync().unwrap();
    memory.sync_directory("").unwrap();
    memory.sync_directory("d").unwrap();
    write(&memory, "d/a", &[2; 9000]);
    write(&memory, "d/b", &[3; 700]);
    memory.rename("d/b", "c").unwrap();
    let fork = memory.fork();
    assert_eq!((tree(&fork), fork.used_bytes()), (tree(&memory), memory.used_bytes()));
    let before: Vec<_> = (0..50).map(|seed| tree(&memory.crash(seed))).collect();
    assert!(before.iter().any(|disk| *disk != before[0]), "there is something to lose");
    write(&memory, "d/a", &[4; 20_000]).sync().unwrap();
    memory.remove("c").unwrap();
    memory.sync_directory("d").unwrap();
    for (seed, disk) in before.iter().enumerate() {
        assert_eq!(&tree(&fork.crash(seed as u64)), disk, "seed {seed}");
    }
    fork.sync_directory("").unwrap();
    assert_eq!(read(&fork.crash(0), "c"), Some(Vec::new()), "its name is durable and its content is not");
    fork.remove("d/a").unwrap();
    assert_eq!((read(&fork, "d/a"), read(&memory, "d/a")), (None, Some(vec![4; 20_000])));
}

#[test]
fn disks_have_one_hash_if_and_only_if_they_read_the_same() {
    let memory = MemoryDevice::new();
    memory.create_directory("d").unwrap();
    write(&memory, "d/a", &[1; 5000]);
    let hash = memory.content_hash();
    assert_eq!(memory.fork().content_hash(), hash);
    assert_eq!(memory.snapshot_all_synced().content_hash(), hash);
    assert_ne!(memory.crash(0).content_hash(), hash);
    let change = |change: &dyn Fn(&MemoryDevice)| {
        let fork = memory.fork();
        change(&fork);
        fork.content_hash()
    };
    let write_to = |fork: &MemoryDevice, bytes: &[u8], offset| {
        fork.open("d/a", OpenMode::Write).unwrap().write_at(bytes, offset).unwrap();
    };
    assert_eq!(change(&|fork| write_to(fork, &[1; 10], 4000)), hash);
    assert_ne!(change(&|fork| write_to(fork, &[2], 4999)), hash);
    assert_ne!(change(&|fork| write_to(fork, &[0], 5000)), hash, "longer by a zero");
    assert_ne!(change(&|fork| fork.rename("d/a", "d/b").unwrap()), hash);
    assert_ne!(change(&|fork| fork.rename("d/a", "da").unwrap()), hash);
    assert_ne!(change(&|fork| fork.create_directory("e").unwrap()), hash);
    assert_ne!(
        change(&|fork| drop(fork.open("e", OpenMode::CreateNew).unwrap())),
        change(&|fork| fork.create_directory("e").unwrap())
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn behaves_as_the_real_device(steps in prop::collection::vec(step(), 1..60)) {
        let root = tempfile::tempdir().unwrap();
        let real = FileDevice::open(root.path()).unwrap();
        let memory = MemoryDevice::new();
        let mut real_run = Run { device: &real, handles: Vec::new() };
        let mut memory_run = Run { device: &memory, handles: Vec::new() };
        for step in &steps {
            // Syncing the real disk is slow and has no visible effect here.
            let is_sync = matches!(step, Step::Sync { .. });
            let expected = if is_sync { String::new() } else { real_run.act(step) };
            prop_assert_eq!(memory_run.act(step), expected, "{:?}", step);
        }
        prop_assert_eq!(tree(&memory), tree(&real));
        for (one, other) in memory_run.handles.iter().zip(&real_run.handles) {
            prop_assert_eq!(one.len().unwrap(), other.len().unwrap());
        }
    }

    /// With everything synced, no crash loses anything, and the space is counted right.
    #[test]
    fn what_is_synced_survives_every_crash(steps in prop::collection::vec(step(), 1..60), seed: u64) {
        let memory = MemoryDevice::new();
        let mut run = Run { device: &memory, handles: Vec::new() };
        for step in &steps {
            run.act(step);
        }
        let before = tree(&memory);
        for (path, bytes) in &before {
            match bytes {
                None => memory.sync_directory(path).unwrap(),
                Some(_) => memory.open(path, OpenMode::Read).unwrap().sync().unwrap(),
            }
        }
        memory.sync_directory("").unwrap();
        run.handles.clear();
        let after = memory.crash(seed);
        prop_assert_eq!(&tree(&after), &before);
        prop_assert_eq!(after.used_bytes(), memory.used_bytes());
        prop_assert_eq!(&tree(&memory.snapshot_all_synced()), &before);
        for path in before.iter().filter(|(_, bytes)| bytes.is_some()).map(|(path, _)| path) {
            memory.remove(path).unwrap();
        }
        prop_assert_eq!(memory.used_bytes(), 0);
    }

    /// Names: seed 0 gives exactly those of the last sync of each directory, other seeds never a name that was not
    /// there at the sync or after it.
    #[test]
    fn only_synced_names_survive_the_strictest_crash(steps in prop::collection::vec(step(), 1..60), seed: u64) {
        let memory = MemoryDevice::new();
        let mut run = Run { device: &memory, handles: Vec::new() };
        let mut synced = Synced::default();
        let mut ever: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for step in &steps {
            run.act(step);
            if let Step::SyncDirectory { path } = step && memory.list(PATHS[*path]).is_ok() {
                synced.directory(&memory, PATHS[*path]);
            }
            if let Step::Exists { .. } = step {
                memory.sync_directory("").unwrap();
                synced.directory(&memory, "");
            }
            for path in tree(&memory).into_keys() {
                let (parent, name) = split(&path);
                ever.entry(parent.to_owned()).or_default().push(name.to_owned());
            }
        }
        for (seed, is_strict) in [(0, true), (seed, false)] {
            let after = memory.crash(seed);
            let mut directories = vec![String::new()];
            while let Some(directory) = directories.pop() {
                let entries = after.list(&directory).unwrap();
                let names: Vec<&String> = entries.iter().map(|entry| &entry.name).collect();
                let durable = synced.names.get(&directory).cloned().unwrap_or_default();
                if is_strict {
                    prop_assert_eq!(&names, &durable.iter().collect::<Vec<_>>(), "{}", directory);
                }
                for entry in &entries {
                    let known = ever.get(&directory);
                    prop_assert!(known.is_some_and(|known| known.contains(&entry.name)));
                    if entry.is_directory {
                        directories.push(join(&directory, &entry.name));
                    }
                }
            }
        }
    }

    /// Bytes of one file: each sector after a crash is one that it had since the last sync.
    #[test]
    fn sectors_are_old_or_written(
        old in prop::collection::vec(1_u8..100, 0..6000),
        writes in prop::collection::vec((0..8000_u64, 1..3000_usize), 1..5),
        cut in prop::option::of(0..8000_u64),
        seed: u64,
    ) {
        let memory = MemoryDevice::new();
        let file = write(&memory, "a", &old);
        file.sync().unwrap();
        memory.sync_directory("").unwrap();
        let mut versions = vec![old];
        for (number, (offset, len)) in writes.into_iter().enumerate() {
            if number == 1 && let Some(cut) = cut {
                file.set_len(cut).unwrap();
                versions.push(read(&memory, "a").unwrap());
            }
            file.write_at(&vec![100 + number as u8; len], offset).unwrap();
            versions.push(read(&memory, "a").unwrap());
        }
        let after = read(&memory.crash(seed), "a").unwrap();
        prop_assert!(versions.iter().any(|version| version.len() == after.len()), "no version has that length");
        for (at, byte) in after.iter().enumerate() {
            let is_known = *byte == 0 || versions.iter().any(|version| version.get(at) == Some(byte));
            prop_assert!(is_known, "byte {} is {}", at, byte);
        }
        prop_assert_eq!(read(&memory.crash(0), "a").unwrap(), versions.remove(0));
        file.sync().unwrap();
        prop_assert_eq!(read(&memory.crash(seed), "a"), versions.pop());
    }
}
