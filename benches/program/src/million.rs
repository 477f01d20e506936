//! A directory of very many files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::command::{Run, shown, wait};
use crate::figures::{memory_bytes, timed};
use crate::options::PoolOptions;
use crate::pool::{Bench, Pool};
use crate::{Outcome, cleanup, command, fail, files, machine, print_row, say, table};

/// Measures a directory of very many files.
///
/// It is measured through the mount, beside the same on the backing filesystem: creating the files, listing, stat of each, reading each,
/// removing all; and the memory that the daemon takes. 6 KiB for each file are needed in --dir. Without --mount the pool is mounted with
/// "--memory 512M".
#[derive(clap::Args)]
pub struct Million {
    /// Files in one directory
    #[arg(long, default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..100_000_000))]
    files: u64,
    /// Bytes of content of each, all different; 0: empty files
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(0..65536))]
    bytes: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// One step: its name, seconds, and the daemon's memory after it in MiB.
type Step = (&'static str, f64, Option<f64>);

/// Runs the command.
pub fn run(args: &Million) -> Outcome {
    let mut options = args.pool.clone();
    if options.mount.0.is_empty() {
        options.mount.0 = vec!["--memory".to_owned(), "512M".to_owned()];
    }
    let (commands, disk) = (["find", "ls", "rm", "sync"], args.files * (6144 + 2 * args.bytes));
    let Bench { work, mut pool, .. } = Bench::new(&["dedupfs", "dedupfs-stats"], &commands, &options, 0, disk)?;
    files::make_dir(&work.join("native"))?;
    pool.format()?;
    println!("{}", machine::describe(&work)?);
    println!("- {} files of {} bytes in one directory, {}\n", args.files, args.bytes, options.mount);
    let native = steps(args, &work.join("native/files"), None)?;
    pool.mount()?;
    let own = steps(args, &pool.at("files"), Some(&mut pool))?;
    let peak = pool.memory_bytes("VmHWM") / 1_048_576.0;
    pool.unmount()?;
    let fsck = timed(|| pool.fsck())?;
    let columns = ["", "dedupfs", "files a second", "memory", "backing filesystem", "files a second"];
    println!("{}", table::head(&columns));
    let rate = |seconds: f64| table::number(args.files as f64 / seconds.max(1e-6), 0);
    for (step, seconds, memory) in own {
        let beside = native.iter().find(|(name, ..)| *name == step);
        let [time, rate_beside] = beside
            .map_or(["-".to_owned(), "-".to_owned()], |(_, seconds, _)| [format!("{seconds:.4} s"), rate(*seconds)]);
        let memory = format!("{:.0} MiB", memory.unwrap_or(0.0));
        print_row!(step, format!("{seconds:.4} s"), rate(seconds), memory, time, rate_beside);
    }
    println!("\nPeak memory of the daemon since it was mounted anew: {peak:.0} MiB. fsck afterwards: {fsck:.4} s.");
    Ok(())
}

/// Measures all steps in a directory: of the pool, or of the backing filesystem.
fn steps(args: &Million, directory: &Path, mut pool: Option<&mut Pool>) -> Outcome<Vec<Step>> {
    let mut done = Vec::new();
    let mut step = |daemon: Option<u32>, name: &'static str, work: &dyn Fn() -> Outcome| -> Outcome {
        let seconds = timed(work).or_else(|failure| fail(format!("{name}: {failure}")))?;
        let memory = daemon.and_then(|pid| memory_bytes(pid, "VmRSS")).map(|bytes| bytes / 1_048_576.0);
        let target = if daemon.is_some() { "dedupfs" } else { "native" };
        say!("{target}: {name}: {seconds:.4} s{}", memory.map_or_else(String::new, |mib| format!(", {mib:.0} MiB")));
        done.push((name, seconds, memory));
        Ok(())
    };
    files::make_dir(directory)?;
    let daemon = |pool: &Option<&mut Pool>| pool.as_ref().and_then(|pool| pool.daemon);
    step(daemon(&pool), "create and sync", &|| {
        create(args, directory)?;
        pool.as_ref().map_or_else(|| command!("sync", "-f", directory).run(), |pool| pool.sync())
    })?;
    step(daemon(&pool), "ls -f", &|| list(args, directory))?;
    step(daemon(&pool), "stat of each", &|| stat(args, directory))?;
    if let Some(pool) = &mut pool {
        pool.unmount()?;
        pool.mount()?;
        step(pool.daemon, "ls -f, mounted anew", &|| list(args, directory))?;
        step(pool.daemon, "stat of each, mounted anew", &|| stat(args, directory))?;
    }
    if args.bytes != 0 {
        step(daemon(&pool), "read each", &|| read(args, directory))?;
        step(daemon(&pool), "read each again", &|| read(args, directory))?;
    }
    step(daemon(&pool), "rm -r", &|| command!("rm", "-r", directory).run())?;
    Ok(done)
}

/// Does something with every file.
fn for_each(args: &Million, directory: &Path, work: impl Fn(u64, &Path) -> io::Result<()>) -> Outcome {
    (1..=args.files).try_for_each(|number| {
        let path = directory.join(format!("file-{number}"));
        cleanup::check().and_then(|()| work(number, &path)).or_else(files::at("open", &path))
    })
}

/// Creates all files with no more system calls than it takes: open, write, close.
fn create(args: &Million, directory: &Path) -> Outcome {
    for_each(args, directory, |number, path| {
        let content = format!("{number} ").repeat(args.bytes as usize / 2 + 1);
        File::create(path)?.write_all(&content.as_bytes()[..args.bytes as usize])
    })
}

fn read(args: &Million, directory: &Path) -> Outcome {
    for_each(args, directory, |_, path| {
        let got = File::open(path)?.read(&mut [0; 65536])? as u64;
        if got == args.bytes { Ok(()) } else { Err(io::Error::other(format!("it has {got} bytes"))) }
    })
}

/// Lists every name once, and nothing else.
fn list(args: &Million, directory: &Path) -> Outcome {
    let names = fold_lines(command!("ls", "-f", directory), |sum, line| sum + u64::from(line.starts_with("file-")))?;
    if names == args.files { Ok(()) } else { fail(format!("{names} names instead of {}", args.files)) }
}

fn stat(args: &Million, directory: &Path) -> Outcome {
    let find = command!("find", directory, "-type", "f", "-printf", "%s\n");
    let (bytes, expected) = (fold_lines(find, |sum, line| sum + line.parse().unwrap_or(0))?, args.files * args.bytes);
    if bytes == expected { Ok(()) } else { fail(format!("{bytes} bytes instead of {expected}")) }
}

/// Runs a command and folds the lines that it prints into a number.
fn fold_lines(mut command: std::process::Command, fold: impl Fn(u64, &str) -> u64) -> Outcome<u64> {
    let mut child = command.stdout(Stdio::piped()).start()?;
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let sum = lines.map_while(Result::ok).fold(0, |sum, line| fold(sum, &line));
    wait(child, &shown(&command))?;
    Ok(sum)
}
