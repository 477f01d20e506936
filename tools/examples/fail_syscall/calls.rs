//! The system calls that are counted, and the file that each concerns.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The arguments that name the file of a call, counted from 0.
#[derive(Clone, Copy)]
enum About {
    Descriptor(usize),
    /// A path, relative to the process's working directory.
    Path(usize),
    At(usize, usize),
    Address(usize),
}

use About::{Address, At, Descriptor, Path as Named};

/// Calls that touch files. Closing is not among them: no program can handle its failure.
const CALLS: &[(&str, i64, About)] = &[
    ("read", libc::SYS_read, Descriptor(0)),
    ("readv", libc::SYS_readv, Descriptor(0)),
    ("pread64", libc::SYS_pread64, Descriptor(0)),
    ("preadv", libc::SYS_preadv, Descriptor(0)),
    ("preadv2", libc::SYS_preadv2, Descriptor(0)),
    ("write", libc::SYS_write, Descriptor(0)),
    ("writev", libc::SYS_writev, Descriptor(0)),
    ("pwrite64", libc::SYS_pwrite64, Descriptor(0)),
    ("pwritev", libc::SYS_pwritev, Descriptor(0)),
    ("pwritev2", libc::SYS_pwritev2, Descriptor(0)),
    ("fsync", libc::SYS_fsync, Descriptor(0)),
    ("fdatasync", libc::SYS_fdatasync, Descriptor(0)),
    ("sync_file_range", libc::SYS_sync_file_range, Descriptor(0)),
    ("fallocate", libc::SYS_fallocate, Descriptor(0)),
    ("ftruncate", libc::SYS_ftruncate, Descriptor(0)),
    ("lseek", libc::SYS_lseek, Descriptor(0)),
    ("fstat", libc::SYS_fstat, Descriptor(0)),
    ("fstatfs", libc::SYS_fstatfs, Descriptor(0)),
    ("flock", libc::SYS_flock, Descriptor(0)),
    ("ioctl", libc::SYS_ioctl, Descriptor(0)),
    ("getdents64", libc::SYS_getdents64, Descriptor(0)),
    ("fchmod", libc::SYS_fchmod, Descriptor(0)),
    ("fchown", libc::SYS_fchown, Descriptor(0)),
    ("openat", libc::SYS_openat, At(0, 1)),
    ("mkdirat", libc::SYS_mkdirat, At(0, 1)),
    ("unlinkat", libc::SYS_unlinkat, At(0, 1)),
    ("renameat2", libc::SYS_renameat2, At(2, 3)),
    ("statx", libc::SYS_statx, At(0, 1)),
    ("newfstatat", libc::SYS_newfstatat, At(0, 1)),
    ("fchownat", libc::SYS_fchownat, At(0, 1)),
    ("fchmodat", libc::SYS_fchmodat, At(0, 1)),
    ("statfs", libc::SYS_statfs, Named(0)),
    ("bind", libc::SYS_bind, Address(1)),
    ("connect", libc::SYS_connect, Address(1)),
];

/// Older calls, which other architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[(&str, i64, About)] = &[
    ("open", libc::SYS_open, Named(0)),
    ("mkdir", libc::SYS_mkdir, Named(0)),
    ("rmdir", libc::SYS_rmdir, Named(0)),
    ("unlink", libc::SYS_unlink, Named(0)),
    ("rename", libc::SYS_rename, Named(1)),
    ("renameat", libc::SYS_renameat, At(2, 3)),
    ("stat", libc::SYS_stat, Named(0)),
    ("lstat", libc::SYS_lstat, Named(0)),
    ("chmod", libc::SYS_chmod, Named(0)),
    ("chown", libc::SYS_chown, Named(0)),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(&str, i64, About)] = &[];

fn calls() -> impl Iterator<Item = &'static (&'static str, i64, About)> {
    CALLS.iter().chain(OLD_CALLS)
}

const ERRORS: &[(&str, i32)] = &[
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("EDQUOT", libc::EDQUOT),
    ("EINTR", libc::EINTR),
    ("EAGAIN", libc::EAGAIN),
    ("EMFILE", libc::EMFILE),
    ("ENFILE", libc::ENFILE),
    ("ENOMEM", libc::ENOMEM),
    ("ENOENT", libc::ENOENT),
    ("EACCES", libc::EACCES),
    ("EROFS", libc::EROFS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
];

pub(crate) fn number_of(name: &str) -> Option<i64> {
    calls().find(|call| call.0 == name).map(|call| call.1)
}

pub(crate) fn numbers() -> Vec<i64> {
    calls().map(|call| call.1).collect()
}

pub(crate) fn errno(name: &str) -> Option<i32> {
    ERRORS.iter().find(|error| error.0 == name).map(|error| error.1)
}

/// Returns the name of a call of a thread, and the file that it concerns; `None` if that cannot be found.
pub(crate) fn describe(thread: u32, number: i64, arguments: &[u64; 6]) -> Option<(&'static str, PathBuf)> {
    let (name, _, about) = *calls().find(|call| call.1 == number)?;
    let path = match about {
        Descriptor(at) => descriptor(thread, arguments[at])?,
        Named(at) => resolve(thread, None, &text(thread, arguments[at], 0)?)?,
        At(directory, at) => {
            // Without a path the call concerns the descriptor itself.
            let path = if arguments[at] == 0 { PathBuf::new() } else { text(thread, arguments[at], 0)? };
            resolve(thread, Some(arguments[directory]), &path)?
        }
        // The path follows the family's two bytes.
        Address(at) => resolve(thread, None, &text(thread, arguments[at], 2)?)?,
    };
    Some((name, path))
}

fn descriptor(thread: u32, number: u64) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{thread}/fd/{}", number as u32 as i32)).ok()
}

/// Reads a zero-terminated text at an address of the thread's memory.
fn text(thread: u32, address: u64, skipped: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut found = Vec::new();
    let mut at = address.checked_add(skipped)?;
    while found.len() < 4096 {
        // Never across a page: the next page may not be mapped.
        let mut part = vec![0; 256 - (at % 256) as usize];
        let len = memory.read_at(&mut part, at).ok().filter(|len| *len > 0)?;
        if let Some(end) = part[..len].iter().position(|byte| *byte == 0) {
            found.extend_from_slice(&part[..end]);
            return Some(PathBuf::from(OsStr::from_bytes(&found)));
        }
        found.extend_from_slice(&part[..len]);
        at += len as u64;
    }
    None
}

/// Makes a path absolute. Paths through `/proc/self/fd/N` start at that descriptor.
fn resolve(thread: u32, directory: Option<u64>, path: &Path) -> Option<PathBuf> {
    if let Ok(rest) = path.strip_prefix("/proc/self/fd") {
        let mut parts = rest.components();
        let number = parts.next()?.as_os_str().to_str()?.parse().ok()?;
        return Some(descriptor(thread, number)?.join(parts.as_path()));
    }
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let base = match directory {
        Some(number) if number as u32 as i32 != libc::AT_FDCWD => descriptor(thread, number)?,
        _ => fs::read_link(format!("/proc/{thread}/cwd")).ok()?,
    };
    Some(if path.as_os_str().is_empty() { base } else { base.join(path) })
}
