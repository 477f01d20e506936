//! Versions of one tree: time and size of each operation, beside those of other tools.

mod aged;
mod own;
pub mod rival;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use aged::AgedVersions;
use rival::Rival;

use crate::command::Run;
use crate::figures::{Figures, timed};
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool};
use crate::{Outcome, command, data, files, machine, rivals_tools, say, table};

pub use aged::run as run_aged;

/// Measures versions of a tree of small files, a hundred in a directory.
///
/// Each state of the tree is backed up by all tools in turn: new, unchanged, changed. Then: lists, differences, restores, walks, removals;
/// and of dedupfs also what a live tree takes, snapshots and what a removal would free. Its bytes are those of names, nodes and index, which
/// lie on the meta root; of the others all bytes of the repository that a backup adds, without those of the files' content. Waits a minute
/// before the second backup: put reads files again that changed within that time.
#[derive(clap::Args)]
pub struct Versions {
    /// Files of 4 KiB; they lie in memory
    #[arg(long, default_value = "100000", value_parser = count)]
    files: u64,
    /// Medians are of so many runs of backups of an unchanged tree, of snapshots and of walks
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    /// Some of restic,borg, beside dedupfs [default: those that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = RIVALS)]
    tools: Vec<String>,
    #[command(flatten)]
    pool: PoolOptions,
}

const RIVALS: [&str; 2] = ["restic", "borg"];
/// Files in a directory of the tree.
const PER_DIRECTORY: u64 = 100;
/// Longer than the margin within which a changed file is read again.
const RACY: Duration = Duration::from_secs(62);

struct Measurement<'a> {
    args: &'a Versions,
    ram: PathBuf,
    tree: Tree,
    pool: Pool,
    rivals: Vec<Rival<'a>>,
    version: u64,
    figures: Figures,
    titles: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Versions) -> Outcome {
    let mut names = Vec::new();
    for name in RIVALS {
        let is_asked = args.tools.is_empty() || args.tools.iter().any(|tool| tool == name);
        match rivals_tools::is_installed(name) {
            true if is_asked => names.push(name),
            false if is_asked => eprintln!("NOT RUN: {name}, which is not installed"),
            _ => {}
        }
    }
    let bytes = args.files * data::SMALL_BYTES;
    let disk = (names.len() as u64 + 2) * (bytes + args.files * 2048) + (1 << 30);
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, ram, pool } =
        Bench::new(&programs, &["find", "rsync", "sync"], &args.pool, 4 * bytes + (1 << 30), disk)?;
    let tree = Tree::new(ram.join("source"), args.files)?;
    println!("{}", machine::describe(&work)?);
    println!("- {} files of 4 KiB, {PER_DIRECTORY} in a directory, in memory", args.files);
    let rivals = names.iter().map(|name| Rival::new(name, &work, &work, &ram)).collect::<Outcome<Vec<_>>>()?;
    let (figures, titles) = (Figures::default(), Vec::new());
    let mut this = Measurement { args, ram, tree, pool, rivals, version: 0, figures, titles };
    this.all()?;
    println!("{}\n", machine::describe_end(args.runs)?);
    this.print()
}

/// The tree that is backed up.
struct Tree {
    path: PathBuf,
    files: u64,
}

impl Tree {
    fn new(path: PathBuf, files: u64) -> Outcome<Self> {
        say!("making {files} files");
        data::small_files(&path, files)?;
        Ok(Self { path, files })
    }

    /// Changes some files, each `step` behind the one before; `seed` makes their content. Returns its bytes.
    fn change(&self, number: u64, step: u64, seed: u64) -> Outcome<u64> {
        let mut random = data::Random::new(&format!("change {step} {seed}"));
        let mut bytes = 0;
        for place in 0..number {
            let content = random.next().to_string();
            let path = self.path.join(self.file((place * step + seed % step).min(self.files - 1)));
            std::fs::write(&path, &content).or_else(files::at("write", &path))?;
            bytes += content.len() as u64;
        }
        Ok(bytes)
    }

    /// Path of a file, from the top.
    fn file(&self, number: u64) -> PathBuf {
        PathBuf::from(format!("d{:05}/f{number:07}", number / PER_DIRECTORY))
    }
}

