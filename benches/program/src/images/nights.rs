//! Nights of one disk: an ext4 filesystem whose packages are upgraded, put each night in several ways.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use dedupfs_tools::parse_size;

use super::{CLUSTER_BYTES, stored_bytes, write_changes};
use crate::command::Run;
use crate::figures::Figures;
use crate::options::{PoolOptions, count};
use crate::pool::{Pool, dedupfs, find_programs};
use crate::rivals_tools::{Tool, is_installed, is_own};
use crate::{Outcome, cleanup, command, fail, files, machine, say, table, usage};

/// Puts the image of an ext4 filesystem night after night, while its packages are upgraded.
///
/// The filesystem begins with the directories of --system, and the first version of each series. Each day the next version of each series
/// replaces the one before, file by file. Each night every way puts the image: by the map of the clusters of 64 KiB that differ, as a whole, by
/// cloning the image before and writing the changes into the clone, and by the other tools through a pipe. Each way has a pool or repository
/// of its own. At the end the last image of each way is compared with the source, and of the first way also the first. Needs root.
#[derive(clap::Args)]
pub struct ImageNights {
    /// Directories with one directory for each version of a package
    #[arg(required = true)]
    series: Vec<PathBuf>,
    /// Directories with which the filesystem begins
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "/usr/bin,/usr/share,/usr/lib/x86_64-linux-gnu"
    )]
    system: Vec<PathBuf>,
    /// Size of the image, which lies in memory
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    size: u64,
    /// Nights
    #[arg(long, default_value = "12", value_parser = count)]
    nights: u64,
    /// Other tools
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "restic,borg")]
    tools: Vec<String>,
    #[command(flatten)]
    pool: PoolOptions,
}

const OWN: [&str; 3] = ["map", "whole", "clone"];

/// The disk and its filesystem.
struct Disk {
    image: PathBuf,
    mnt: PathBuf,
    /// Hashes of its clusters, as the night before saw them.
    clusters: Vec<blake3::Hash>,
}

impl Disk {
    fn new(image: PathBuf, mnt: PathBuf, size_bytes: u64) -> Outcome<Self> {
        File::create(&image).and_then(|file| file.set_len(size_bytes)).or_else(files::at("make", &image))?;
        command!("mkfs.ext4", "-q", &image).run()?;
        files::make_dir(&mnt)?;
        Ok(Self { image, mnt, clusters: Vec::new() })
    }

    /// Changes the filesystem.
    fn day(&self, work: impl FnOnce(&Path) -> Outcome) -> Outcome {
        cleanup::will_mount_plain(&self.mnt);
        command!("mount", "-o", "loop", &self.image, &self.mnt).run()?;
        work(&self.mnt)?;
        command!("umount", &self.mnt).run()?;
        cleanup::forget_mount(&self.mnt);
        Ok(())
    }

    /// Returns the ranges that changed since the call before.
    fn changes(&mut self) -> Outcome<Vec<(u64, u64)>> {
        changed(&self.image, &mut self.clusters).or_else(files::at("read", &self.image))
    }
}

/// Returns the ranges of an image whose clusters have other hashes, and notes the new ones.
fn changed(image: &Path, clusters: &mut Vec<blake3::Hash>) -> std::io::Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let (file, mut cluster) = (File::open(image)?, vec![0; CLUSTER_BYTES as usize]);
    let count = file.metadata()?.len() / CLUSTER_BYTES;
    clusters.resize(count as usize, blake3::hash(&[]));
    for (hash, at) in clusters.iter_mut().zip((0..).step_by(CLUSTER_BYTES as usize)) {
        file.read_exact_at(&mut cluster, at)?;
        let now = blake3::hash(&cluster);
        if std::mem::replace(hash, now) == now {
            continue;
        }
        match ranges.last_mut() {
            Some((from, len)) if *from + *len == at => *len += CLUSTER_BYTES,
            _ => ranges.push((at, CLUSTER_BYTES)),
        }
    }
    Ok(ranges)
}

