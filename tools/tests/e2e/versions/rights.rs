//! Who may make, remove and change back versions: root and the user who mounted the pool (`administration`), nobody else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use super::{listed, names, snapshot};
use crate::command::{DEDUPFS, Ran, Tool};
use crate::compare::assert_same_content;
use crate::machine::is_fit;
use crate::site::Site;

const NOBODY: u32 = 65534;

/// Runs `dedupfs` as the user nobody, from a copy in a directory that this user can enter.
fn as_nobody(program: &Path, arguments: &[&str], paths: &[&Path]) -> Ran {
    let run = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    Tool::new("setpriv").args(run).arg(program).args(arguments).args(paths).run()
}

#[test]
fn only_root_and_the_user_who_mounted_the_pool_make_and_remove_versions() {
    if !is_fit() {
        return;
    }
    let site = Site::mounted_for_all();
    let programs = tempfile::Builder::new().prefix("dedupfs-programs-").tempdir().unwrap();
    let program = programs.path().join("dedupfs");
    fs::copy(DEDUPFS, &program).unwrap();
    // Modes that admit everyone: the daemon checks who asks.
    let open = [programs.path(), &site.base, &site.pool, &site.pool.join("control.sock"), &site.mnt];
    for path in open {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let series = site.mnt.join("web1");
    let live = series.join("live");
    fs::create_dir_all(&live).unwrap();
    fs::write(live.join("file"), "content").unwrap();
    for path in [&series, &live, &live.join("file")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let version = series.join("v");
    snapshot(&live, &version).expect(0, &[]);
    // The owner of all the directories.
    let new = series.join("new");
    let asks: [(&[&str], &[&Path]); 8] = [
        (&["snapshot"], &[&live, &new]),
        (&["freeze"], &[&live]),
        (&["thaw"], &[&version, &new]),
        (&["forget"], &[&version]),
        (&["prune", "--keep-none"], &[&series]),
        (&["series", "set", "--keep-last", "1"], &[&series]),
        (&["series", "unset"], &[&series]),
        (&["list"], &[&series]),
    ];
    for (arguments, paths) in asks {
        let ran = as_nobody(&program, arguments, paths);
        assert!(
            ran.code != 0 && ran.said().contains("only root and the user who mounted"),
            "{}: {}",
            ran.line,
            ran.said()
        );
    }
    assert_eq!((names(&series), listed(&series)), (vec!["live".to_owned(), "v".to_owned()], vec!["v".to_owned()]));
    // Its files are within its reach all the same, and so are the rules.
    Tool::new(DEDUPFS).args(["series", "set", "--keep-last", "1"]).arg(&series).ok();
    let rules =
        ["--reuid=65534", "--regid=65534", "--clear-groups", "getfattr", "--only-values", "-n", "user.dedupfs.series"];
    assert_eq!(Tool::new("setpriv").args(rules).arg(&series).ok().text(), "--keep-last 1");
    for change in [&["-x"][..], &["-v", "--keep-last 9", "-n"]] {
        let ran = Tool::new("setfattr").args(change).arg("user.dedupfs.series").arg(&series).run();
        ran.expect(1, &["Operation not permitted"]);
    }
    // Root may.
    Tool::new(DEDUPFS).arg("thaw").args([&version, &new]).ok();
    assert_same_content(&live, &new);
    Tool::new(DEDUPFS).arg("freeze").arg(&new).ok();
    super::forget(&[&version, &new]).expect(0, &[]);
    site.umount();
    site.assert_clean();
}
