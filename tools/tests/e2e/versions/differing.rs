//! `dedupfs diff` and `dedupfs history` of backups of a tree that changes.

use std::fs;

use super::{series, snapshot};
use crate::command::{DEDUPFS, Tool};
use crate::site::Site;

#[test]
fn differences_and_histories_are_told() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::create_dir_all(live.join("etc/ssh")).unwrap();
    for (path, content) in [("etc/passwd", "root"), ("etc/ssh/key", "secret"), ("etc/ssh/config", "x"), ("gone", "y")] {
        fs::write(live.join(path), content).unwrap();
    }
    let [one, two] = ["2026-11-22", "2026-11-23"].map(|name| series.join(name));
    snapshot(&live, &one).expect(0, &[]);
    fs::write(live.join("etc/passwd"), "root, daemon").unwrap();
    fs::rename(live.join("etc/ssh"), live.join("ssh")).unwrap();
    fs::remove_file(live.join("gone")).unwrap();
    fs::create_dir(live.join("gone")).unwrap();
    Tool::new("chmod").args(["700"]).arg(live.join("etc")).ok();
    snapshot(&live, &two).expect(0, &[]);
    let diff = |options: &[&str]| Tool::new(DEDUPFS).arg("diff").args(options).args([&one, &two]).run();
    let said = diff(&[]).expect(0, &[]).text();
    let expected = "\
M etc/passwd
- etc/ssh/ (3 entries, 7 B)
T gone/
+ ssh/ (3 entries, 7 B)
3 added, 7 B; 3 removed, 7 B; 1 with other content; 1 of another kind; 1 with other attributes only (--attributes lists them)
";
    assert_eq!(said, expected);
    let said = diff(&["--attributes"]).expect(0, &[]).text();
    assert!(said.starts_with("U etc/\nM etc/passwd\n") && said.ends_with("attributes only\n"), "{said}");
    let said = diff(&["--json"]).expect(0, &[]).text();
    let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["type"], &lines[1]["type"]), (&"diff".into(), &"diff_sums".into()));
    assert_eq!((lines[0]["changes"].as_array().unwrap().len(), &lines[1]["content"]), (4, &1.into()));
    let same = Tool::new(DEDUPFS).arg("diff").args([&one, &one]).run().expect(0, &[]).text();
    assert!(same.starts_with("0 added"), "{same}");
    Tool::new(DEDUPFS).arg("diff").args([&one, &live]).run().expect(2, &["is no version", "snapshot"]);
    Tool::new(DEDUPFS).arg("diff").args([&one, &site.base]).run().expect(2, &["is no version"]);

    let history = |path: &str| Tool::new(DEDUPFS).arg("history").arg(&series).arg(path).run();
    let said = history("/etc/passwd").expect(0, &[]).text();
    assert_eq!(said.lines().count(), 3, "{said}");
    let said = history("ssh/key").expect(0, &["absent"]).text();
    assert_eq!(said.lines().count(), 3, "{said}");
    history("no/such").expect(1, &["no version in", "begins at the top"]);
    history("../etc").expect(2, &["has `..`"]);
    Tool::new(DEDUPFS).arg("history").args([&live]).arg("etc").run().expect(1, &["no versions in"]);
    site.umount();
    site.assert_clean();
}
