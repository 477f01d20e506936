//! Plugins of nbdkit, which are built when they are used.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Run as _;
use crate::{Outcome, command, fail, files, machine};

const HEADER: &str = "/usr/include/nbdkit-plugin.h";

/// Fails if plugins cannot be built and served here, or other programs are missing.
pub fn need_prerequisites(others: &[&str]) -> Outcome {
    let missing = ["cc", "nbdkit"].iter().chain(others).find(|name| !machine::is_installed(name));
    match missing.copied().or_else(|| (!Path::new(HEADER).exists()).then_some(HEADER)) {
        Some(name) => fail(format!(
            "{name} is missing: please install gcc, nbdkit, nbdkit-plugin-dev, libnbd-bin, e2fsprogs, mount and util-linux"
        )),
        None => Ok(()),
    }
}

/// Builds the plugin `name` in a directory.
pub fn build(name: &str, text: &str, directory: &Path) -> Outcome<PathBuf> {
    let (source, plugin) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.so")));
    fs::write(&source, text).or_else(files::at("write", &source))?;
    command!("cc", "-O2", "-shared", "-fPIC", "-o", &plugin, &source, "-lm").run()?;
    Ok(plugin)
}
