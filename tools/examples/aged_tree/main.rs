//! Writes one generation of a synthetic series of backups of a tree of files: see `tree.rs`.
//!
//! ```text
//! cargo run --release -p dedupfs-tools --example aged_tree -- --generation 2 --size 256M /dev/shm/second
//! ```

#[path = "../aged_stream/tape.rs"]
mod tape;
mod tree;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use dedupfs_tools::parse_size;

use tree::{Pattern, Tree};

/// Writes one generation of a synthetic series of backups of a tree of files into a directory. From one generation to the next, files are
/// created, deleted and modified by the given shares. The same options give the same bytes.
#[derive(Parser)]
struct Arguments {
    /// Number of the series
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the generation in the series, from 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    generation: u32,
    /// Bytes of the first generation, such as 512M; the others have about as many
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Files of the first generation
    #[arg(long, default_value_t = Pattern::default().files, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// New files of a generation, as a share of the files of the first
    #[arg(long, default_value_t = Pattern::default().created, value_parser = share)]
    created: f64,
    /// Share of files that a generation deletes
    #[arg(long, default_value_t = Pattern::default().deleted, value_parser = share)]
    deleted: f64,
    /// Share of files that a generation modifies
    #[arg(long, default_value_t = Pattern::default().modified, value_parser = share)]
    modified: f64,
    /// Share of a modified file's bytes that change
    #[arg(long, default_value_t = Pattern::default().changed, value_parser = share)]
    changed: f64,
    /// Share of files that take four fifths of the modifications; 0: all files alike
    #[arg(long, default_value_t = Pattern::default().hot, value_parser = share)]
    hot: f64,
    /// Print the numbers of bytes and files on standard error
    #[arg(long)]
    verbose: bool,
    /// Absent or empty directory
    directory: PathBuf,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

fn write(seed: u64, tree: &Tree, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    if fs::read_dir(directory)?.next().is_some() {
        return Err(io::ErrorKind::DirectoryNotEmpty.into());
    }
    for (number, content) in tree {
        let path = directory.join(tree::path(*number));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        tree::write(seed, content, &mut File::create_new(path)?)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { seed, generation, size: size_bytes, files, created, deleted, modified, changed, hot, .. } =
        arguments;
    let pattern = Pattern { files, size_bytes, created, deleted, modified, changed, hot, ..Pattern::default() };
    let tree = tree::generation(seed, generation, &pattern);
    if arguments.verbose {
        let bytes: u64 = tree.values().map(tape::Content::len_bytes).sum();
        eprintln!("aged_tree: {bytes} bytes in {} files", tree.len());
    }
    match write(seed, &tree, &arguments.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aged_tree: cannot write {}: {error}", arguments.directory.display());
            ExitCode::FAILURE
        }
    }
}
