//! Detection of duplicates in stages, beside that while an image is read, with an index on a disk that seeks.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::data::{Random, random_file};
use crate::figures::memory_bytes;
use crate::options::PoolOptions;
use crate::pool::{Bench, Pool, dedupfs};
use crate::seeking::disk::Disk;
use crate::{Outcome, command, fail, files, machine, print_row, say, table};

/// Bytes of known content that stay together.
const BLOCK_BYTES: u64 = 64 << 10;

/// Puts an image of known content in no order that the pool has seen, with and without --staged (root).
///
/// The meta root, with the index, lies on an emulated disk that seeks, the content on the filesystem of --dir; caches are cold. The pool has little memory,
/// so that its tankers are sealed. A tenth of the image is new. Both versions are compared with the image. Also tells the largest resident memory
/// of the command that detects. Needs nbdkit with the headers for plugins, nbdfuse and a C compiler.
#[derive(clap::Args)]
pub struct Staged {
    /// Content of the pool
    #[arg(long, default_value = "6G", value_parser = parse_size)]
    unique: u64,
    /// Size of the image
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: u64,
    /// Length of the disk
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    disk: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Runs the command.
pub fn run(args: &Staged) -> Outcome {
    crate::seeking::disk::need_prerequisites()?;
    let (memory, room) = (args.disk / 2 + 2 * args.size, 2 * args.unique + 3 * args.size);
    let Bench { work, ram, .. } = Bench::new(&["dedupfs", "dedupfs-stats"], &["cmp"], &args.pool, memory, room)?;
    println!("{}", machine::describe(&work)?);
    println!("- a pool of {}, an image of {}\n", table::human(args.unique), table::human(args.size));
    let disk = Disk::new(&ram, args.disk)?;
    let mut mkfs = vec!["--data".to_owned(), work.join("data").display().to_string()];
    mkfs.extend(args.pool.mkfs.0.iter().cloned());
    let mut mount = vec!["--memory".to_owned(), "128M".to_owned()];
    mount.extend(args.pool.mount.0.iter().cloned());
    let mut pool = Pool::new(disk.root.join("pool"), work.join("mnt/disk"), &mkfs, &mount)?;
    pool.format()?;
    pool.mount()?;
    let source = work.join("source");
    say!("filling the pool");
    random_file("staged", args.unique, &source)?;
    dedupfs("put").args(["--live"]).arg(&source).arg(pool.at("known")).quiet().run()?;
    let image = ram.join("image.raw");
    println!(
        "{}",
        table::head(&[
            "put",
            "seconds",
            "of the arm",
            "seeks",
            "MB read of the index",
            "read by the daemon",
            "MB of memory"
        ])
    );
    for (name, option) in [("while it is read", "--image"), ("in stages", "--staged")] {
        // The same known blocks, and new ones.
        make_image(args, &source, option, &image)?;
        pool.remount_cold(true)?;
        command!("sync").run()?;
        let to = pool.at(option.trim_start_matches('-'));
        files::make_dir(&to)?;
        let (mut peak, mut report) = (0.0, String::new());
        let cost = disk.measure(|| {
            let mut put = dedupfs("put");
            put.args([option, "--json"]).arg(&image).arg(to.join("1")).stdout(std::process::Stdio::piped());
            let mut child = put.spawn().or_else(|error| fail(format!("cannot run dedupfs: {error}")))?;
            while child.try_wait().or_else(|error| fail(error.to_string()))?.is_none() {
                peak = memory_bytes(child.id(), "VmHWM").unwrap_or(peak).max(peak);
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().or_else(|error| fail(error.to_string()))?;
            report = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() { Ok(()) } else { fail(format!("dedupfs put: {}", output.status)) }
        })?;
        let report: serde_json::Value = serde_json::from_str(&report).or_else(|error| fail(error.to_string()))?;
        let read = report["image"]["read_bytes"].as_u64().unwrap_or(0);
        command!("cmp", to.join("1/image.raw"), &image).run()?;
        print_row!(
            name,
            table::number(cost.seconds, 1),
            table::number(cost.arm_seconds, 1),
            table::number(cost.seeks, 0),
            table::number(cost.read_bytes / 1e6, 0),
            table::human(read),
            table::number(peak / 1e6, 1)
        );
    }
    pool.unmount()?;
    pool.fsck()?;
    disk.end()?;
    println!("\n{}", machine::describe_end(1)?);
    Ok(())
}

/// Writes blocks of the source, taken anywhere, a tenth of them new.
fn make_image(args: &Staged, source: &Path, seed: &str, image: &Path) -> Outcome {
    let source_file = File::open(source).or_else(files::at("open", source))?;
    let file = File::create(image).or_else(files::at("make", image))?;
    let mut writer = BufWriter::new(file);
    let (mut random, mut new) = (Random::new("blocks"), Random::new(seed));
    let mut block = vec![0; BLOCK_BYTES as usize];
    for _ in 0..args.size / BLOCK_BYTES {
        if random.below(10) == 0 {
            block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&new.next().to_le_bytes()));
        } else {
            let at = random.below(args.unique - BLOCK_BYTES);
            source_file.read_exact_at(&mut block, at).or_else(files::at("read", source))?;
        }
        writer.write_all(&block).or_else(files::at("write", image))?;
    }
    writer.flush().or_else(files::at("write", image))
}
