//! Rules for the sources as a whole that no compiler checks.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn regression_the_compiler_is_pinned_to_the_version_that_is_required() {
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
        line.split('"').nth(1).unwrap().to_owned()
    };
    let required = value(&read("Cargo.toml"), "rust-version");
    let pinned = value(&read("rust-toolchain.toml"), "channel");
    assert!(pinned.starts_with(&format!("{required}.")), "Rust {required} is required, and {pinned} tested");
}

#[test]
fn regression_crates_without_unsafe_code_forbid_it() {
    for path in [
        "store/src/lib.rs",
        "index/src/lib.rs",
        "fuse/src/lib.rs",
        "tools/src/lib.rs",
        "tools/src/bin/dedupfs.rs",
        "tools/src/bin/dedupfs-gc.rs",
        "tools/src/bin/dedupfs-stats.rs",
    ] {
        assert!(read(path).lines().any(|line| line == "#![forbid(unsafe_code)]"), "{path}");
    }
}

/// Runs the script with a cargo that can fetch no database.
fn advisories(is_required: bool) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let cargo = directory.path().join("cargo");
    fs::write(&cargo, "#!/bin/sh\n[ \"$3\" != fetch ]\n").unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut script = Command::new(project().join("tools/advisories.sh"));
    script.env("PATH", path).env_remove("DEDUPFS_REQUIRE_ADVISORIES");
    if is_required {
        script.env("DEDUPFS_REQUIRE_ADVISORIES", "1");
    }
    script.output().unwrap()
}

#[test]
fn regression_advisories_that_were_not_checked_are_told_and_fail_where_they_are_required() {
    let told = advisories(false);
    assert!(told.status.success());
    // `.ci/run` looks for this line and repeats it at its end.
    assert!(String::from_utf8_lossy(&told.stdout).starts_with("NOT CHECKED: advisories"), "{told:?}");
    let refused = advisories(true);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("NOT CHECKED: advisories"), "{refused:?}");
    let last = read(".ci/run");
    assert!(last.trim_end().ends_with("grep '^NOT CHECKED' \"$advisories\" || true"), "{last}");
}
