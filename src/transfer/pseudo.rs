//! Recognises pseudo filesystems: views of the kernel, with files of size 0 and files without an end.

use std::os::fd::AsFd;

/// Returns the name of the pseudo filesystem that holds a directory; `None` if it is no known one.
pub(super) fn kind_of(directory: impl AsFd) -> Option<&'static str> {
    let kind = rustix::fs::fstatfs(directory).ok()?.f_type;
    // From linux/magic.h.
    Some(match u32::try_from(kind).ok()? {
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        0x6462_6720 => "debugfs",
        0x7472_6163 => "tracefs",
        0x0027_e0eb | 0x6367_7270 => "cgroup",
        0x7363_6673 => "securityfs",
        0xf97c_ff8c => "selinuxfs",
        0xcafe_4a11 => "bpf",
        0x6165_676c => "pstore",
        0x6265_6570 => "configfs",
        0x4249_4e4d => "binfmt_misc",
        0x1980_0202 => "mqueue",
        _ => return None,
    })
}

/// The problem that is told of a pseudo filesystem in a tree.
pub(super) fn told(kind: &str) -> String {
    format!(
        "a pseudo filesystem ({kind}): its files are views of the kernel, copied as they were read, if at all; \
         --one-file-system leaves it out"
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn views_of_the_kernel_are_told_from_disks() {
        assert_eq!(kind_of(File::open("/proc").unwrap()), Some("proc"));
        assert_eq!(kind_of(tempfile::tempfile().unwrap()), None);
    }
}