/// Runs the command.
pub fn run(args: &ImageNights) -> Outcome {
    find_programs(&["dedupfs", "dedupfs-stats"])?;
    if !rustix::process::geteuid().is_root() {
        return fail("loop devices need root");
    }
    machine::need_commands(&["cp", "cmp", "mkfs.ext4", "mount", "umount"])?;
    if let Some(name) = args.tools.iter().find(|name| is_own(name) || !is_installed(name)) {
        return usage(format!("there is no {name}"));
    }
    machine::need_memory(args.size + (2 << 30))?;
    let (work, ram) = (cleanup::scratch(&args.pool.dir)?, cleanup::scratch("/dev/shm".as_ref())?);
    machine::need_room(&work, 3 * args.size + (4 << 30))?;
    println!("{}\n", machine::describe(&work)?);
    let days = days(args)?;
    let mut disk = Disk::new(ram.join("disk.raw"), work.join("guest"), args.size)?;
    let (map, first) = (ram.join("map"), work.join("first.raw"));
    let mut pools = Vec::new();
    for way in OWN {
        let mut pool =
            Pool::new(work.join(way), work.join(format!("{way}.mnt")), &args.pool.mkfs.0, &args.pool.mount.0)?;
        pool.format()?;
        pool.mount()?;
        files::make_dir(&pool.at("vm"))?;
        pools.push((way, pool));
    }
    let tool = |name: &'static str| Tool {
        name,
        repository: work.join(name),
        cache: work.join(format!("{name}.cache")),
        mnt: work.join(format!("{name}.mnt")),
        ram: ram.clone(),
        versions: Default::default(),
    };
    let known = crate::rivals_tools::KNOWN.into_iter().filter(|name| args.tools.iter().any(|wanted| wanted == name));
    let tools: Vec<_> = known.map(tool).collect();
    for tool in &tools {
        files::make_dir(&tool.cache)?;
        tool.commands("init", "")?.into_iter().try_for_each(|mut command| command.quiet().run())?;
    }
    let mut figures = Figures::default();
    for (night, packages) in days.iter().enumerate() {
        figures.run = night as u64;
        disk.day(|mnt| upgrade(packages, (night == 0).then_some(&args.system[..]), mnt))?;
        let ranges = disk.changes()?;
        let lines: String = ranges.iter().map(|(from, len)| format!("{from} {len}\n")).collect();
        fs::write(&map, lines).or_else(files::at("write", &map))?;
        let dirty: u64 = ranges.iter().map(|(_, len)| len).sum();
        say!("night {night}: {} changed", table::human(dirty));
        if night == 0 {
            command!("cp", "--sparse=always", &disk.image, &first).run()?;
        } else {
            figures.note("dirty", "", dirty as f64);
        }
        for (way, pool) in &pools {
            put(way, pool, (&disk.image, &map), (night, &ranges), &mut figures)?;
        }
        for tool in &tools {
            pipe(tool, &disk.image, night, &mut figures)?;
        }
    }
    for (way, pool) in &mut pools {
        command!("cmp", &disk.image, image_of(pool, way, days.len() - 1)).run()?;
        if *way == "map" {
            command!("cmp", &first, image_of(pool, way, 0)).run()?;
        }
        pool.unmount()?;
        pool.fsck()?;
    }
    for tool in &tools {
        let back = ram.join("back");
        let commands = tool.commands("pipe-out", &(days.len() - 1).to_string())?;
        commands.into_iter().try_for_each(|mut command| command.writes(&back)?.run())?;
        command!("cmp", &disk.image, &back).run()?;
        files::remove(&back)?;
    }
    report(args, &tools, &figures);
    Ok(())
}

/// Returns the versions of each day, of all series.
fn days(args: &ImageNights) -> Outcome<Vec<Vec<PathBuf>>> {
    let mut days = vec![Vec::new(); args.nights as usize + 1];
    for series in &args.series {
        let mut versions = files::directories(series)?;
        versions.sort();
        if versions.len() < days.len() {
            return usage(format!(
                "{} has {} versions, and {} are needed",
                series.display(),
                versions.len(),
                days.len()
            ));
        }
        days.iter_mut().zip(versions).for_each(|(day, version)| day.push(series.join(version)));
    }
    Ok(days)
}

