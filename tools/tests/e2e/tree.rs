//! A tree with everything that a filesystem can hold and a backup must keep.
//!
//! The order matters, so that no attribute undoes another: content, owner, extended attributes, access lists, mode (a
//! change of owner removes setuid), capabilities, and times last, those of directories after their entries.
//!
//! tar writes the same bytes for source and copy only if it meets extended attributes in the same order, and the system
//! leaves that order to the filesystem. So an inode has either one, or several small ones set in the order of their
//! names, which ext4 and tmpfs keep; [`generate`] checks it. Inodes with many mixed ones lie in [`UNORDERED`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::command::Tool;
use crate::random::{Random, noise, prose};

/// The directory whose inodes have extended attributes in no order.
pub const UNORDERED: &str = "attributes";

const MODES: [u32; 14] =
    [0o644, 0o644, 0o644, 0o600, 0o755, 0o444, 0o000, 0o001, 0o4755, 0o2755, 0o6711, 0o1644, 0o7777, 0o666];
const DIRECTORY_MODES: [u32; 8] = [0o755, 0o755, 0o700, 0o1777, 0o2775, 0o3770, 0o555, 0o4711];
const OWNERS: [(u32, u32); 5] = [(0, 0), (1000, 1000), (65534, 65534), (3_000_000_000, 7), (12, 4_000_000_000)];
/// Paths on one command line.
const PATHS_PER_CALL: usize = 200;

/// Totals of a generated tree.
#[derive(Debug, Default)]
pub struct Summary {
    pub files: usize,
    pub bytes: u64,
}

struct Maker<'a> {
    root: &'a Path,
    random: Random,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    links: Vec<PathBuf>,
    others: Vec<PathBuf>,
    bytes: u64,
}

/// Makes a tree with `files` regular files at `root`, which must not exist.
#[track_caller]
pub fn generate(root: &Path, seed: u64, files: usize) -> Summary {
    let mut maker = Maker {
        root,
        random: Random::new(seed),
        directories: Vec::new(),
        files: Vec::new(),
        links: Vec::new(),
        others: Vec::new(),
        bytes: 0,
    };
    maker.make_directories(files / 40);
    maker.make_files(files);
    maker.make_sparse_files();
    maker.make_links();
    maker.make_special_files();
    maker.set_owners();
    maker.set_attributes();
    maker.set_access_lists();
    maker.set_modes();
    maker.set_capabilities();
    maker.make_unordered();
    maker.set_times();
    maker.check_order();
    Summary { files: maker.files.len(), bytes: maker.bytes }
}

/// Returns a name that programs stumble over; the number makes it unique.
fn odd_name(number: usize, kind: u64) -> OsString {
    let mut name = match kind {
        0 => format!("{number:06}-{}", "n".repeat(248)).into_bytes(),
        1 => [b"latin-1 \xe4\xf6\xfc\xff\xfe ".as_slice(), number.to_string().as_bytes()].concat(),
        2 => format!("line\nbreak\t'\"\\$(x) {number}").into_bytes(),
        3 => format!("-rf --{number}").into_bytes(),
        4 => [format!("{number:06}").as_bytes(), &[0xf0; 249]].concat(),
        5 => format!("ünïcödé-日本語-🦀-{number}").into_bytes(),
        6 => format!("...{number}. ").into_bytes(),
        _ => format!("\u{1}control\u{7f}\r{number}").into_bytes(),
    };
    name.truncate(255);
    OsString::from_vec(name)
}

