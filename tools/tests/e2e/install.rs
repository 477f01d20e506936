//! `tools/install.sh` into a separate directory, and the removal of the installed files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::command::{DEDUPFS, Tool};
use crate::machine::is_fit;

fn install(destination: &Path, arguments: &[&str]) -> Tool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    Tool::new(script).args(["--destdir".as_ref(), destination.as_os_str()]).args(arguments)
}

/// Returns everything below a directory, with the targets of links.
fn listing(root: &Path) -> BTreeSet<String> {
    let said = Tool::new("find").arg(root).args(["-mindepth", "1", "-printf", "%P %y %m %l\n"]).ok().text();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_installed_works_and_goes_without_a_trace() {
    if !is_fit() {
        return;
    }
    let directory = tempfile::Builder::new().prefix("dedupfs-install-").tempdir().unwrap();
    let root = directory.path();
    let programs = Path::new(DEDUPFS).parent().unwrap().to_str().unwrap().to_owned();
    let arguments = ["--prefix", "/opt/dedupfs tools", "--sbindir", "/sbin", "--programs", &programs];
    // Files that were there before, or that others add later, are not ours.
    fs::create_dir_all(root.join("sbin")).unwrap();
    fs::write(root.join("sbin/mount.other"), "").unwrap();
    let before = listing(root);
    install(root, &["--uninstall"]).run().expect(1, &["nothing is installed"]);
    install(root, &arguments).ok();
    let installed = listing(root);
    let prefix = root.join("opt/dedupfs tools");
    for name in ["dedupfs", "dedupfs-stats", "dedupfs-gc"] {
        Tool::new(prefix.join("bin").join(name)).arg("--version").ok();
    }
    for name in ["mount.dedupfs", "mount.fuse.dedupfs", "umount.fuse.dedupfs", "mkfs.dedupfs", "fsck.dedupfs"] {
        assert_eq!(fs::read_link(root.join("sbin").join(name)).unwrap(), Path::new("/opt/dedupfs tools/bin/dedupfs"));
        assert!(prefix.join(format!("share/man/man8/{name}.8")).exists(), "{name}");
    }
    for file in [
        "share/man/man8/dedupfs.8",
        "share/man/man8/dedupfs-mount.8",
        "share/man/man8/dedupfs-gc.8",
        "share/bash-completion/completions/dedupfs",
        "share/zsh/site-functions/_dedupfs-stats",
        "share/fish/vendor_completions.d/dedupfs.fish",
        "lib/systemd/system/dedupfs-scrub@.timer",
        "lib/systemd/system/dedupfs-prune@.timer",
        "share/man/man8/dedupfs-series-set.8",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/dedupfs-gc@.service")).unwrap();
    assert!(unit.contains("/opt/dedupfs tools/bin/dedupfs-gc"), "{unit}");
    Tool::new("bash").arg("-n").arg(prefix.join("share/bash-completion/completions/dedupfs")).ok();

    // A second installation gives the same, without the files of an older version.
    let list = prefix.join("share/dedupfs/installed");
    let old = prefix.join("bin/dedupfs-old");
    fs::write(&old, "").unwrap();
    fs::write(&list, fs::read_to_string(&list).unwrap() + "/opt/dedupfs tools/bin/dedupfs-old\n").unwrap();
    install(root, &arguments).ok();
    assert_eq!(listing(root), installed);

    let own = prefix.join("bin/own");
    fs::write(&own, "").unwrap();
    install(root, &["--prefix", "/opt/dedupfs tools", "--uninstall"]).ok();
    assert!(own.exists());
    fs::remove_dir_all(root.join("opt")).unwrap();
    assert_eq!(listing(root), before);
    install(root, &arguments).ok();
    install(root, &["--prefix", "/opt/dedupfs tools", "--uninstall"]).ok();
    assert_eq!(listing(root), before);
}

#[test]
fn nothing_is_installed_by_a_command_line_that_makes_no_sense() {
    if !is_fit() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    install(root, &["--prefix", "relative"]).run().expect(1, &["absolute"]);
    install(root, &["--dance"]).run().expect(1, &["--dance"]);
    install(root, &["--programs", "/no/such"]).run().expect(1, &["there is no program"]);
    assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    install(root, &["--help"]).run().expect(0, &["--uninstall"]);
}