/// Replaces the packages by other versions.
fn upgrade(packages: &[PathBuf], system: Option<&[PathBuf]>, mnt: &Path) -> Outcome {
    for from in system.unwrap_or_default() {
        let to = mnt.join(from.strip_prefix("/").unwrap_or(from));
        fs::create_dir_all(&to).or_else(files::at("make", &to))?;
        command!("cp", "-a").arg(from.join(".")).arg(&to).run()?;
    }
    for (number, package) in packages.iter().enumerate() {
        let to = mnt.join("packages").join(number.to_string());
        if system.is_none() {
            files::remove(&to)?;
        }
        fs::create_dir_all(&to).or_else(files::at("make", &to))?;
        command!("cp", "-a").arg(package.join(".")).arg(&to).run()?;
    }
    Ok(())
}

fn image_of(pool: &Pool, way: &str, night: usize) -> PathBuf {
    let version = pool.at(&format!("vm/{night:02}"));
    if way == "clone" { version } else { version.join("disk.raw") }
}

fn put(
    way: &str,
    pool: &Pool,
    (image, map): (&Path, &Path),
    (night, ranges): (usize, &[(u64, u64)]),
    figures: &mut Figures,
) -> Outcome {
    let to = pool.at(&format!("vm/{night:02}"));
    let before = stored_bytes(pool)?;
    let mut read_bytes = fs::metadata(image).or_else(files::at("read", image))?.len();
    let name = if night == 0 { "first" } else { "put" };
    figures.record(name, way, 1, pool.daemon, || {
        if way == "clone" {
            if night == 0 {
                dedupfs("put").arg("--live").arg(image).arg(&to).quiet().run()?;
            } else {
                command!("cp", image_of(pool, way, night - 1), &to).run()?;
                write_changes(image, &to, ranges)?;
                read_bytes = ranges.iter().map(|(_, len)| len).sum();
            }
        } else {
            let mut put = dedupfs("put");
            put.args(["--json", "--image"]);
            if way == "map" && night > 0 {
                put.arg("--changed").arg(map).args(["--token-from", &(night - 1).to_string()]);
            } else {
                put.arg("--reread");
            }
            let text = put.args(["--token", &night.to_string()]).arg(image).arg(&to).text()?;
            let report: serde_json::Value =
                serde_json::from_str(text.trim()).or_else(|error| fail(format!("{error} in {text}")))?;
            let number = |name| report.pointer(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
            read_bytes = number("/image/read_bytes") + number("/image/verified_bytes");
        }
        pool.sync()
    })?;
    figures.note(&format!("{name} grew"), way, stored_bytes(pool)?.saturating_sub(before) as f64);
    figures.note(&format!("{name} read"), way, read_bytes as f64);
    Ok(())
}

fn pipe(tool: &Tool<'_>, image: &Path, night: usize, figures: &mut Figures) -> Outcome {
    let before = files::disk_bytes(&tool.repository);
    let name = if night == 0 { "first" } else { "put" };
    figures.record(name, tool.name, 1, None, || {
        for mut command in tool.commands("pipe", &night.to_string())? {
            command.reads(image)?.quiet().run()?;
        }
        Ok(())
    })?;
    figures.note(&format!("{name} grew"), tool.name, files::disk_bytes(&tool.repository).saturating_sub(before) as f64);
    let bytes = fs::metadata(image).or_else(files::at("read", image))?.len();
    figures.note(&format!("{name} read"), tool.name, bytes as f64);
    Ok(())
}

fn report(args: &ImageNights, tools: &[Tool<'_>], figures: &Figures) {
    let bytes = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |bytes| table::human(bytes as u64));
    println!(
        "Image of {}, {} nights behind the first; {} changed in a night. Medians: seconds until durable, seconds of the processors, bytes read of the source (of a pipe, its length), bytes that the pool or repository grew by.\n",
        table::human(args.size),
        args.nights,
        bytes(figures.median("dirty", "")),
    );
    println!("{}", table::head(&["way", "seconds", "processors", "read", "grew", "grew by the first", "by all"]));
    for way in OWN.into_iter().chain(tools.iter().map(|tool| tool.name)) {
        let all: f64 = ["first grew", "put grew"].iter().flat_map(|name| figures.values(name, way)).sum();
        println!(
            "{}",
            table::row(&[
                way.to_owned(),
                table::cell(figures.median("put", way).map(|rate| 1.0 / rate), 2),
                table::cell(figures.median("put cpu", way), 2),
                bytes(figures.median("put read", way)),
                bytes(figures.median("put grew", way)),
                bytes(figures.median("first grew", way)),
                bytes(Some(all)),
            ])
        );
    }
}
