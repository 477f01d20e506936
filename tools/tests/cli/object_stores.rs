//! Checks of object stores.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::site::{DEDUPFS, output_of, run};

#[test]
fn a_directory_can_hold_copies_of_pools() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().to_str().unwrap();
    let ran = run(DEDUPFS, &["store-check", store]).ok();
    assert_eq!(ran.out.lines().count(), 7, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.starts_with("ok  ")), "{}", ran.out);
    // Empty directories are left.
    fn files(path: &Path) -> usize {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }
    assert!(fs::read_dir(scratch.path()).unwrap().count() > 0);
    assert_eq!(files(scratch.path()), 0);
    let told: serde_json::Value =
        serde_json::from_str(&run(DEDUPFS, &["store-check", "--json", store]).ok().out).unwrap();
    assert_eq!(
        (&told["type"], &told["is_usable"], &told["store"]),
        (&"store_check".into(), &true.into(), &store.into())
    );
}

#[test]
fn a_store_that_cannot_be_checked_is_told_with_advice() {
    run(DEDUPFS, &["store-check", "/nonexistent/store"]).expect(2, &["/nonexistent/store"]);
    for address in ["s3://key:hidden@bucket", "s3://bucket?endpoint=http://key:hidden@127.0.0.1:1"] {
        let ran = run(DEDUPFS, &["store-check", address]);
        assert!(!ran.err.contains("hidden"), "{}", ran.err);
        ran.expect(2, &["AWS_SECRET_ACCESS_KEY"]);
    }
    run(DEDUPFS, &["store-check", "ftp://bucket"]).expect(2, &["s3://BUCKET/PREFIX"]);
    let check = |credentials: &[(&str, &str)]| {
        let mut command = Command::new(DEDUPFS);
        command.args(["store-check", "s3://bucket?endpoint=http://127.0.0.1:1"]);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        output_of(command.envs(credentials.iter().copied()))
    };
    check(&[]).expect(2, &["there are no credentials", "AWS_ACCESS_KEY_ID"]);
    let ran = check(&[("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "hidden")]).expect(1, &["for now"]);
    assert!(!ran.err.contains("hidden"), "{}", ran.err);
}
