//! Differences of versions, and the history of a path, from the pool's side.

use dedupfs::{ChangeKind, HistoryState, NoProgress, Pool};
use dedupfs_service::{FileService, Ino, ROOT_INO, XattrMode};

use super::site::*;

fn told(pool: &Pool, before: Ino, after: Ino) -> Vec<(ChangeKind, String)> {
    let page = pool.difference([before, after], b"", &NoProgress).expect("compares");
    assert_eq!(page.next, None);
    page.changes.into_iter().map(|change| (change.change, change.path)).collect()
}

#[test]
fn the_difference_of_two_versions_is_told_by_path_also_after_remount() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    let service = pool.service();
    write(&pool, find(&pool, "live/large"), 5 << 20, b"other bytes");
    service.unlink(find(&pool, "live/many"), b"file-77").expect("removes");
    file(&pool, find(&pool, "live/deep-0/deep-1"), "new", b"new");
    service.unlink(live, b"pipe").expect("removes");
    file(&pool, live, "pipe", b"a file now");
    service.set_xattr(CALLER, find(&pool, "live/many"), b"user.long", b"short", XattrMode::Any).expect("sets");
    snapshot(&pool, "live", "", "v2");
    let expected = [
        (ChangeKind::Added, "deep-0/deep-1/new"),
        (ChangeKind::Content, "large"),
        (ChangeKind::Attributes, "many"),
        (ChangeKind::Removed, "many/file-77"),
        (ChangeKind::Kind, "pipe"),
    ]
    .map(|(change, path)| (change, path.to_owned()));
    let [one, two] = ["v1", "v2"].map(|name| find(&pool, name));
    assert_eq!(told(&pool, one, two), expected);
    assert_eq!(told(&pool, one, one), []);
    // Of directories within them.
    let [many, changed] = ["v1/many", "v2/many"].map(|path| find(&pool, path));
    let expected = [(ChangeKind::Attributes, ""), (ChangeKind::Removed, "file-77")].map(|(c, p)| (c, p.to_owned()));
    assert_eq!(told(&pool, many, changed), expected);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_eq!(told(&pool, two, one).len(), 5);
    for pair in [[one, live], [live, one], [one, find(&pool, "v1/large")], [one, 1 << 50]] {
        pool.difference(pair, b"", &NoProgress).expect_err("cannot be compared");
    }
}

#[test]
fn a_history_tells_each_content_of_a_path_once() {
    let pool = open(&formatted());
    let [live, _] = ["live", "series"].map(|name| directory(&pool, ROOT_INO, name));
    let service = pool.service();
    let make = |name: &str| snapshot(&pool, "live", "series", name);
    make("v0");
    let sub = directory(&pool, live, "sub");
    file(&pool, sub, "file", b"one");
    make("v1");
    file(&pool, live, "other", b"x");
    make("v2");
    write(&pool, find(&pool, "live/sub/file"), 0, b"two");
    make("v3");
    write(&pool, find(&pool, "live/sub/file"), 0, b"one");
    make("v4");
    service.unlink(sub, b"file").expect("removes");
    make("v5");
    let series = find(&pool, "series");
    let history = |path: &[u8]| pool.history(series, path, &NoProgress).expect("reads");
    let rows = history(b"sub/file");
    let named: Vec<_> = rows.iter().map(|row| (row.first.as_str(), row.last.as_str(), row.versions)).collect();
    assert_eq!(named, [("v0", "v0", 1), ("v1", "v2", 2), ("v3", "v3", 1), ("v4", "v4", 1), ("v5", "v5", 1)]);
    let content = |row: usize| match &rows[row].state {
        HistoryState::Present { kind, content, len_bytes: 3, .. } if kind == "file" => content.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((&rows[0].state, &rows[4].state), (&HistoryState::Absent, &HistoryState::Absent));
    assert_ne!(content(1), content(2));
    assert_eq!(content(1), content(3));
    assert_eq!(history(b"").len(), 6, "each version is another tree");
    assert_eq!(history(b"other/below").len(), 1, "nothing is below a file");
    forget(&pool, series, "v3");
    let rows = history(b"sub/file");
    assert_eq!(rows.iter().map(|row| row.versions).collect::<Vec<_>>(), [1, 3, 1]);
    assert_eq!(pool.history(live, b"other", &NoProgress).expect("reads"), []);
}
