//! `dedupfs-stats`.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dedupfs::stats::PoolStats;
use dedupfs::{Progress as _, TreeStats};
use serde::Serialize;

use crate::access::{self, Access};
use crate::args::Stats;
use crate::control::{Failure, FailureKind};
use crate::inside::{self, Inside};
use crate::progress::Bars;
use crate::report::{self, Source};
use crate::versions::{self, Directory};
use crate::{exit, interrupt, target};

pub(crate) fn run(args: &Stats) -> Result<u8, Failure> {
    if let Some(path) = &args.tree {
        return tree(path, args.json);
    }
    let Some(target) = &args.target else {
        return would_free(&args.would_free, args.json);
    };
    let target = target::resolve(target)?;
    let (stats, source) = match access::reach(&target.pool, &access::to_read("dedupfs-stats"))? {
        Access::Daemon(mut client) => (client.stats()?, Source::Daemon),
        Access::Local(pool) => (access::with_local(&pool, |pool| Ok(pool.stats()?))?, Source::Files),
    };
    if args.profile {
        if source == Source::Files {
            let why = "the pool is not mounted, and times count from its mount on";
            return Err(FailureKind::Usage.because(why.to_owned()));
        }
        if stats.profile.elapsed_ms == 0.0 {
            let why = "the daemon of this pool is older and counts no times: mount the pool again";
            return Err(FailureKind::Usage.because(why.to_owned()));
        }
        exit::print_message(args.json, "profile", &stats.profile, report::profile)?;
        return Ok(exit::OK);
    }
    let pool = Told { stats, replicas: Replicas::of(&target.pool) };
    exit::print_message(args.json, "stats", &pool, |pool| report::stats(&pool.stats, source) + &pool.replicas.text())?;
    Ok(exit::OK)
}

/// Statistics, with the replicas of the pool.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    stats: PoolStats,
    #[serde(flatten)]
    replicas: Replicas,
}

#[derive(Serialize)]
struct Replicas {
    #[cfg(feature = "remote")]
    replicas: Vec<dedupfs_replica::Noted>,
}

impl Replicas {
    #[cfg(feature = "remote")]
    fn of(pool: &Path) -> Self {
        let replicas = super::replica::replicas_of(pool).unwrap_or_else(|failure| {
            eprintln!("dedupfs-stats: warning: replicas cannot be told: {failure}");
            Vec::new()
        });
        Self { replicas }
    }

    #[cfg(not(feature = "remote"))]
    fn of(_: &Path) -> Self {
        Self {}
    }

    #[cfg(feature = "remote")]
    fn text(&self) -> String {
        report::replicas(&self.replicas)
    }

    #[cfg(not(feature = "remote"))]
    fn text(&self) -> String {
        String::new()
    }
}

/// What a tree holds, with its path.
#[derive(Serialize)]
struct Tree {
    path: String,
    #[serde(flatten)]
    stats: TreeStats,
}

fn tree(path: &Path, json: bool) -> Result<u8, Failure> {
    let directory = Directory::open_any(path)?;
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let stats = directory.daemon()?.tree_stats(directory.place.ino, &progress)?;
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    bars.finish();
    let tree = Tree { path: report::shown_path(path), stats };
    exit::print_message(json, "tree", &tree, |tree| report::versions::tree(&tree.path, &tree.stats))?;
    Ok(exit::OK)
}

fn would_free(paths: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let mut inos = Vec::with_capacity(paths.len());
    let mut first: Option<Inside> = None;
    for path in paths {
        let (ino, place) = find(path)?;
        if first.as_ref().is_some_and(|first| first.device != place.device) {
            let why = format!("{} is in another mount than {}", path.display(), paths[0].display());
            return Err(FailureKind::Usage.because(why));
        }
        inos.push(ino);
        first.get_or_insert(place);
    }
    let place = first.ok_or_else(|| FailureKind::Usage.because("name a version, a directory or a file".to_owned()))?;
    let told = versions::would_free(&mut inside::daemon(&place.pool, "")?, inos)?;
    exit::print_message(json, "would_free", &told, report::versions::would_free)?;
    Ok(exit::OK)
}

/// Returns the inode number of a path, and its mount. A symbolic link stands for itself.
fn find(path: &Path) -> Result<(u64, Inside), Failure> {
    let shown = path.display();
    let looked_at = std::fs::symlink_metadata(path);
    let metadata = looked_at.map_err(|error| Failure::failed(format!("cannot look at {shown}: {error}")))?;
    let directory = match metadata.is_dir() {
        true => path,
        false => path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    };
    let opened = File::open(directory);
    let opened = opened.map_err(|error| Failure::failed(format!("cannot open {}: {error}", directory.display())))?;
    match inside::find(&opened)? {
        Some(place) => Ok((metadata.ino(), place)),
        None => Err(FailureKind::Usage.because(format!("{shown} is in no mounted dedupfs"))),
    }
}
