//! A disk is filled to the last byte, half deleted, reclaimed and refilled, again and again; and a meta root that fills
//! up first.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::command::Tool;
use crate::disk::Disk;
use crate::machine::is_fit;
use crate::random::{Random, noise, prose, seed};
use crate::site::Site;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 112 * MIB;
const META_DISK_BYTES: u64 = 48 * MIB;
const CYCLES: u64 = 10;
/// The last refused write is this small.
const SMALLEST_BYTES: u64 = 1000;
/// Files that are open at once and synced later.
const TOGETHER: usize = 8;

/// The content that a file must have, because fsync acknowledged it.
#[derive(Clone, Copy)]
struct Content {
    seed: u64,
    len: usize,
    compresses: bool,
}

impl Content {
    fn random(random: &mut Random, largest: u64) -> Self {
        let most = if random.once_in(2) { largest } else { largest.min(30_000) };
        // Some seeds come again: their contents are duplicates as far as the shorter one reaches.
        let seed = if random.once_in(6) { random.below(8) } else { random.next() };
        Self { seed, len: random.between(1, most + 1) as usize, compresses: random.once_in(4) }
    }

    fn bytes(self) -> Vec<u8> {
        if self.compresses { prose(self.seed, self.len) } else { noise(self.seed, self.len) }
    }
}

struct Kept {
    path: PathBuf,
    content: Content,
}

#[track_caller]
fn assert_full(error: &io::Error, what: &Path) {
    assert_eq!(Errno::from_io_error(error), Some(Errno::NOSPC), "{}: {error}", what.display());
}

fn available_bytes(mnt: &Path) -> u64 {
    let space = rustix::fs::statvfs(mnt).unwrap();
    space.f_bavail * space.f_frsize
}

/// Syncs the open files, and removes those whose sync failed: they were not acknowledged. Returns whether all were
/// synced.
fn sync_all(open: &mut Vec<(File, Kept)>, kept: &mut Vec<Kept>) -> bool {
    let mut is_all = true;
    for (file, written) in open.drain(..) {
        match file.sync_all() {
            Ok(()) => kept.push(written),
            Err(error) => {
                assert_full(&error, &written.path);
                drop(file);
                fs::remove_file(&written.path).unwrap();
                is_all = false;
            }
        }
    }
    is_all
}

/// Fills the filesystem until not even the smallest file fits.
fn fill(directory: &Path, random: &mut Random, kept: &mut Vec<Kept>) {
    fs::create_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let (mut largest, mut open) = (3 * MIB, Vec::new());
    for number in 0.. {
        if largest < SMALLEST_BYTES {
            break;
        }
        let path = directory.join(number.to_string());
        let content = Content::random(random, largest);
        let write = || -> io::Result<File> {
            let mut file = File::create_new(&path)?;
            file.write_all(&content.bytes())?;
            Ok(file)
        };
        let fits = match write() {
            Ok(file) => {
                open.push((file, Kept { path, content }));
                let is_late = open.len() < TOGETHER && !random.once_in(4);
                is_late || sync_all(&mut open, kept)
            }
            Err(error) => {
                assert_full(&error, &path);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.expect("deleting works on a full disk"),
                }
                false
            }
        };
        if !fits {
            largest /= 3;
        }
    }
    sync_all(&mut open, kept);
}

#[track_caller]
fn assert_kept(kept: &[Kept]) {
    for Kept { path, content } in kept {
        assert!(fs::read(path).unwrap() == content.bytes(), "{} was synced and is other now", path.display());
    }
}