impl Measurement<'_> {
    fn all(&mut self) -> Outcome {
        let source = self.tree.path.clone();
        self.repeat("find with all attributes, on the source", |_| timed(|| find(&source)))?;
        self.live_first()?;
        self.pool.format()?;
        self.pool.mount()?;
        self.backup("first backup", self.args.files * data::SMALL_BYTES)?;
        std::thread::sleep(RACY);
        // What dedupfs notes of it says which files can be taken over.
        self.put(&[])?;
        for _ in 0..self.args.runs {
            self.backup("backup, nothing changed", 0)?;
        }
        self.repeat("backup, nothing changed, but everything read", |this| timed(|| this.put(&["--reread"])))?;
        let percent = (self.args.files / 100).max(1);
        let bytes = self.tree.change(percent, self.args.files / percent, 0)?;
        self.backup("backup, 1% of the files changed, evenly", bytes)?;
        let bytes = self.tree.change(percent, 1, 0)?;
        self.backup("backup, 1% of the files changed, in 1% of the directories", bytes)?;
        self.snapshots()?;
        self.restores()?;
        self.walks()?;
        self.lists()?;
        self.removals()
    }

    /// Backs the tree up by all tools. `content_bytes` are those of files that are new to them.
    fn backup(&mut self, title: &str, content_bytes: u64) -> Outcome {
        let before = self.meta_bytes()?;
        let seconds = timed(|| self.put(&[]))?;
        let added = self.meta_bytes()?.saturating_sub(before);
        self.note(title, "dedupfs", seconds, Some(added));
        let name = format!("v{}", self.version);
        // By its own name for each backup, which rivals resolve to the same path.
        symlink(&self.tree.path, self.ram.join(&name)).or_else(files::at("make", &self.ram))?;
        for at in 0..self.rivals.len() {
            let rival = &mut self.rivals[at];
            let (seconds, added) = rival.backup(&name)?;
            let (name, added) = (rival.name(), added.saturating_sub(content_bytes));
            self.note(title, name, seconds, Some(added));
        }
        Ok(())
    }

    /// Restores the newest version by all tools.
    fn restores(&mut self) -> Outcome {
        let bytes = self.args.files * data::SMALL_BYTES;
        for _ in 0..self.args.runs {
            for (title, from) in
                [("get of a live tree", self.pool.at("live")), ("restore of the newest version", self.newest())]
            {
                let out = self.out(bytes)?;
                let seconds = timed(|| own::get(&from, &out))?;
                self.note(title, "dedupfs", seconds, None);
            }
            for at in 0..self.rivals.len() {
                self.out(bytes)?;
                let rival = &self.rivals[at];
                let seconds = timed(|| rival.restore(&format!("v{}", self.version)))?;
                self.note("restore of the newest version", rival.name(), seconds, None);
            }
        }
        files::remove(&self.ram.join("out"))
    }

    /// Makes an empty directory for what is restored.
    fn out(&self, bytes: u64) -> Outcome<PathBuf> {
        files::empty_out(&self.ram, bytes)?;
        Ok(self.ram.join("out"))
    }

    /// Measures mounting and walking versions.
    fn walks(&mut self) -> Outcome {
        self.own_walks()?;
        for is_newest in [true, false] {
            let title = format!("mount, and find in the {} version", if is_newest { "newest" } else { "oldest" });
            for _ in 0..self.args.runs {
                let path = if is_newest { self.newest() } else { self.pool.at("v1") };
                self.pool.unmount()?;
                files::evict(&self.pool.path);
                let seconds = timed(|| {
                    self.pool.mount()?;
                    find(&path)
                })?;
                self.note(&title, "dedupfs", seconds, None);
                for at in 0..self.rivals.len() {
                    let (name, seconds) = (self.rivals[at].name(), self.rivals[at].walk(is_newest)?);
                    self.note(&title, name, seconds, None);
                }
            }
        }
        Ok(())
    }

    /// Measures lists and differences.
    fn lists(&mut self) -> Outcome {
        self.own_lists()?;
        for at in 0..self.rivals.len() {
            let rival = &mut self.rivals[at];
            let (name, list, diff) = (rival.name(), timed(|| rival.list())?, timed(|| rival.diff())?);
            self.note("list", name, list, None);
            self.note("diff of the newest two", name, diff, None);
        }
        Ok(())
    }

    /// Measures removals.
    fn removals(&mut self) -> Outcome {
        self.own_removals()?;
        for at in 0..self.rivals.len() {
            let rival = &self.rivals[at];
            let (name, forget, reclaim) = (rival.name(), timed(|| rival.forget())?, timed(|| rival.reclaim())?);
            self.note("removal of the oldest version", name, forget, None);
            self.note("reclaiming behind it", name, reclaim, None);
        }
        Ok(())
    }

    fn repeat(&mut self, title: &str, mut work: impl FnMut(&mut Self) -> Outcome<f64>) -> Outcome {
        (0..self.args.runs).try_for_each(|_| {
            let seconds = work(self)?;
            self.note(title, "dedupfs", seconds, None);
            Ok(())
        })
    }

    fn note(&mut self, title: &str, tool: &str, seconds: f64, bytes: Option<u64>) {
        say!("{title}: {tool}: {seconds:.4} s{}", bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes")));
        if !self.titles.iter().any(|known| known == title) {
            self.titles.push(title.to_owned());
        }
        self.figures.note(title, tool, seconds);
        if let Some(bytes) = bytes {
            self.figures.note(&format!("{title} bytes"), tool, bytes as f64);
        }
    }

    fn print(&self) -> Outcome {
        let tools: Vec<&str> = std::iter::once("dedupfs").chain(self.rivals.iter().map(Rival::name)).collect();
        let mut heads = vec![String::new()];
        for tool in &tools {
            heads.extend([format!("{}, seconds", rivals_tools::version(tool)?), "bytes".to_owned()]);
        }
        println!("{}", table::head(&heads));
        for title in &self.titles {
            let cells = tools.iter().flat_map(|tool| {
                let bytes = self.figures.median(&format!("{title} bytes"), tool);
                [table::cell(self.figures.median(title, tool), 4), table::cell(bytes, 0)]
            });
            println!("{}", table::row(&std::iter::once(title.clone()).chain(cells).collect::<Vec<_>>()));
        }
        Ok(())
    }
}

/// Lists a tree with all attributes of each entry.
fn find(path: &Path) -> Outcome {
    command!("find", path, "-printf", "%p %y %m %U %G %s %T@ %C@ %i %n %l\n").quiet().run()
}
