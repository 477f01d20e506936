//! Times by component of a mounted pool: `dedupfs-stats --profile`.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::site::{DEDUPFS, GC, STATS, Site, run};

/// Threads of a daemon at most: those of the architecture's table that work here, 2 for each core beside 64.
fn threads_max() -> f64 {
    64.0 + 2.0 * std::thread::available_parallelism().unwrap().get() as f64
}

/// Returns times by name, of work and waits together, after checking their sums.
#[track_caller]
fn profile(site: &Site) -> BTreeMap<String, u64> {
    let ran = run(STATS, &["--profile".as_ref(), "--json".as_ref(), site.mnt.as_os_str()]).ok();
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let mut all = BTreeMap::new();
    for (list, sum) in [("components", "busy_ms"), ("waits", "waited_ms")] {
        let list = told[list].as_array().unwrap();
        let total = |member: &str| list.iter().map(|one| number(&one[member])).sum::<f64>();
        assert!((total("total_ms") - number(&told[sum])).abs() < 0.001, "{told}");
        assert!(list.is_empty() || (total("share") - 1.0).abs() < 0.001, "{told}");
        let is_in_order = |pair: &[Value]| number(&pair[0]["total_ms"]) >= number(&pair[1]["total_ms"]);
        assert!(list.windows(2).all(is_in_order), "{told}");
        all.extend(list.iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one["times"].as_u64().unwrap())));
    }
    let all_ms = number(&told["busy_ms"]) + number(&told["waited_ms"]);
    assert!(all_ms <= number(&told["elapsed_ms"]) * threads_max(), "{told}");
    all
}

#[test]
fn components_that_were_at_work_have_times_and_others_none() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let random: Vec<u8> =
        (0..8_u64 << 17).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(site.mnt.join("file"), &random).unwrap();
    site.dedupfs("sync", &[&site.mnt]).ok();
    let written = profile(&site);
    let work = ["requests", "chunking", "fingerprinting", "segments", "segment lookup", "filter open"];
    let store = ["appending", "compression", "container writes", "container syncs", "publishing"];
    let round = ["rounds", "freezing", "namespace commit", "commit"];
    for name in work.into_iter().chain(store).chain(round) {
        assert!(written.contains_key(name), "{name}: {written:?}");
    }
    for name in ["put and get", "reclaiming", "scrub", "filter block", "filter neighbour"] {
        assert!(!written.contains_key(name), "{name}: {written:?}");
    }
    // Cold: nothing of the first mount is in memory or counted any more.
    site.umount().ok();
    site.mount().ok();
    assert_eq!(fs::read(site.mnt.join("file")).unwrap(), random);
    let read = profile(&site);
    for name in ["requests", "nodes", "tables", "container reads", "decompression"] {
        assert!(read.contains_key(name), "{name}: {read:?}");
    }
    for name in ["chunking", "fingerprinting", "put and get", "reclaiming"] {
        assert!(!read.contains_key(name), "{name}: {read:?}");
    }
    let source = site.root.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("other"), "other").unwrap();
    site.dedupfs("put", &[&source, &site.mnt.join("copy")]).ok();
    run(GC, &[&site.mnt]).ok();
    run(DEDUPFS, &["scrub".as_ref(), site.mnt.as_os_str()]).ok();
    let kept = profile(&site);
    for name in ["put and get", "chunking", "reclaiming", "counting", "checkpoints", "export", "scrub"] {
        assert!(kept.contains_key(name), "{name}: {kept:?}");
    }
    let shown = run(STATS, &["--profile".as_ref(), site.mnt.as_os_str()]).ok().out;
    assert!(
        shown.contains("\nat work, ") && shown.contains("\nwaiting, ") && shown.contains("  reclaiming "),
        "{shown}"
    );
    site.umount().ok();
    run(STATS, &["--profile".as_ref(), site.pool.as_os_str()]).expect(2, &["not mounted"]);
}

#[test]
fn the_guide_tells_every_component() {
    let guide = include_str!("../../../docs/guide.md");
    for component in dedupfs_store::profile::Component::ALL {
        assert!(guide.contains(&format!("| {} |", component.name())), "docs/guide.md lacks {}", component.name());
    }
}
