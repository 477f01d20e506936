//! The versions that an aged pool keeps: seconds of their restores beside other ways to keep them, and their content beside a new pool's.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Measurement, name_of};
use crate::command::Run;
use crate::figures::{median, timed};
use crate::pool::{Pool, dedupfs};
use crate::seeking::disk::{Cost, Disk};
use crate::versions::rival::Rival;
use crate::{Outcome, command, fail, files, layout, rivals_tools, say, table};

/// Seconds and seeks of the restores of each version, in the order of the versions.
struct Column {
    head: String,
    restores: Vec<Restored>,
}

#[derive(Clone, Copy)]
struct Restored {
    seconds: f64,
    /// On a disk that seeks.
    seeks: Option<f64>,
}

/// Returns so many of the versions, the oldest and the newest among them; all of them for 0.
fn spread(versions: &[u64], count: usize) -> Vec<u64> {
    let last = versions.len().saturating_sub(1);
    if count == 0 || count > last {
        return versions.to_vec();
    }
    let places = (0..count).rev().map(|number| last - number * last / (count - 1).max(1));
    places.filter_map(|at| versions.get(at).copied()).collect()
}

/// Where restores come from.
enum Place<'a> {
    /// The filesystem of `--dir`.
    Directory(&'a Path),
    /// The emulated disk.
    Disk(Disk),
}

impl Place<'_> {
    fn root(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::Disk(disk) => &disk.root,
        }
    }

    fn measure(&self, work: impl FnOnce() -> Outcome) -> Outcome<Restored> {
        Ok(match self {
            Self::Directory(_) => Restored { seconds: timed(work)?, seeks: None },
            Self::Disk(disk) => {
                let Cost { seconds, seeks, .. } = disk.measure(work)?;
                Restored { seconds, seeks: Some(seeks) }
            }
        })
    }

    fn end(self) -> Outcome {
        if let Self::Disk(disk) = self { disk.end() } else { Ok(()) }
    }
}

