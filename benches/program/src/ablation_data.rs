//! The workloads of `ablation`. Each makes the pool with the data before it, puts the newest data into memory, and measures copying it
//! into the mount.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::ablation::Measurement;
use crate::command::Run;
use crate::data::{self, Random};
use crate::pool::{self, Pool};
use crate::table::human;
use crate::{Outcome, command, fail, files, say};

const PAGE_BYTES: u64 = 16384;

/// Measures a workload.
pub fn measure(all: &mut Measurement<'_>, workload: &str) -> Outcome {
    match workload {
        "stream" => stream(all),
        "pages" => pages(all),
        "tars" => tars(all),
        _ => images(all, workload),
    }
}

/// Fills a new pool by `fill`, and adds the other data last, so that the data that repeats lies in sealed tankers.
fn make_base(all: &mut Measurement<'_>, fill: &dyn Fn(&Measurement<'_>, &Path) -> Outcome) -> Outcome {
    let newest = all.bench.ram.join("newest");
    files::remove(&newest)?;
    files::make_dir(&newest)?;
    files::remove(&all.base)?;
    let usual = std::mem::replace(&mut all.bench.pool.path, all.base.clone());
    all.bench.pool.format()?;
    all.bench.pool.mount_with(&["--memory", "1G"].map(str::to_owned))?;
    fill(all, &newest)?;
    say!("other data");
    data::write_numbers(all.args.beside, &all.bench.pool.at("beside"))?;
    all.bench.pool.unmount()?;
    all.bench.pool.path = usual;
    Ok(())
}

/// Copies the newest data into the mount, under names with this prefix.
fn copy_new(newest: &Path, pool: &Pool, prefix: &str) -> Outcome {
    for file in files::entries(newest)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        command!("cp", "--sparse=never", &file, pool.at(&format!("{prefix}{name}"))).run()?;
    }
    pool.sync()
}

fn aged_stream(options: &[&str], bytes: u64, path: &Path) -> Outcome {
    let size = bytes.to_string();
    command!(pool::program("aged_stream"), "--size", size).args(options).writes(path)?.run()
}

fn stream(all: &mut Measurement<'_>) -> Outcome {
    let (bytes, last) = (all.args.size, all.args.generations);
    let newest = all.bench.ram.join("newest");
    make_base(all, &|all, newest| {
        (1..=last).try_for_each(|number| {
            say!("generation {number}");
            let path = if number == last { newest.join("newest") } else { all.bench.pool.at(&number.to_string()) };
            aged_stream(&["--generation", &number.to_string()], bytes, &path)
        })
    })?;
    let title = format!("Generation {last} of the aged stream");
    all.measure(&title, bytes, &|pool| copy_new(&newest, pool, ""))
}

/// Writes pages as a database does: those at random places, 64 bytes of each changed. The same pages each time.
fn write_pages(from: &Path, to: &Path, count: u64) -> Outcome {
    let write = || {
        let (source, target) = (File::open(from)?, File::options().read(true).write(true).open(to)?);
        let (pages, mut page) = (source.metadata()?.len() / PAGE_BYTES, [0; PAGE_BYTES as usize]);
        let mut random = Random::new("pages");
        for _ in 0..count {
            let offset = PAGE_BYTES * random.below(pages);
            source.read_exact_at(&mut page, offset)?;
            let at = random.below(PAGE_BYTES - 64) as usize;
            random.read_exact(&mut page[at..at + 64])?;
            target.write_all_at(&page, offset)?;
        }
        Ok(())
    };
    write().or_else(files::at("write", to))
}

fn pages(all: &mut Measurement<'_>) -> Outcome {
    let (bytes, count) = (all.args.pages, all.args.pages / PAGE_BYTES / 2);
    let source = all.bench.ram.join("newest/pages");
    make_base(all, &|all, newest| {
        aged_stream(&["--seed", "2"], bytes, &newest.join("pages"))?;
        command!("cp", newest.join("pages"), all.bench.pool.at("pages")).run()
    })?;
    let title = format!("{count} pages written into a file of {}, in place", human(bytes));
    all.measure(&title, count * PAGE_BYTES, &|pool| {
        write_pages(&source, &pool.at("pages"), count)?;
        pool.sync()
    })
}

