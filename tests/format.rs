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
    let report = pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.close().expect("closes");
}

#[test]
fn images_of_all_formats_are_whole() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = std::fs::read_dir(fixtures).expect("there are fixtures");
    let images: Vec<_> = entries
        .map(|entry| entry.expect("reads").path())
        .filter(|path| path.to_string_lossy().ends_with(".tar.gz"))
        .collect();
    assert!(!images.is_empty());
    images.iter().for_each(|image| check_image(image));
}
