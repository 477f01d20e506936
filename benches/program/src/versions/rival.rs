//! Another tool that keeps versions of the tree.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::find;
use crate::command::Run;
use crate::figures::timed;
use crate::rivals_tools::Tool;
use crate::{Outcome, cleanup, command, fail, files};

/// The tool, and what it calls its versions.
pub struct Rival<'a> {
    tool: Tool<'a>,
    versions: Vec<String>,
}

impl<'a> Rival<'a> {
    /// Makes an empty repository in a directory; its cache and mountpoint are made in `work`.
    pub fn new(name: &'a str, repositories: &Path, work: &Path, ram: &Path) -> Outcome<Self> {
        let place = |part: &str| work.join(format!("{name}-{part}"));
        let (repository, cache, mnt) = (repositories.join(format!("{name}-repository")), place("cache"), place("mnt"));
        files::make_dir(&cache)?;
        files::make_dir(&mnt)?;
        let tool = Tool { name, repository, cache, mnt, ram: ram.to_owned(), versions: Default::default() };
        let this = Self { tool, versions: Vec::new() };
        this.run("init", "")?;
        Ok(this)
    }

    /// Name of the tool.
    pub fn name(&self) -> &'a str {
        self.tool.name
    }

    /// Backs up the directory of this name. Returns the seconds, and the bytes by which the repository grew.
    pub fn backup(&mut self, source: &str) -> Outcome<(f64, u64)> {
        let before = files::disk_bytes(&self.tool.repository);
        let seconds = timed(|| self.run("tree", source))?;
        let version = self.newest(source)?;
        self.versions.push(version);
        if let [oldest, .., newest] = &self.versions[..] {
            self.tool.versions = [oldest.clone(), newest.clone()];
        }
        Ok((seconds, files::disk_bytes(&self.tool.repository).saturating_sub(before)))
    }

    /// What the tool calls the newest version, which was made of the directory of this name.
    fn newest(&self, source: &str) -> Outcome<String> {
        let Some(command) = self.tool.commands("ids", source)?.first_mut().map(Run::text) else {
            return Ok(format!("tree-{source}"));
        };
        let ids: Value = serde_json::from_str(&command?).or_else(|error| fail(format!("cannot read it: {error}")))?;
        let id = ids.as_array().and_then(|all| all.last()).and_then(|newest| newest["short_id"].as_str());
        id.map_or_else(|| fail(format!("{} names no snapshot", self.tool.name)), |id| Ok(id.to_owned()))
    }

    pub fn restore(&self, source: &str) -> Outcome {
        self.run("tree-out", source)
    }

    pub fn list(&self) -> Outcome {
        self.run("list", "")
    }

    /// Compares the newest two versions.
    pub fn diff(&mut self) -> Outcome {
        let [.., before, after] = &self.versions[..] else { return fail("two versions are needed") };
        let oldest = std::mem::replace(&mut self.tool.versions, [before.clone(), after.clone()]);
        let done = self.run("diff", "");
        self.tool.versions = oldest;
        done
    }

    /// Mounts the newest or the oldest version, and walks it. Returns the seconds.
    pub fn walk(&self, is_newest: bool) -> Outcome<f64> {
        let mnt = &self.tool.mnt;
        let version = &self.tool.versions[usize::from(is_newest)];
        let mut commands = self.tool.commands(if is_newest { "walk-newest" } else { "walk-oldest" }, "")?;
        let Some(mount) = commands.first_mut() else { return fail("it cannot mount") };
        cleanup::will_mount(mnt);
        let mut child = None;
        let seconds = timed(|| {
            let mut started = mount.quiet().start()?;
            while !cleanup::is_mounted(mnt) {
                cleanup::check().or_else(files::at("mount", mnt))?;
                if let Ok(Some(status)) = started.try_wait()
                    && !status.success()
                {
                    return fail(format!("{}: {status}", self.tool.name));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            child = Some(started);
            let by_name = mnt.join("ids").join(version);
            find(if by_name.is_dir() { &by_name } else { mnt })
        })?;
        command!("fusermount", "-u", mnt).run()?;
        cleanup::forget_mount(mnt);
        child.map_or(Ok(()), |child| crate::command::wait(child, self.tool.name))?;
        Ok(seconds)
    }

    /// Removes the oldest version.
    pub fn forget(&self) -> Outcome {
        self.run("forget", "")
    }

    pub fn reclaim(&self) -> Outcome {
        self.run("reclaim", "")
    }

    /// Removes the repository, the cache and the mountpoint.
    pub fn remove(self) -> Outcome {
        [&self.tool.repository, &self.tool.cache, &self.tool.mnt].into_iter().try_for_each(|path| files::remove(path))
    }

    fn run(&self, step: &str, source: &str) -> Outcome {
        self.tool.commands(step, source)?.iter_mut().map(Command::quiet).try_for_each(Run::run)
    }
}
