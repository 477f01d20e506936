//! How fast a pool is checked.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::figures::timed;
use crate::options::PoolOptions;
use crate::pool::{Bench, dedupfs};
use crate::{Outcome, command, data, files, machine, print_row, table};

/// Measures how fast a pool is checked.
///
/// By dedupfs scrub, fsck, fsck --read-data and fsck --rebuild-index (with and without --read-data), each with an empty page
/// cache, beside reading the pool's slot files with cat and past the cache.
#[derive(clap::Args)]
pub struct Check {
    /// Size of the content: half random, half real; about twice SIZE is needed on disk and once in memory
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Runs the command.
pub fn run(args: &Check) -> Outcome {
    let (memory, disk) = (args.size + (512 << 20), 2 * args.size + (256 << 20));
    let commands = ["cp", "cat", "dd"];
    let Bench { work, ram, mut pool } = Bench::new(&["dedupfs", "dedupfs-stats"], &commands, &args.pool, memory, disk)?;
    let source = ram.join("source");
    files::make_dir(&source)?;
    data::random_file("check", args.size / 2, &source.join("random"))?;
    data::real_data(&source.join("real"), args.size / 2)?;
    pool.format()?;
    pool.mount()?;
    command!("cp", "-r", &source, &pool.mnt).run()?;
    pool.unmount()?;
    files::remove(&source)?;
    rustix::fs::sync();

    let content = pool.stats()?.number("unique_chunk_bytes")?;
    let mut slots = files::entries(&pool.path.join("containers"))?;
    slots.extend(files::entries(&pool.path.join("recipes"))?);
    slots.retain(|path| path.extension().is_some_and(|end| end == "slots"));
    let disk = slots.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum();
    println!("{}", machine::describe(&work)?);
    println!("- {} of different content in {} of slot files", table::exact(content), table::exact(disk));
    println!("\n{}", table::head(&["", "seconds", "MB/s of content", "MB/s of disk"]));
    let path = pool.path.clone();
    let measure = |title: &str, check: &dyn Fn() -> Outcome| {
        files::evict(&path);
        let seconds = timed(check)?;
        print_row!(title, table::number(seconds, 4), table::rate(content, seconds), table::rate(disk, seconds));
        Ok(())
    };
    let tool = |command: &str, target: &Path| {
        let mut words = command.split(' ');
        dedupfs(words.next().unwrap_or_default()).args(words).arg(target).quiet().run()
    };
    measure("cat of the slot files", &|| command!("cat").args(&slots).quiet().run())?;
    measure("dd of the slot files, direct", &|| slots.iter().try_for_each(|slot| read_direct(slot)))?;
    measure("scrub, not mounted", &|| tool("scrub --restart", &path))?;
    pool.mount()?;
    measure("scrub, mounted", &|| tool("scrub --restart", &pool.mnt))?;
    pool.unmount()?;
    for check in ["fsck", "fsck --read-data", "fsck --rebuild-index", "fsck --rebuild-index --read-data"] {
        measure(check, &|| tool(check, &path))?;
    }
    Ok(())
}

/// Reads a file past the page cache.
fn read_direct(path: &Path) -> Outcome {
    command!("dd", format!("if={}", path.display()), "of=/dev/null", "bs=4M", "iflag=direct", "status=none").run()
}