/// Reclaims until `enough_bytes` are available; the kernel forgets deleted files a moment later.
#[track_caller]
fn reclaim(site: &Site, enough_bytes: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        site.gc();
        let available = available_bytes(&site.mnt);
        if available >= enough_bytes {
            return available;
        }
        assert!(Instant::now() < until, "{available} bytes are available after reclaiming, not {enough_bytes}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_disk_is_filled_to_the_last_byte_half_deleted_and_refilled_ten_times() {
    if !is_fit() {
        return;
    }
    let disk = Disk::new(DISK_BYTES);
    let site = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    site.mount();
    let mut random = Random::new(seed(11));
    let mut kept: Vec<Kept> = Vec::new();
    let empty_bytes = available_bytes(&site.mnt);
    assert!(empty_bytes > DISK_BYTES / 2 && empty_bytes < DISK_BYTES, "df shows {empty_bytes} bytes for an empty pool");
    println!("cycle  files  MiB kept  df MiB full  df MiB reclaimed  disk MiB free  seconds");
    let mut first_bytes = 0;
    for cycle in 0..CYCLES {
        let started = Instant::now();
        fill(&site.mnt.join(cycle.to_string()), &mut random, &mut kept);
        let (files, kept_bytes) = (kept.len(), kept.iter().map(|kept| kept.content.len as u64).sum::<u64>());
        match cycle {
            4 => {
                site.kill_daemon();
                site.mount();
            }
            2 | 7 => site.remount(),
            _ => site.sync(),
        }
        let full_bytes = available_bytes(&site.mnt);
        assert!(full_bytes < 8 * MIB, "df shows {full_bytes} bytes for a full pool");
        let disk_bytes = disk.free_bytes();
        assert!(disk_bytes > 0, "no reserve is left");
        assert_kept(&kept);
        if cycle == 0 {
            first_bytes = kept_bytes;
        }
        // The freed space is available again: no cycle leaves less than the cycles before.
        assert!(kept_bytes > first_bytes * 2 / 3, "cycle {cycle}: {kept_bytes} bytes fit, {first_bytes} did at first");

        let mut left_bytes = kept_bytes;
        while left_bytes > kept_bytes / 2 {
            let gone = kept.swap_remove(random.below(kept.len() as u64) as usize);
            fs::remove_file(&gone.path).expect("deleting works on a full disk");
            left_bytes -= gone.content.len as u64;
        }
        let reclaimed_bytes = reclaim(&site, empty_bytes / 4);
        println!(
            "{cycle:5} {files:6} {:9} {:12} {:17} {:14} {:8.1}",
            kept_bytes / MIB,
            full_bytes / MIB,
            reclaimed_bytes / MIB,
            disk_bytes / MIB,
            started.elapsed().as_secs_f64()
        );
    }
    site.remount();
    assert_kept(&kept);
    site.umount();
    site.assert_clean();
}

const ATTRIBUTE: &str = "user.kept";
const ATTRIBUTE_BYTES: usize = 6000;
const SMALL_BYTES: usize = 300;
/// Number of files written between two syncs.
const SYNC_EVERY: u64 = 128;

/// Writes small files with attributes until the meta root is full; returns how many were synced.
fn fill_meta(directory: &Path, seed: u64) -> u64 {
    fs::create_dir(directory).unwrap();
    let mut synced = 0;
    for number in 0.. {
        let path = directory.join(format!("{number:0>150}"));
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&path)?;
            file.write_all(&noise(seed + number, SMALL_BYTES))?;
            let value = noise(!(seed + number), ATTRIBUTE_BYTES);
            rustix::fs::fsetxattr(&file, ATTRIBUTE, &value, XattrFlags::empty())?;
            if number % SYNC_EVERY == SYNC_EVERY - 1 { file.sync_all() } else { Ok(()) }
        };
        match write() {
            Ok(()) if number % SYNC_EVERY == SYNC_EVERY - 1 => synced = number + 1,
            Ok(()) => {}
            Err(error) => {
                assert_full(&error, &path);
                return synced;
            }
        }
    }
    unreachable!("the disk is never full");
}

#[track_caller]
fn assert_meta(directory: &Path, seed: u64, count: u64) {
    for number in 0..count {
        let path = directory.join(format!("{number:0>150}"));
        let mut value = vec![0; ATTRIBUTE_BYTES + 1];
        let len = rustix::fs::getxattr(&path, ATTRIBUTE, &mut value[..]).unwrap();
        assert!(value[..len] == noise(!(seed + number), ATTRIBUTE_BYTES), "{number}: its attribute is another");
        assert!(fs::read(&path).unwrap() == noise(seed + number, SMALL_BYTES), "{number}: its content is other");
    }
}

#[test]
fn a_meta_root_that_is_full_first_is_emptied_and_refilled() {
    if !is_fit() {
        return;
    }
    let disk = Disk::new(META_DISK_BYTES);
    let site = Site::with(|base| (disk.mountpoint.join("pool"), base.join("data")));
    site.mount();
    let one = site.mnt.join("one");
    let count = fill_meta(&one, 1 << 32);
    assert!(count > 500, "only {count} files fit on an empty meta root");
    site.sync();
    let left_bytes = available_bytes(&site.mnt);
    let data_bytes = {
        let space = rustix::fs::statvfs(&site.data).unwrap();
        space.f_bavail * space.f_frsize
    };
    assert!(left_bytes < data_bytes / 4, "df shows {left_bytes} bytes, and nothing more can be described");
    assert!(disk.free_bytes() > 0, "no reserve is left");
    assert_meta(&one, 1 << 32, count);
    site.kill_daemon();
    site.mount();
    assert_meta(&one, 1 << 32, count);

    for cycle in 2..4 {
        let directory = if cycle == 2 { one.clone() } else { site.mnt.join((cycle - 1).to_string()) };
        Tool::new("rm").arg("-r").arg(&directory).ok();
        site.gc();
        let directory = site.mnt.join(cycle.to_string());
        let again = fill_meta(&directory, cycle << 32);
        println!("{again} files fit into what {count} had taken");
        assert!(again > count / 2, "only {again} files fit where {count} did");
        assert_meta(&directory, cycle << 32, again);
        site.remount();
        assert_meta(&directory, cycle << 32, again);
    }
    site.umount();
    site.assert_clean();
}