impl Maker<'_> {
    fn make_directories(&mut self, count: usize) {
        fs::create_dir(self.root).unwrap();
        self.directories.push(self.root.to_owned());
        for number in 0..count {
            let parent = loop {
                let parent = self.random.pick(&self.directories).clone();
                let depth = parent.strip_prefix(self.root).unwrap().components().count();
                if depth < 7 && parent.as_os_str().len() < 1500 {
                    break parent;
                }
            };
            let name = match number % 25 {
                24 => odd_name(number, (number / 25) as u64 % 8),
                _ => format!("directory-{number}").into(),
            };
            let path = parent.join(name);
            fs::create_dir(&path).unwrap();
            self.directories.push(path);
        }
        // These stay empty.
        for number in 0..10 {
            let path = self.random.pick(&self.directories).join(format!("empty-{number}"));
            fs::create_dir(&path).unwrap();
            self.others.push(path);
        }
    }

    fn make_files(&mut self, count: usize) {
        for number in 0..count {
            let directory = self.random.pick(&self.directories).clone();
            let name = match number % 40 {
                39 => odd_name(number, (number / 40) as u64 % 8),
                _ => format!("file-{number:06}.dat").into(),
            };
            let path = directory.join(name);
            let seed = match number % 10 {
                // The same content again.
                9 => number as u64 / 100,
                _ => number as u64,
            };
            let mut of_seed = Random::new(seed ^ 0xf11e);
            let share = of_seed.below(1024);
            let len = match seed {
                seed if seed % 50 == 0 => 0,
                seed if seed % 1000 == 7 => of_seed.between(1 << 20, 4 << 20),
                seed if seed % 25 == 3 => of_seed.between(20_000, 100_000),
                _ => 20_480 * share / 1024 * share / 1024,
            };
            let content = if seed % 2 == 0 { noise(seed, len as usize) } else { prose(seed, len as usize) };
            fs::write(&path, content).unwrap();
            self.bytes += len;
            self.files.push(path);
        }
    }

    /// Makes files with holes at the start, in the middle, at the end, and with nothing else.
    fn make_sparse_files(&mut self) {
        for number in 0..40_u64 {
            let path = self.random.pick(&self.directories).join(format!("sparse-{number}"));
            let file = fs::File::create(&path).unwrap();
            let len = match number {
                0 => 64 << 20,
                _ => self.random.between(1, 4 << 20),
            };
            file.set_len(len).unwrap();
            for piece in 0..number % 4 {
                let offset = self.random.below(len);
                let bytes = noise(number * 10 + piece, 3000.min(len - offset) as usize);
                file.write_all_at(&bytes, offset).unwrap();
            }
            self.files.push(path);
        }
    }

    fn make_links(&mut self) {
        for number in 0..self.files.len() / 40 {
            let to = self.random.pick(&self.files).clone();
            for again in 0..=number % 3 {
                let path = self.random.pick(&self.directories).join(format!("hard-{number}-{again}"));
                fs::hard_link(&to, path).unwrap();
            }
        }
        for number in 0..300_usize {
            let target: OsString = match number % 6 {
                0 => format!("nowhere/{number}").into(),
                1 => format!("{:01$}", number, 4095).into(),
                2 => OsString::from_vec(vec![b'.', b'/', 0xff, 0xfe, b'0' + (number % 10) as u8]),
                3 => "..".into(),
                _ => self.random.pick(&self.files).clone().into_os_string(),
            };
            let name = match number % 30 {
                29 => odd_name(number, (number / 30) as u64 % 8),
                _ => format!("link-{number}").into(),
            };
            let path = self.random.pick(&self.directories).join(name);
            symlink(target, &path).unwrap();
            self.links.push(path);
        }
    }

    fn make_special_files(&mut self) {
        let device = rustix::fs::makedev;
        let kinds = [
            (FileType::Fifo, 0),
            (FileType::Socket, 0),
            (FileType::CharacterDevice, device(1, 3)),
            (FileType::CharacterDevice, device(4095, 0xf_ffff)),
            (FileType::BlockDevice, device(7, 200)),
            (FileType::BlockDevice, device(259, 70_000)),
        ];
        for (number, (kind, device)) in kinds.iter().cycle().take(24).enumerate() {
            let path = self.random.pick(&self.directories).join(format!("special-{number}"));
            rustix::fs::mknodat(CWD, &path, *kind, Mode::from_raw_mode(0o640), *device).unwrap();
            self.others.push(path);
        }
    }

    fn set_owners(&mut self) {
        for path in self.files.iter().chain(&self.directories).chain(&self.others).chain(&self.links) {
            if self.random.once_in(3) {
                let (user, group) = *self.random.pick(&OWNERS);
                lchown(path, Some(user), Some(group)).unwrap();
            }
        }
    }

    fn set_attributes(&mut self) {
        let long_name = format!("user.{}", "l".repeat(250));
        let inodes = self.files.iter().step_by(15).chain(self.directories.iter().step_by(10));
        for (number, path) in inodes.enumerate() {
            match number % 8 {
                0 => set(path, "user.empty", b""),
                1 => set(path, "user.comment", b"some comment"),
                2 => set(path, "user.binary", &[0, 255, 10, 0, 61, 128]),
                3 => set(path, "user.large", &noise(number as u64, 2000)),
                4 => set(path, &long_name, b"v"),
                5 => set(path, "trusted.overlay.opaque", b"y"),
                6 => ["user.a", "user.b", "user.c"].iter().for_each(|name| set(path, name, b"1")),
                _ => ["trusted.t", "user.u"].iter().for_each(|name| set(path, name, b"2")),
            }
        }
        for path in self.links.iter().chain(&self.others).step_by(9) {
            // The system allows no user attributes on these.
            set(path, "trusted.of-link", b"value");
        }
    }

    fn set_access_lists(&mut self) {
        let every = |paths: &[PathBuf], step: usize, skip: usize| -> Vec<PathBuf> {
            paths.iter().skip(skip).step_by(step).cloned().collect()
        };
        set_acl(&["-m", "u:1000:rwx,g:7:r--"], &every(&self.files, 40, 4));
        set_acl(&["-m", "u:65534:---,u:12:rw-,m::r--"], &every(&self.files, 90, 8));
        set_acl(&["-m", "g:4000000000:-wx"], &every(&self.directories, 9, 2));
        set_acl(&["-d", "-m", "u:1000:rwx,g::r-x,o::---"], &every(&self.directories, 11, 5));
        set_acl(&["-d", "-m", "u::rwx,g::r-x,o::r-x"], &every(&self.directories, 13, 6));
    }

    fn set_modes(&mut self) {
        for (paths, modes) in [(&self.files, MODES.as_slice()), (&self.directories, DIRECTORY_MODES.as_slice())] {
            for path in paths {
                if self.random.once_in(2) {
                    let mode = *self.random.pick(modes);
                    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
                }
            }
        }
    }

    fn set_capabilities(&mut self) {
        // VFS_CAP_REVISION_2 with CAP_NET_BIND_SERVICE, effective; on files without other attributes.
        let mut capability = [0; 20];
        capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
        capability[4..8].copy_from_slice(&(1_u32 << 10).to_le_bytes());
        for path in self.files.iter().skip(7).step_by(600) {
            set(path, "security.capability", &capability);
        }
    }

    /// Makes files with many attributes of all kinds, in random order.
    fn make_unordered(&mut self) {
        let directory = self.root.join(UNORDERED);
        fs::create_dir(&directory).unwrap();
        for number in 0..20_u64 {
            let path = directory.join(format!("file-{number}"));
            fs::write(&path, prose(number, 100)).unwrap();
            for attribute in 0..=number {
                let space = self.random.pick(&["user", "trusted", "security"]);
                let name = format!("{space}.{}", "x".repeat(1 + self.random.below(20) as usize));
                set(&path, &name, &noise(attribute, self.random.below(60) as usize));
            }
            self.files.push(path);
        }
        self.directories.push(directory);
    }

    fn set_times(&mut self) {
        let mut random = self.random.clone();
        let mut set = |path: &Path, number: usize| {
            let secs = match number % 17 {
                // ext4 stores times from 1901 to 2446.
                0 => -(random.below(1 << 31) as i64),
                1 => -1,
                2 => 0,
                3 => random.between(1 << 32, 1 << 33) as i64,
                _ => 1_000_000_000 + random.below(700_000_000) as i64,
            };
            let nanos = if number.is_multiple_of(5) { 0 } else { random.below(1_000_000_000) };
            let time = Timespec { tv_sec: secs, tv_nsec: nanos as _ };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        };
        let entries = self.files.iter().chain(&self.links).chain(&self.others);
        entries.enumerate().for_each(|(number, path)| set(path, number));
        self.directories.iter().rev().enumerate().for_each(|(number, path)| set(path, number));
    }

    fn check_order(&self) {
        let unordered = self.root.join(UNORDERED);
        let paths = self.files.iter().chain(&self.directories).filter(|path| !path.starts_with(&unordered));
        for path in paths {
            let mut list = vec![0; 4096];
            let len = rustix::fs::llistxattr(path, &mut list).unwrap();
            let names: Vec<&[u8]> = list[..len]
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty() && !name.starts_with(b"system."))
                .collect();
            let sorted: BTreeSet<&[u8]> = names.iter().copied().collect();
            assert!(
                names.iter().eq(sorted.iter()),
                "the filesystem of {} lists extended attributes in an order of its own: set TMPDIR to an ext4 or tmpfs",
                path.display()
            );
        }
    }
}

#[track_caller]
fn set(path: &Path, name: &str, value: &[u8]) {
    let set = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
    assert!(set.is_ok(), "{name} of {}: {set:?}", path.display());
}

#[track_caller]
fn set_acl(options: &[&str], paths: &[PathBuf]) {
    for paths in paths.chunks(PATHS_PER_CALL) {
        Tool::new("setfacl").args(options).arg(OsStr::from_bytes(b"--")).args(paths).ok();
    }
}
