//! Disks with a known wrong order beneath the engine. The suite must notice each of them; otherwise it would also miss
//! the same mistake in the engine.

use std::path::Path;
use std::sync::{Arc, Mutex};

use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, Observer};
use dedupfs_store::device::{Device, OpenMode};

use crate::disks::Disks;
use crate::inspect::{Point, examine_saved};
use crate::suite::{Goal, again, run};
use crate::workload::Below;

/// Reports success for the chosen calls without performing them.
#[derive(Debug)]
struct Forgets(fn(&Call<'_>) -> bool);

impl Observer for Forgets {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.0(call) { Ok(()) } else { perform() }
    }
}

/// Makes the files of an index durable only after the manifest that names them.
#[derive(Debug)]
struct ManifestFirst {
    disks: Disks,
    late: Mutex<Late>,
}

#[derive(Default, Debug)]
struct Late {
    /// Files whose sync was put off.
    files: Vec<String>,
    /// Replaced manifests whose directory was not synced since.
    manifests: Vec<String>,
}

impl Observer for ManifestFirst {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut late = self.late.lock().unwrap();
        match call {
            Call::Sync { path } if path.starts_with("index/") && !path.ends_with("/manifest.new") => {
                late.files.push((*path).to_owned());
                Ok(())
            }
            Call::Rename { to, .. } if to.ends_with("/manifest") => {
                late.manifests.push((*to).to_owned());
                perform()
            }
            Call::SyncDirectory { path } if late.manifests.contains(&format!("{path}/manifest")) => {
                perform()?;
                late.manifests.retain(|manifest| *manifest != format!("{path}/manifest"));
                let is_of_it = |file: &mut String| file.starts_with(&format!("{path}/"));
                for path in late.files.extract_if(.., is_of_it) {
                    // The file may have been removed meanwhile.
                    if let Ok(file) = self.disks.meta.open(&path, OpenMode::Read) {
                        file.sync()?;
                    }
                }
                Ok(())
            }
            _ => perform(),
        }
    }
}

/// Checks that the suite fails within twice its usual number of points, and that its message leads to the same failure again.
fn is_noticed(below: Below<'_>) {
    let error = run(0, Goal::Points(2 * crate::POINTS), Some(below)).expect_err("the suite notices nothing");
    println!("noticed: {error}");
    let value = |name: &str| {
        let line =
            error.lines().find_map(|line| line.split_once(name)).unwrap_or_else(|| panic!("no {name} in: {error}"));
        line.1.split_whitespace().next().expect("has a value").to_owned()
    };
    let image = value("DEDUPFS_CRASH_IMAGE=");
    match examine_saved(Path::new(&image)) {
        Err(saved) => println!("the image: {saved}"),
        // The export's thread may have rewritten the export before the image was examined.
        Ok(()) => assert!(error.contains("export on the data root"), "the image is sound"),
    }
    std::fs::remove_dir_all(&image).expect("removes the image");
    // The thread that writes checkpoints runs in parallel: most seeds give the same order of operations, but not all.
    let point = value("DEDUPFS_CRASH=");
    let (seed, point) = point.split_once(':').expect("has a seed");
    let seed = seed.parse().expect("is a number");
    let point = Point::parse(point).expect("is a point");
    match again(seed, &point, Some(below)) {
        Ok(_) => println!("the same work did not fail again at that point"),
        Err(error) => {
            let (_, image) = error.rsplit_once("DEDUPFS_CRASH_IMAGE=").expect("names an image");
            let image = image.split_whitespace().next().expect("has a value");
            std::fs::remove_dir_all(image).expect("removes the image");
        }
    }
}

fn forgets(what: fn(&Call<'_>) -> bool) {
    is_noticed(&move |_| Arc::new(Forgets(what)));
}

#[test]
fn the_suite_notices_transactions_that_are_durable_before_the_data() {
    forgets(|call| matches!(call, Call::Sync { path } if path.starts_with("containers/")));
}

#[test]
fn the_suite_notices_transactions_that_are_durable_before_the_recipes() {
    forgets(|call| matches!(call, Call::Sync { path } if path.starts_with("recipes/")));
}

#[test]
fn the_suite_notices_directories_that_are_not_synced() {
    forgets(|call| matches!(call, Call::SyncDirectory { .. }));
}

#[test]
fn the_suite_notices_a_manifest_before_its_files() {
    is_noticed(&|disks| Arc::new(ManifestFirst { disks: disks.clone(), late: Mutex::default() }));
}

#[test]
fn the_suite_notices_a_manifest_that_is_not_synced() {
    forgets(|call| matches!(call, Call::Sync { path } if path.ends_with("/manifest.new")));
}

#[test]
fn the_suite_notices_a_namespace_that_is_not_synced() {
    forgets(|call| matches!(call, Call::Sync { path } if *path == dedupfs_namespace::NAMESPACE_FILE));
}
