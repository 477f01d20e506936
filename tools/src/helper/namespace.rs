//! Another mount namespace, for `mount -N`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::control::{Failure, FailureKind};

/// Moves this process, which still has one thread, into the mount namespace of a process, or of a file such as `/run/netns/x`.
pub(crate) fn enter(which: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        FailureKind::Usage.because(format!("cannot enter the mount namespace {}: {error}", which.display()))
    };
    let is_number = which.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    let path = if is_number { PathBuf::from(format!("/proc/{}/ns/mnt", which.display())) } else { which.to_owned() };
    let namespace = File::open(path).map_err(failed)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(|error| failed(error.into()))
}
