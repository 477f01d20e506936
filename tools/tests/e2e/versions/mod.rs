//! Versions of live directories: the same for all clients as the tree was, unchangeable, and gone when they are forgotten.

mod calls;
mod clients;
mod differing;
mod forgetting;
mod freezing;
mod interrupted;
mod pruning;
mod put;
mod reading;
mod refused;
mod resumed;
mod rights;

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{DEDUPFS, Ran, Tool};
use crate::site::Site;

#[track_caller]
fn snapshot(from: &Path, to: &Path) -> Ran {
    Tool::new(DEDUPFS).arg("snapshot").args([from, to]).run()
}

#[track_caller]
fn forget(paths: &[&Path]) -> Ran {
    Tool::new(DEDUPFS).arg("forget").args(paths).run()
}

/// Makes the directories `web1/current` of a site, and returns both.
fn series(site: &Site) -> (PathBuf, PathBuf) {
    let series = site.mnt.join("web1");
    let live = series.join("current");
    fs::create_dir_all(&live).unwrap();
    (series, live)
}

/// Returns the names in a directory, sorted.
#[track_caller]
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the versions that `dedupfs list` tells, by name.
#[track_caller]
fn listed(target: &Path) -> Vec<String> {
    let said = Tool::new(DEDUPFS).args(["list", "--json"]).arg(target).ok().text();
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    list["versions"].as_array().unwrap().iter().map(|version| version["name"].as_str().unwrap().to_owned()).collect()
}