/// Returns the series and its versions, of which there are more than `least`.
fn versions(all: &Measurement<'_>, least: u64) -> Outcome<(std::path::PathBuf, Vec<String>)> {
    let series = all.args.series.clone().unwrap_or_default();
    let names = files::directories(&series)?;
    if names.len() as u64 <= least {
        return fail(format!("{} has only {} versions", series.display(), names.len()));
    }
    Ok((series, names))
}

fn tars(all: &mut Measurement<'_>) -> Outcome {
    let (series, names) = versions(all, all.args.newest)?;
    let old = names.len() - all.args.newest as usize;
    make_base(all, &|all, newest| {
        say!("{old} versions");
        names.iter().enumerate().try_for_each(|(at, name)| {
            let directory = if at < old { &all.bench.pool.mnt } else { newest };
            let tar = directory.join(format!("{name}.tar"));
            command!("tar", "-C", &series, "--sort=name", "-cf", tar, format!("./{name}")).run()
        })
    })?;
    let newest = all.bench.ram.join("newest");
    let title = format!("The newest {} of {} versions of the real series, as tars", all.args.newest, names.len());
    all.measure(&title, files::content_bytes(&newest), &|pool| copy_new(&newest, pool, ""))
}

/// Makes a filesystem with this version in it, a quarter larger than its content. The same bytes each time.
fn make_image(version: &Path, image: &Path) -> Outcome {
    let bytes = files::disk_bytes(version);
    let size = (bytes + bytes / 4) / 4096 * 4096 + (16 << 20);
    File::create(image).and_then(|file| file.set_len(size)).or_else(files::at("write", image))?;
    let uuid = "5eed0000-0000-4000-8000-000000000000";
    let seed = format!("hash_seed={uuid},root_owner=0:0");
    let mut mke2fs =
        command!("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-U", uuid, "-E", seed, "-d", version, image);
    let path = std::env::var("PATH").unwrap_or_default();
    mke2fs.env("E2FSPROGS_FAKE_TIME", "1700000000").env("PATH", format!("{path}:/usr/sbin:/sbin")).run()
}

/// Puts the first of each two versions into the pool, the second into memory, under one name.
fn prepare_images(all: &mut Measurement<'_>) -> Outcome<[u64; 3]> {
    if let Some(images) = all.images {
        return Ok(images);
    }
    let (series, names) = versions(all, 1)?;
    make_base(all, &|all, newest| {
        say!("images of {} versions", names.len());
        let image = all.bench.ram.join("image");
        names.chunks_exact(2).enumerate().try_for_each(|(number, pair)| {
            let name = format!("{number}.img");
            make_image(&series.join(&pair[0]), &image)?;
            // Zeros are written as such: with holes left out there would be none to see.
            command!("cp", "--sparse=never", &image, all.bench.pool.at(&name)).run()?;
            files::remove(&image)?;
            make_image(&series.join(&pair[1]), &newest.join(&name))
        })
    })?;
    let (mut bytes, mut stored) = (0, 0);
    for image in files::entries(&all.bench.ram.join("newest"))? {
        let metadata = image.metadata().or_else(files::at("find", &image))?;
        (bytes, stored) = (bytes + metadata.len(), stored + metadata.blocks() * 512);
    }
    let images = [bytes, names.len() as u64 / 2, bytes.saturating_sub(stored)];
    all.images = Some(images);
    Ok(images)
}

fn images(all: &mut Measurement<'_>, workload: &str) -> Outcome {
    let [bytes, count, zeros] = prepare_images(all)?;
    let newest = all.bench.ram.join("newest");
    if workload == "images" {
        let title = format!("Images of {count} versions as new files, {} of them zeros", human(zeros));
        return all.measure(&title, bytes, &|pool| copy_new(&newest, pool, "new-"));
    }
    let title = format!("The same {count} images, each written over the one of the version before");
    all.measure(&title, bytes, &|pool| {
        for image in files::entries(&newest)? {
            let to = pool.at(&image.file_name().unwrap_or_default().to_string_lossy());
            let [from, to] = [format!("if={}", image.display()), format!("of={}", to.display())];
            command!("dd", from, to, "bs=1M", "conv=notrunc", "status=none").run()?;
        }
        pool.sync()
    })
}
