//! Real programs with their data in a mount: rsync with hard-linked backups, git, sqlite3 with writers that are killed.
//! Each is a script of `tests/clients/`, run here with a small load; `tests/clients/all.sh` runs all of them with a
//! large one.

use std::path::Path;

use crate::command::{DEDUPFS, Tool};
use crate::machine::is_fit;

#[test]
fn real_programs_find_what_they_stored() {
    if !is_fit() {
        return;
    }
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/all.sh");
    let mut programs = std::ffi::OsString::from("DEDUPFS_BIN=");
    programs.push(Path::new(DEDUPFS).parent().unwrap());
    let directory = tempfile::Builder::new().prefix("dedupfs-e2e-").tempdir().unwrap();
    let ran = Tool::new("env").arg(programs).arg(all).arg("--quick").arg(directory.path()).run();
    ran.expect(0, &["| rsync | passed |", "| git | passed |", "| sqlite | passed |"]);
}
