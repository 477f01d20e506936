//! Thin volumes of LVM. A snapshot shares its blocks with the volume; the metadata of the thin pool tells which blocks differ.

use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::program::Program;
use super::snapshots::Store;

/// How long to wait while another program has the one snapshot of metadata of a thin pool.
const METADATA_SECS_MAX: u64 = 60;
/// One comparison at a time in this batch. If another program has the snapshot, dmsetup refuses.
static METADATA: Mutex<()> = Mutex::new(());

/// Bytes of a list of volumes at most: some 70,000 rows.
const ROWS_BYTES_MAX: u64 = 16 << 20;

/// A thin volume.
pub(super) struct Volume {
    group: String,
    name: String,
}

/// A row of `lvs`. All is text.
#[derive(Deserialize)]
struct Row {
    lv_name: String,
    /// Of active ones.
    lv_dm_path: String,
    pool_lv: String,
    metadata_lv: String,
    thin_id: String,
    origin: String,
}

#[derive(Deserialize)]
struct Report {
    report: Vec<Rows>,
}

#[derive(Deserialize)]
struct Rows {
    lv: Vec<Row>,
}

impl Volume {
    /// `VG/LV`; `None` if it is not that.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (group, name) = text.split_once('/')?;
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
        let is_name = |name: &str| !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_letter);
        (is_name(group) && is_name(name)).then(|| Self { group: group.to_owned(), name: name.to_owned() })
    }

    fn rows(&self, gives_up: &dyn Fn() -> bool) -> Result<Vec<Row>, String> {
        let fields = "lv_name,lv_dm_path,pool_lv,metadata_lv,thin_id,origin";
        let words = ["--reportformat", "json", "--all", "--options", fields, &self.group];
        let answer = Program::new("lvs", &words).with_answer_up_to(ROWS_BYTES_MAX).run(gives_up)?;
        let report: Report =
            serde_json::from_slice(&answer).map_err(|error| format!("the answer of lvs is not understood: {error}"))?;
        Ok(report.report.into_iter().flat_map(|rows| rows.lv).collect())
    }

    /// Returns the name of the thin pool.
    fn thin_pool<'a>(&self, rows: &'a [Row]) -> Result<&'a str, String> {
        let Self { group, name } = self;
        let own = rows.iter().find(|row| row.lv_name == *name);
        match own.ok_or_else(|| format!("there is no volume {group}/{name}: `lvs` lists all"))?.pool_lv.as_str() {
            "" => Err(format!(
                "the volume {group}/{name} is not in a thin pool: its snapshots tell no changes, read one of them with file:"
            )),
            pool => Ok(pool),
        }
    }

    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.group)
    }
}

/// Returns the row of a name. Volumes that LVM hides have brackets around it.
fn row<'a>(rows: &'a [Row], name: &str) -> Result<&'a Row, String> {
    fn plain(name: &str) -> &str {
        name.trim_start_matches('[').trim_end_matches(']')
    }
    rows.iter().find(|row| plain(&row.lv_name) == plain(name)).ok_or_else(|| format!("lvs does not tell of {name}"))
}

/// A snapshot of a thin pool's metadata. The pool goes on.
struct Metadata {
    device: String,
}

impl Metadata {
    fn reserve(device: String, gives_up: &dyn Fn() -> bool) -> Result<Self, String> {
        let begun = Instant::now();
        loop {
            match message(&device, "reserve_metadata_snap") {
                Ok(()) => return Ok(Self { device }),
                Err(why) if gives_up() || begun.elapsed().as_secs() >= METADATA_SECS_MAX => {
                    return Err(format!(
                        "cannot take a snapshot of the pool's metadata ({why}): if another program left one that nobody reads, \
                         dmsetup message {device} 0 release_metadata_snap"
                    ));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // The next comparison would tell.
        let _ = message(&self.device, "release_metadata_snap");
    }
}

/// It is quick. If it were ended, nobody would know whether the pool has done it.
fn message(device: &str, text: &str) -> Result<(), String> {
    Program::new("dmsetup", &["message", device, "0", text]).never_killed().run(&|| false).map(drop)
}

impl Store for Volume {
    fn file_name(&self) -> &str {
        &self.name
    }

    fn list(&mut self, gives_up: &dyn Fn() -> bool) -> Result<Vec<String>, String> {
        let rows = self.rows(gives_up)?;
        let pool = self.thin_pool(&rows)?.to_owned();
        Ok(rows.into_iter().filter(|row| row.pool_lv == pool).map(|row| row.lv_name).collect())
    }

    fn make(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let origin = self.full(&self.name);
        // Without the first of them it would not be active.
        let words = ["--setactivationskip", "n", "--permission", "r", "--snapshot", "--name", name, &origin];
        // Killed in between, it leaves the volume suspended.
        Program::new("lvcreate", &words).never_killed().run(gives_up).map(drop)
    }

    fn remove(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        Program::new("lvremove", &["--yes", &self.full(name)]).never_killed().run(gives_up).map(drop)
    }

    fn compare(&mut self, from: &str, to: &str, map: File, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let rows = self.rows(gives_up)?;
        let pool = row(&rows, self.thin_pool(&rows)?)?;
        let metadata = row(&rows, &pool.metadata_lv)?;
        let (from, to, own) = (row(&rows, from)?, row(&rows, to)?, row(&rows, &self.name)?);
        // Numbers of thin volumes are those of their pool.
        if from.pool_lv != own.pool_lv || to.pool_lv != own.pool_lv || from.thin_id == to.thin_id {
            return Err("the snapshots are not in the thin pool of the volume: it was replaced".to_owned());
        }
        // What was discarded shows its origin then, and no zeros.
        if !own.origin.is_empty() && row(&rows, &own.origin)?.pool_lv != own.pool_lv {
            return Err("the volume has an origin outside of its thin pool".to_owned());
        }
        let _turn = METADATA.lock().unwrap_or_else(PoisonError::into_inner);
        // The layer that thin volumes use.
        let _reserved = Metadata::reserve(format!("{}-tpool", pool.lv_dm_path), gives_up)?;
        let words = ["--metadata-snap", "--snap1", &from.thin_id, "--snap2", &to.thin_id, &metadata.lv_dm_path];
        Program::new("thin_delta", &words).run_into(map, gives_up)
    }

    fn open(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<String, String> {
        Ok(row(&self.rows(gives_up)?, name)?.lv_dm_path.clone())
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_metadata_that_cannot_be_taken_is_told_with_advice() {
        let error = Metadata::reserve("/none/vg-pool-tpool".to_owned(), &|| true).map(drop).expect_err("is not there");
        assert!(error.contains("dmsetup message /none/vg-pool-tpool 0 release_metadata_snap"), "{error}");
    }
}
