//! The steps that only dedupfs has.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Measurement, find};
use crate::command::Run;
use crate::figures::timed;
use crate::pool::{Pool, dedupfs, program};
use crate::{Outcome, command, fail, files, say};

impl Measurement<'_> {
    /// Measures the first backup as a live tree, in a pool of its own.
    pub fn live_first(&mut self) -> Outcome {
        self.pool.format()?;
        self.pool.mount()?;
        let before = self.meta_bytes()?;
        let seconds = timed(|| self.put_live())?;
        let added = self.meta_bytes()? - before;
        self.note("first backup, as a live tree", "dedupfs", seconds, Some(added));
        self.pool.unmount()?;
        files::remove(&self.pool.path)
    }

    pub fn snapshots(&mut self) -> Outcome {
        self.put_live()?;
        self.pool.sync()?;
        for number in 0..self.args.runs {
            self.snapshot("snapshot of a live tree", &format!("snapshot-{number}"))?;
        }
        for number in 0..self.args.runs {
            change_live(&self.pool, number, self.args.files)?;
            self.snapshot("snapshot, 100 files changed", &format!("changed-{number}"))?;
        }
        Ok(())
    }

    fn snapshot(&mut self, title: &str, name: &str) -> Outcome {
        let before = self.meta_bytes()?;
        let seconds = timed(|| snapshot(&self.pool, name))?;
        let added = self.meta_bytes()?.saturating_sub(before);
        self.note(title, "dedupfs", seconds, Some(added));
        Ok(())
    }

    pub fn own_walks(&mut self) -> Outcome {
        for (title, path) in [
            ("live tree", self.pool.at("live")),
            ("newest version", self.newest()),
            ("oldest version", self.pool.at("v1")),
        ] {
            for _ in 0..self.args.runs {
                self.pool.remount_cold(false)?;
                let [cold, warm] = [timed(|| find(&path))?, timed(|| find(&path))?];
                self.note(&format!("find with all attributes, {title}, mounted anew"), "dedupfs", cold, None);
                self.note(&format!("find with all attributes, {title}, again"), "dedupfs", warm, None);
            }
        }
        for (title, path) in [("live tree", self.pool.at("live")), ("newest version", self.newest())] {
            let (from, to) = (format!("{}/", self.tree.path.display()), format!("{}/", path.display()));
            self.repeat(&format!("rsync --dry-run, {title}, mounted anew"), |this| {
                this.pool.remount_cold(false)?;
                timed(|| command!("rsync", "-a", "--dry-run", &from, &to).quiet().run())
            })?;
        }
        Ok(())
    }

    pub fn own_lists(&mut self) -> Outcome {
        let list = timed(|| dedupfs("list").arg(&self.pool.mnt).quiet().run())?;
        self.note("list", "dedupfs", list, None);
        let [before, after] = [1, 0].map(|back| self.pool.at(&format!("v{}", self.version - back)));
        let diff = timed(|| dedupfs("diff").args([&before, &after]).quiet().run())?;
        self.note("diff of the newest two", "dedupfs", diff, None);
        let path = self.tree.file(0);
        let history = timed(|| dedupfs("history").args([&self.pool.mnt, &path]).quiet().run())?;
        self.note("history of one file", "dedupfs", history, None);
        let oldest = self.pool.at("v1");
        self.repeat("what removing the oldest would free, mounted anew", |this| {
            this.pool.remount_cold(false)?;
            timed(|| would_free(&oldest))
        })
    }

    pub fn own_removals(&mut self) -> Outcome {
        let forget = timed(|| dedupfs("forget").arg(self.pool.at("v1")).quiet().run())?;
        self.note("removal of the oldest version", "dedupfs", forget, None);
        let reclaim = timed(|| self.pool.reclaim())?;
        self.note("reclaiming behind it", "dedupfs", reclaim, None);
        let names = files::entries(&self.pool.mnt)?;
        dedupfs("forget").args(names.iter().filter(|path| !path.ends_with("live"))).quiet().run()?;
        command!("rm", "-r", self.pool.at("live")).run()?;
        let reclaim = timed(|| self.pool.reclaim())?;
        self.note("reclaiming when everything is removed", "dedupfs", reclaim, None);
        self.pool.unmount()?;
        let fsck = timed(|| self.pool.fsck())?;
        self.note("fsck", "dedupfs", fsck, None);
        Ok(())
    }

    pub fn put(&mut self, options: &[&str]) -> Outcome {
        self.version += 1;
        put(&self.pool, &self.tree.path, &format!("v{}", self.version), options)
    }

    fn put_live(&self) -> Outcome {
        dedupfs("put").arg("--live").args([&self.tree.path, &self.pool.at("live")]).quiet().run()
    }

    pub fn newest(&self) -> PathBuf {
        self.pool.at(&format!("v{}", self.version))
    }

    pub fn meta_bytes(&self) -> Outcome<u64> {
        meta_bytes(&self.pool)
    }
}

/// Makes a version of a directory, and says how much of it was taken over.
pub fn put(pool: &Pool, source: &Path, name: &str, options: &[&str]) -> Outcome {
    let text = dedupfs("put").arg("--json").args(options).args([source, &pool.at(name)]).text()?;
    let report: Value = serde_json::from_str(&text).or_else(|error| fail(format!("cannot read it: {error}")))?;
    let of = |name: &str| report.pointer(&format!("/made/{name}")).and_then(Value::as_u64).unwrap_or(0);
    say!("{name}: {} entries, {} taken over", of("entries"), of("taken_over"));
    Ok(())
}

pub fn get(from: &Path, to: &Path) -> Outcome {
    files::remove(to)?;
    dedupfs("get").args([from, to]).quiet().run()
}

pub fn would_free(path: &Path) -> Outcome {
    command!(program("dedupfs-stats"), "--would-free", path).quiet().run()
}

/// Makes a version of the directory `live`.
pub fn snapshot(pool: &Pool, name: &str) -> Outcome {
    dedupfs("snapshot").args([pool.at("live"), pool.at(name)]).quiet().run()
}

/// Changes a hundred files in the directory `live`, evenly, and makes them durable.
pub fn change_live(pool: &Pool, seed: u64, files: u64) -> Outcome {
    let live = super::Tree { path: pool.at("live"), files };
    live.change(100.min(files), (files / 100).max(1), seed)?;
    pool.sync()
}

/// Bytes of encoded nodes, of the namespace and of the index, with everything durable.
pub fn meta_bytes(pool: &Pool) -> Outcome<u64> {
    pool.sync()?;
    let stats = pool.stats()?;
    let parts = ["recipe_container_bytes", "namespace_bytes", "index_bytes"];
    parts.iter().try_fold(0, |sum, part| Ok(sum + stats.number(part)?))
}
