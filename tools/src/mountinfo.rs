//! The mounts of this mount namespace, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Only the file is read; mountpoints are never touched. A mount whose daemon hangs or is dead would block or fail, and root cannot even
//! look at another user's mount.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::control::{Failure, FailureKind};

const MOUNTINFO: &str = "/proc/self/mountinfo";
const FILESYSTEM_TYPE: &[u8] = b"fuse.dedupfs";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountEntry {
    /// Unique among the present mounts.
    pub(crate) id: u64,
    pub(crate) parent: u64,
    /// Device number, such as "0:57". For FUSE its minor number is that of the connection.
    pub(crate) device: String,
    pub(crate) mountpoint: PathBuf,
    pub(crate) options: String,
    pub(crate) filesystem_type: Vec<u8>,
    /// Source of the mount; for dedupfs the pool's absolute path.
    pub(crate) source: PathBuf,
}

impl MountEntry {
    pub(crate) fn is_dedupfs(&self) -> bool {
        self.filesystem_type == FILESYSTEM_TYPE && self.source.is_absolute()
    }

    pub(crate) fn user(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// Returns all mounts of this mount namespace, in the order in which they were made.
pub(crate) fn read() -> Result<Vec<MountEntry>, Failure> {
    let text =
        std::fs::read(MOUNTINFO).map_err(|error| Failure::failed(format!("cannot read {MOUNTINFO}: {error}")))?;
    Ok(parse(&text))
}

pub(crate) fn top_at<'a>(mounts: &'a [MountEntry], mountpoint: &Path) -> Option<&'a MountEntry> {
    let here = || mounts.iter().filter(|mount| mount.mountpoint == mountpoint);
    // The top mount is no other's parent at the same place. A mount that was moved or made later need not come later in the file.
    here().find(|mount| !here().any(|above| above.parent == mount.id)).or_else(|| here().next_back())
}

/// Returns a mountpoint of the only pool that is mounted.
///
/// # Errors
/// No pool is mounted, or several are.
pub(crate) fn only() -> Result<PathBuf, Failure> {
    let mounts = read()?;
    let mut pools: Vec<(&Path, &Path)> =
        mounts.iter().filter(|mount| mount.is_dedupfs()).map(|mount| (&*mount.source, &*mount.mountpoint)).collect();
    pools.sort_by_key(|(pool, _)| *pool);
    pools.dedup_by_key(|(pool, _)| *pool);
    match pools[..] {
        [(_, mountpoint)] => Ok(mountpoint.to_owned()),
        [] => Err(FailureKind::Usage.because("no pool is mounted: name one")),
        [(_, first), ..] => Err(FailureKind::Usage.because(format!(
            "{} pools are mounted: name one, such as {}",
            pools.len(),
            first.display()
        ))),
    }
}

/// Returns further mountpoints of the pool of `mount`: those of another daemon's connection that are not dead.
pub(crate) fn others_of(mounts: &[MountEntry], mount: &MountEntry) -> Vec<PathBuf> {
    let is_other =
        |other: &&MountEntry| other.is_dedupfs() && other.source == mount.source && other.device != mount.device;
    let others = mounts.iter().filter(is_other).map(|other| other.mountpoint.clone());
    others.filter(|mountpoint| !crate::mount::is_dead(mountpoint)).collect()
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// Parses `36 35 98:0 /root /mountpoint options optional-fields - type source super-options`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let _root = fields.next()?;
    let mountpoint = unescape(fields.next()?);
    let of_mount = fields.next()?;
    fields.by_ref().find(|field| *field == b"-")?;
    let filesystem_type = fields.next()?.to_vec();
    let source = unescape(fields.next()?);
    let options = [of_mount, fields.next().unwrap_or_default()].map(String::from_utf8_lossy).join(",");
    Some(MountEntry { id, parent, device, mountpoint, options, filesystem_type, source })
}

/// Replaces escapes. The kernel writes space, tab, newline, backslash (and `#` in some fields) as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let (byte, after) = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            _ => (*first, tail),
        };
        bytes.push(byte);
        rest = after;
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether the filesystem with this device number is mounted anywhere. Covers other mount namespaces if sysfs is there.
pub(crate) fn is_somewhere(device: &str) -> bool {
    let all = Path::new("/sys/class/bdi");
    if all.is_dir() {
        return all.join(device).exists();
    }
    read().is_ok_and(|mounts| mounts.iter().any(|mount| mount.device == device))
}

pub(crate) fn contains(outer: &Path, inner: &Path) -> bool {
    outer.as_os_str().as_bytes() == b"/" || inner.starts_with(outer)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    const SAMPLE: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
40 22 0:50 / /mnt/a\\040b\\134c\\011d rw,nosuid,nodev - fuse.dedupfs /pools/x\\012y rw,user_id=0\n\
41 22 0:51 / /mnt/z rw shared:7 master:2 - fuse.sshfs host:/dir rw\n\
44 43 0:54 / /mnt/stack rw - fuse.dedupfs /pools/top rw\n\
42 22 0:52 / /mnt/stack rw - tmpfs tmpfs rw\n\
43 42 0:53 / /mnt/stack rw - fuse.dedupfs /pools/below rw\n\
45 22 0:55 / /mnt/\xff\xfe rw - fuse.dedupfs /pools/\xe4 rw\n";

    #[test]
    fn fields_are_found_whatever_the_optional_ones() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts.len(), 7);
        let escaped = top_at(&mounts, Path::new("/mnt/a b\\c\td")).unwrap();
        assert!(escaped.is_dedupfs());
        assert_eq!(escaped.source, Path::new("/pools/x\ny"));
        assert_eq!((escaped.device.as_str(), escaped.parent), ("0:50", 22));
        assert_eq!((escaped.options.as_str(), escaped.user()), ("rw,nosuid,nodev,rw,user_id=0", Some(0)));
        let other = top_at(&mounts, Path::new("/mnt/z")).unwrap();
        assert!(!other.is_dedupfs());
        assert_eq!(other.source, Path::new("host:/dir"));
        assert_eq!(top_at(&mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn the_top_of_a_stack_is_found_in_any_order() {
        assert_eq!(top_at(&parse(SAMPLE), Path::new("/mnt/stack")).unwrap().source, Path::new("/pools/top"));
    }

    #[test]
    fn names_need_not_be_utf8() {
        let mounts = parse(SAMPLE);
        let mount = top_at(&mounts, Path::new(OsStr::from_bytes(b"/mnt/\xff\xfe"))).unwrap();
        assert_eq!(mount.source.as_os_str().as_bytes(), b"/pools/\xe4");
    }

    #[test]
    fn odd_lines_are_skipped() {
        for line in
            [&b""[..], b"1", b"1 2 0:1 / /m rw", b"1 2 0:1 / /m rw - fuse", b"x 2 0:1 / /m rw - t s o", b"- - -"]
        {
            assert_eq!(parse_line(line), None, "{:?}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn escapes_that_are_none_stay() {
        for (field, expected) in
            [("a\\04", "a\\04"), ("\\", "\\"), ("\\999", "\\999"), ("\\777", "\\777"), ("\\101", "A")]
        {
            assert_eq!(unescape(field.as_bytes()), Path::new(expected));
        }
    }

    #[test]
    fn the_real_file_can_be_read() {
        let mounts = read().unwrap();
        assert!(top_at(&mounts, Path::new("/")).is_some_and(|root| !root.is_dedupfs()));
    }
}
