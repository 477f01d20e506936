//! Pools of every released format open and are whole: `fixtures/README.md`.

use std::path::Path;
use std::process::Command;

use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{Caller, FileService, Ino, OpenOptions, ROOT_INO, Timestamp};

fn find(service: &dyn FileService, path: &str) -> Ino {
    path.split('/').fold(ROOT_INO, |parent, name| service.lookup(parent, name.as_bytes()).expect("is there").ino)
}

fn read(service: &dyn FileService, path: &str) -> Vec<u8> {
    let ino = find(service, path);
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(Caller::default(), ino, how).expect("opens").handle;
    let mut bytes = Vec::new();
    service.read(ino, handle, 0, 1 << 30, &mut bytes).expect("reads");
    service.release(ino, handle);
    bytes
}

fn check_image(image: &Path) {
    let directory = tempfile::tempdir().expect("makes a directory");
    let status = Command::new("tar").arg("-xzf").arg(image).arg("-C").arg(directory.path()).status().expect("runs tar");
    assert!(status.success(), "tar cannot unpack {}", image.display());
    let pool = Pool::open(&directory.path().join("pool"), &PoolOptions::default()).expect("the pool opens");
    let service = pool.service();
    let numbers: String = (1..=1_500_000).map(|number| format!("{number}\n")).collect();
    assert!(read(&*service, "numbers") == numbers.as_bytes());
    assert!(read(&*service, "directory/again") == numbers.as_bytes());
    assert_eq!(read(&*service, "directory/link"), b"small\n");
    assert_eq!(find(&*service, "small"), find(&*service, "directory/link"));
    assert_eq!(service.read_link(find(&*service, "directory/symlink")).expect("is a link"), b"../small");
    assert_eq!(service.xattr(find(&*service, "small"), b"user.colour").expect("has it"), b"green");
    let small = service.attributes(find(&*service, "small")).expect("has attributes");
    assert_eq!((small.nlink, small.mtime), (2, Timestamp { secs: 981_173_106, nanos: 789_000_000 }));
    let hole = service.attributes(find(&*service, "hole")).expect("has attributes");
    assert_eq!((hole.size_bytes, hole.mode), (3_000_003, 0o600));
    assert!(read(&*service, "hole").ends_with(b"\0end"));
    if image.ends_with("format-1-versions.tar.gz") {
        check_versions(&pool, numbers.as_bytes());
    }
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.close().expect("closes");
}

/// Fingerprint of the tree of both puts in the images that have versions: equal bytes of all its nodes.
const PUT_FINGERPRINT: &str = "b824b536675f2807838131381527cbe4540d2e86cac4e4d836f93b4f676c1539";

fn check_versions(pool: &Pool, numbers: &[u8]) {
    let service = pool.service();
    let versions = pool.versions(None).expect("lists");
    let facts = versions.iter().map(|version| (&*version.directory, &*version.name, version.files, version.problems));
    let expected = [("snapshot", 2), ("first", 5), ("second", 5)].map(|(name, files)| ("series", name, files, 0));
    assert_eq!(facts.collect::<Vec<_>>(), expected);
    assert!(versions[1..].iter().all(|version| version.fingerprint == PUT_FINGERPRINT && version.damaged.is_none()));
    let rules = pool.series(find(&*service, "series")).expect("reads").expect("is a series");
    assert_eq!(rules.rules.to_string(), "--keep-last 3 --keep-daily 7");
    assert!(read(&*service, "series/snapshot/again") == numbers);
    for version in ["series/first", "series/second"] {
        let in_version = |path: &str| format!("{version}/{path}");
        assert!(read(&*service, &in_version("numbers")) == numbers);
        assert_eq!(read(&*service, &in_version("directory/link")), b"small\n");
        let small = find(&*service, &in_version("small"));
        assert_eq!(small, find(&*service, &in_version("directory/link")));
        assert_eq!(service.xattr(small, b"user.colour").expect("has it"), b"green");
        let long = service.xattr(find(&*service, &in_version("directory")), b"user.long").expect("has it");
        assert!(long.starts_with(b"1\n2\n") && long.ends_with(b"\n200"));
        let small = service.attributes(small).expect("has attributes");
        assert_eq!((small.nlink, small.mtime), (2, Timestamp { secs: 981_173_106, nanos: 789_000_000 }));
        assert_eq!(service.attributes(find(&*service, &in_version("hole"))).expect("has them").size_bytes, 3_000_003);
        assert_eq!(
            service.read_link(find(&*service, &in_version("directory/symlink"))).expect("is a link"),
            b"../small"
        );
    }
}

#[test]
fn images_of_all_formats_are_whole() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = std::fs::read_dir(fixtures).expect("there are fixtures");
    let images: Vec<_> = entries
        .map(|entry| entry.expect("reads").path())
        .filter(|path| path.to_string_lossy().ends_with(".tar.gz"))
        .collect();
    assert_eq!(images.len(), 2);
    images.iter().for_each(|image| check_image(image));
}