impl Measurement<'_> {
    /// Prints the restores of each version kept, and the content beside a new pool's. The aged pool is not
    /// mounted before this call, nor after it.
    pub(super) fn compare(&mut self, kept: &[u64]) -> Outcome {
        self.compare_content(kept)?;
        self.compare_restores(kept, None)?;
        match self.args.disk {
            Some(bytes) => self.compare_restores(kept, Some(bytes)),
            None => Ok(()),
        }
    }

    /// Fails unless the pool has the content of its versions and no more.
    fn compare_content(&mut self, kept: &[u64]) -> Outcome {
        self.alone.format()?;
        self.alone.mount()?;
        for number in kept {
            dedupfs("put").arg(self.source(*number)?).arg(self.alone.at(&name_of(*number))).quiet().run()?;
        }
        self.alone.unmount()?;
        let chunk_and_disk_bytes = |pool: &Pool| -> Outcome<[u64; 2]> {
            let stats = pool.stats()?;
            Ok([stats.number("unique_chunk_bytes")?, stats.number("physical_bytes")?])
        };
        let [pool_chunk_bytes, pool_disk_bytes] = chunk_and_disk_bytes(&self.bench.pool)?;
        let [new_chunk_bytes, new_disk_bytes] = chunk_and_disk_bytes(&self.alone)?;
        println!(
            "\nChunks of the versions kept: {pool_chunk_bytes} bytes; of a new pool with the same versions: {new_chunk_bytes}. On disk {} and {}, {} of it.",
            table::human(pool_disk_bytes),
            table::human(new_disk_bytes),
            table::number(pool_disk_bytes as f64 / new_disk_bytes as f64, 3)
        );
        files::remove(&self.alone.path)?;
        if pool_chunk_bytes == new_chunk_bytes {
            Ok(())
        } else {
            fail("the aged pool has not the content of its versions")
        }
    }

    fn compare_restores(&mut self, kept: &[u64], disk_bytes: Option<u64>) -> Outcome {
        let work = self.bench.work.clone();
        let place = |ram: &Path| match disk_bytes {
            Some(bytes) => Disk::new(ram, bytes).map(Place::Disk),
            None => Ok(Place::Directory(&work)),
        };
        let restored = match disk_bytes {
            Some(_) => spread(kept, self.args.from_disk),
            None => kept.to_vec(),
        };
        let mut columns = self.restores_from_pool(&restored, place(&self.bench.ram)?)?;
        columns.push(self.restores_from_copies(&restored, &place)?);
        for name in &self.args.tools {
            match rivals_tools::is_installed(name) {
                true => columns.push(self.restores_by_rival(name, (kept, &restored), place(&self.bench.ram)?)?),
                false => eprintln!("NOT RUN: {name}, which is not installed"),
            }
        }
        let medium = disk_bytes.map_or("seconds", |_| "seconds on the disk that seeks");
        let heads: Vec<_> = columns.iter().map(|column| column.head.clone()).collect();
        println!("\n{}", table::head(&[&[format!("version: {medium}")], &heads[..]].concat()));
        for (at, number) in restored.iter().enumerate().rev() {
            let cells = columns.iter().map(|column| match column.restores[at] {
                Restored { seconds, seeks: None } => table::number(seconds, 2),
                Restored { seconds, seeks: Some(seeks) } => {
                    format!("{}, {} seeks", table::number(seconds, 2), table::number(seeks, 0))
                }
            });
            let cells: Vec<_> = std::iter::once(number.to_string()).chain(cells).collect();
            println!("{}", table::row(&cells));
        }
        Ok(())
    }

    /// Restores from the aged pool; on a disk from a copy of all its files.
    fn restores_from_pool(&self, kept: &[u64], place: Place<'_>) -> Outcome<Vec<Column>> {
        let path = match &place {
            Place::Directory(_) => self.bench.pool.path.clone(),
            Place::Disk(disk) => disk.root.join("pool"),
        };
        if path != self.bench.pool.path {
            command!("cp", "-a", "--sparse=always", &self.bench.pool.path, &path).run()?;
        }
        let mount = &self.args.pool.arranged_by_hand().mount.0;
        let mut pool = Pool::new(
            path.clone(),
            self.bench.work.join(if matches!(place, Place::Disk(_)) { "compared-disk" } else { "compared" }),
            &[],
            mount,
        )?;
        pool.mount()?;
        let mut columns = Vec::new();
        for (by, head) in [("get", "`get`"), ("cp", "`cp -a` out of the mount")] {
            let mut restore = |number: u64| {
                pool.unmount()?;
                files::cold(&path, true)?;
                pool.mount()?;
                let from = pool.at(&name_of(number));
                self.restored(&place, &|out| layout::copy_out(by, &from, out))
            };
            columns.push(self.column(head.to_owned(), kept, &mut restore)?);
        }
        pool.unmount()?;
        files::remove(&pool.mnt)?;
        place.end()?;
        Ok(columns)
    }

    /// Restores from a copy of one version at a time on a fresh filesystem.
    fn restores_from_copies<'a>(&self, kept: &[u64], place: &dyn Fn(&Path) -> Outcome<Place<'a>>) -> Outcome<Column> {
        let mut restore = |number: u64| {
            let (place, source) = (place(&self.bench.ram)?, self.source(number)?);
            let copy = place.root().join("copy");
            layout::copy_out("cp", &source, &copy)?;
            command!("sync", "-f", &copy).run()?;
            files::cold(&copy, true)?;
            let restored = self.restored(&place, &|out| layout::copy_out("cp", &copy, out))?;
            files::remove(&copy)?;
            place.end()?;
            Ok(restored)
        };
        self.column("`cp -a` of a fresh copy".to_owned(), kept, &mut restore)
    }

    /// Restores by another tool, which has only the versions kept.
    fn restores_by_rival(&self, name: &str, (kept, restored): (&[u64], &[u64]), place: Place<'_>) -> Outcome<Column> {
        let mut rival = Rival::new(name, place.root(), &self.bench.work, &self.bench.ram)?;
        for number in kept {
            let (source, link) = (self.source(*number)?, self.bench.ram.join(name_of(*number)));
            // The tools name a backup by the name of its directory.
            symlink(&source, &link).or_else(files::at("make", &link))?;
            rival.backup(&name_of(*number))?;
            files::remove(&link)?;
            say!("{name}: backup of {number}");
        }
        let mut restore = |number: u64| {
            files::cold(place.root(), true)?;
            self.restored(&place, &|_| rival.restore(&name_of(number)))
        };
        let column = self.column(name.to_owned(), restored, &mut restore)?;
        rival.remove()?;
        place.end()?;
        Ok(column)
    }

    fn column(&self, head: String, kept: &[u64], restore: &mut dyn FnMut(u64) -> Outcome<Restored>) -> Outcome<Column> {
        let mut restores = Vec::new();
        for number in kept {
            let runs = (0..self.args.runs).map(|_| restore(*number)).collect::<Outcome<Vec<_>>>()?;
            let seconds: Vec<_> = runs.iter().map(|run| run.seconds).collect();
            let seeks: Vec<_> = runs.iter().filter_map(|run| run.seeks).collect();
            restores.push(Restored { seconds: median(&seconds).unwrap_or(0.0), seeks: median(&seeks) });
            say!("{head}: {number}");
        }
        Ok(Column { head, restores })
    }

    /// Restores into memory by a command that takes the new directory.
    fn restored(&self, place: &Place<'_>, by: &dyn Fn(&Path) -> Outcome) -> Outcome<Restored> {
        files::empty_out(&self.bench.ram, self.version_bytes)?;
        let out = self.bench.ram.join("out");
        let restored = place.measure(|| by(&out.join("tree")))?;
        files::remove(&out)?;
        Ok(restored)
    }
}
