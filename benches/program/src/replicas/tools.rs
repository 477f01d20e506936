//! The tools that copy backups to the store, as commands.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::gateway::BUCKET;
use crate::command::Run;
use crate::pool::{Pool, dedupfs};
use crate::{Outcome, command, files, machine};

/// The tools with their places.
pub struct Copying<'a> {
    /// Scratch directory.
    pub work: &'a Path,
    /// The tree that is backed up.
    pub source: &'a Path,
    /// The pool, mounted.
    pub pool: &'a Pool,
    /// Where the store is reached.
    pub port: u16,
}

/// Tools, and the program that each needs.
const KNOWN: [(&str, &str); 5] = [
    ("files", "rclone"),
    ("dedupfs", "versitygw"),
    ("restic copy", "restic"),
    ("rclone of restic", "rclone"),
    ("kopia sync-to", "kopia"),
];

impl Copying<'_> {
    /// The tools that are there.
    pub fn installed(&self) -> Vec<&'static str> {
        let is_there = |(name, program): &(&str, &str)| {
            machine::is_installed(program) && (*name != "rclone of restic" || machine::is_installed("restic"))
        };
        KNOWN.into_iter().filter(is_there).map(|(name, _)| name).collect()
    }

    /// Stores the tree on this machine, as the tool does, and makes an empty copy before the first.
    pub fn prepare(&self, name: &str, step: &str) -> Outcome {
        let is_first = step == "first";
        let local = self.local(name);
        match name {
            "dedupfs" => {
                // An empty pool is copied first: making a replica checks the store.
                if is_first {
                    self.replicate(&["--init"])?;
                }
                dedupfs("put").args([&self.source.join(step), &self.pool.at(step)]).run()?;
                self.pool.sync()
            }
            "restic copy" | "rclone of restic" => {
                if is_first {
                    self.restic(&local).args(["init", "-q"]).run()?;
                }
                self.restic(&local).args(["backup", "-q"]).arg(self.source).run()?;
                if is_first && name == "restic copy" {
                    let mut init = self.restic(self.url("restic").as_ref());
                    init.args(["init", "-q", "--copy-chunker-params", "--from-repo"]).arg(&local).run()?;
                }
                Ok(())
            }
            "kopia sync-to" => {
                if is_first {
                    self.kopia().args(["repository", "create", "filesystem", "--path"]).arg(&local).run()?;
                }
                self.kopia().args(["snapshot", "create", "--no-progress"]).arg(self.source).run()
            }
            _ => Ok(()),
        }
    }

    /// Copies to the store.
    pub fn copy(&self, name: &str) -> Outcome {
        let local = self.local(name);
        match name {
            "dedupfs" => self.replicate(&[]),
            "restic copy" => {
                let mut copy = self.restic(self.url("restic").as_ref());
                copy.args(["copy", "-q", "--from-repo"]).arg(&local).run()
            }
            "rclone of restic" => self.rclone("sync", &local.to_string_lossy(), &self.remote("rclone")),
            "kopia sync-to" => {
                let mut sync = self.kopia();
                sync.args(["repository", "sync-to", "s3", "--disable-tls", "--no-progress", "--prefix=kopia/"]);
                sync.args(["--access-key=key", "--secret-access-key=secret", "--parallel=8"]);
                sync.arg(format!("--bucket={BUCKET}")).arg(format!("--endpoint=127.0.0.1:{}", self.port)).run()
            }
            _ => self.rclone("copy", &self.source.to_string_lossy(), &self.remote("files")),
        }
    }

    fn replicate(&self, more: &[&str]) -> Outcome {
        let mut replicate = dedupfs("replicate");
        replicate.arg(&self.pool.mnt).arg(self.address("")).arg("--key").arg(self.work.join("key")).args(more);
        credentials(&mut replicate).run()
    }

    /// Restores the tree of the first copy, or one file of it, from the store alone, on a machine without caches, and compares it.
    pub fn restore(&self, name: &str, file: Option<&str>) -> Outcome {
        let (out, cache) = (self.work.join("restored"), self.work.join("cache of the reader"));
        let part = file.map_or_else(|| "first".to_owned(), |file| format!("first/{file}"));
        let expected = self.source.join(&part);
        files::remove(&out)?;
        files::remove(&cache)?;
        let restored = match name {
            "dedupfs" => {
                let mut get = dedupfs("get");
                get.arg(self.address(&part))
                    .arg(&out)
                    .arg("--key")
                    .arg(self.work.join("key"))
                    .arg("--cache")
                    .arg(&cache);
                credentials(&mut get).run()?;
                out.clone()
            }
            "restic copy" | "rclone of restic" => {
                let place = if name == "restic copy" { "restic" } else { "rclone" };
                let mut restore = self.restic(self.url(place).as_ref());
                restore.env("RESTIC_CACHE_DIR", &cache).args(["restore", "-q", "latest", "--target"]).arg(&out);
                restore.arg("--include").arg(&expected).run()?;
                out.join(expected.strip_prefix("/").unwrap_or(&expected))
            }
            // It restores from the store only when it is connected there, with a cache.
            "kopia sync-to" => return Ok(()),
            _ => {
                self.rclone(
                    if file.is_some() { "copyto" } else { "copy" },
                    &format!("{}/{part}", self.remote("files")),
                    &out.to_string_lossy(),
                )?;
                out.clone()
            }
        };
        files::same(&expected, &restored)?;
        files::remove(&cache)?;
        files::remove(&out)
    }

    fn local(&self, name: &str) -> PathBuf {
        self.work.join(format!("local {name}").replace(' ', "-"))
    }

    /// The address of the replica, or of something in it.
    fn address(&self, part: &str) -> String {
        let slash = if part.is_empty() { "" } else { "/" };
        format!("s3://{BUCKET}/dedupfs{slash}{part}?endpoint=http://127.0.0.1:{}", self.port)
    }

    fn url(&self, prefix: &str) -> PathBuf {
        format!("s3:http://127.0.0.1:{}/{BUCKET}/{prefix}", self.port).into()
    }

    fn remote(&self, prefix: &str) -> String {
        let settings = "provider=Other,access_key_id=key,secret_access_key=secret,force_path_style=true";
        format!(":s3,{settings},endpoint='http://127.0.0.1:{}':{BUCKET}/{prefix}", self.port)
    }

    fn restic(&self, repository: &Path) -> Command {
        let mut restic = command!("restic", "-r", repository, "-o", "s3.connections=8");
        restic.env("RESTIC_PASSWORD", "none").env("RESTIC_FROM_PASSWORD", "none");
        restic.env("RESTIC_CACHE_DIR", self.work.join("cache"));
        credentials(&mut restic);
        restic
    }

    fn kopia(&self) -> Command {
        let cache = self.work.join("cache");
        let mut kopia = command!("kopia");
        kopia.env("KOPIA_CONFIG_PATH", cache.join("kopia.config")).env("KOPIA_LOG_DIR", cache.join("logs"));
        kopia.env("KOPIA_CACHE_DIRECTORY", cache.join("kopia")).env("KOPIA_PASSWORD", "none");
        kopia.env("KOPIA_CHECK_FOR_UPDATES", "false");
        kopia
    }

    fn rclone(&self, verb: &str, from: &str, to: &str) -> Outcome {
        let mut rclone = command!("rclone", verb, from, to, "--transfers", "8", "-q");
        // It cannot start with one where it is not needed.
        rclone.env_remove("AWS_CA_BUNDLE").run()
    }
}

fn credentials(command: &mut Command) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret").env("DEDUPFS_PASSPHRASE", "none")
}
