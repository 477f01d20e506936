//! A pool's content is its owner's: no other user reads its files or commands its daemon, and no file shows another's
//! bytes.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use crate::command::{DEDUPFS, STATS, Tool};
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// Returns everything below a directory that its group or others may access.
fn open_to_others(directory: &Path) -> String {
    Tool::new("find").arg(directory).args(["-mindepth", "1", "-perm", "/077"]).ok().text()
}

#[test]
fn a_pool_is_its_owners() {
    if !is_fit() {
        return;
    }
    let site = Site::with(|base| (base.join("pool"), base.join("data")));
    site.mount();
    fs::write(site.mnt.join("secret"), noise(1, 3 << 20)).unwrap();
    site.sync();
    site.gc();
    assert_eq!(open_to_others(&site.pool), "", "while it is mounted");
    // Even where the modes admit others, the daemon checks the caller's identity.
    for (path, mode) in
        [(site.base.clone(), 0o755), (site.pool.clone(), 0o755), (site.pool.join("control.sock"), 0o666)]
    {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let as_nobody = |program: &str, argument: &[&str]| {
        let run = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
        Tool::new("setpriv").args(run).args(argument).arg(&site.pool).run()
    };
    // The programs lie in a directory that the user nobody cannot enter.
    let programs = tempfile::Builder::new().prefix("dedupfs-programs-").tempdir().unwrap();
    fs::set_permissions(programs.path(), Permissions::from_mode(0o755)).unwrap();
    for (program, arguments) in [(STATS, &[][..]), (DEDUPFS, &["sync"]), (DEDUPFS, &["umount"])] {
        let copy = programs.path().join(Path::new(program).file_name().unwrap());
        fs::copy(program, &copy).unwrap();
        let ran = as_nobody(copy.to_str().unwrap(), arguments);
        assert_ne!(ran.code, 0, "{} did what nobody asked: {}", ran.line, ran.said());
        assert!(ran.said().contains("only root and the user who mounted"), "{}: {}", ran.line, ran.said());
    }
    assert!(site.is_mounted());
    site.umount();
    assert_eq!(open_to_others(&site.pool).replace(site.pool.join("control.sock").to_str().unwrap(), ""), "");
    assert_eq!(open_to_others(&site.data), "");
    site.assert_clean();
}

/// Tails behind a cut, holes, and bytes that a short write did not reach are zeros, even if memory or disk held other bytes
/// before.
#[test]
fn no_file_shows_what_is_not_its_own() {
    if !is_fit() {
        return;
    }
    const SECRET: &[u8] = b"what nobody else may see";
    let site = Site::mounted();
    let secret: Vec<u8> = SECRET.iter().copied().cycle().take(6 << 20).collect();
    for number in 0..4 {
        fs::write(site.mnt.join(format!("secret {number}")), &secret).unwrap();
    }
    site.sync();
    for number in 0..4 {
        fs::remove_file(site.mnt.join(format!("secret {number}"))).unwrap();
    }
    site.gc();
    for (number, len) in [1_u64, 511, 4_097, 70_000, 300_001, 2_000_003].into_iter().enumerate() {
        let path = site.mnt.join(format!("file {number}"));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&vec![b'.'; len as usize]).unwrap();
        // Cut and grown again, a hole behind the end, and a piece in the middle of it.
        file.set_len(len / 2).unwrap();
        file.set_len(len + 100_000).unwrap();
        file.write_all_at(b"!", len + 500_000).unwrap();
        for is_durable in [false, true] {
            if is_durable {
                file.sync_all().unwrap();
            }
            let mut found = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut found).unwrap();
            let mut expected = vec![b'.'; (len / 2) as usize];
            expected.resize(len as usize + 500_000, 0);
            expected.push(b'!');
            assert!(found == expected, "file {number} of {len} bytes, durable: {is_durable}");
        }
    }
    site.remount();
    for number in 0..6 {
        let found = fs::read(site.mnt.join(format!("file {number}"))).unwrap();
        assert!(!found.windows(SECRET.len()).any(|window| window == SECRET), "file {number}");
    }
    // The pool's own files show no bytes that were not stored either: padding is zeros.
    site.umount();
    site.assert_clean();
}
