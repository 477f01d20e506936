//! Plans of several machines whose disks go into one pool, with duplicates detected in stages across them. A TOML file, the same at each
//! machine. It is written anew for each night, because it names the states of the disks.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::plan::is_name_of_disk;
use crate::schedule::Job;
use crate::schedule::rounds::dbp2;

/// Machines of a plan at most.
const MACHINES_MAX: usize = 1000;
/// Disks of a plan at most.
const DISKS_MAX: usize = 10_000;
/// Disks of a round at most: machine 0 has two files open for each.
const DISKS_OF_A_ROUND_MAX: usize = 400;

/// A plan.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPlan {
    /// The mount, or a directory in it, at the first machine.
    pub pool: PathBuf,
    /// A directory on a disk of each machine. Each uses a directory in it with its own name: for spools and notes of rounds, the first one also for
    /// new chunks.
    pub work: PathBuf,
    /// Name of the versions of this night.
    pub night: String,
    /// The rounds over which disks are spread. A disk must stand still for its round alone.
    #[serde(default = "one")]
    pub rounds: usize,
    /// How the pool cuts content.
    #[serde(default = "default_chunker")]
    pub chunker: String,
    /// The same: mean length of a chunk.
    #[serde(default = "default_chunk_bytes")]
    pub chunk_bytes: u32,
    /// The same: name of the hash.
    #[serde(default = "default_fingerprint")]
    pub fingerprint: String,
    /// The machines. The first one has the pool.
    #[serde(rename = "machine")]
    pub machines: Vec<Machine>,
    /// The disks.
    #[serde(rename = "disk")]
    pub disks: Vec<ClusterDisk>,
}

fn one() -> usize {
    1
}

fn default_chunker() -> String {
    "mincdc".to_owned()
}

fn default_chunk_bytes() -> u32 {
    8192
}

fn default_fingerprint() -> String {
    "blake3".to_owned()
}

/// A machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name in this plan.
    pub name: String,
    /// Where the others reach it.
    pub address: SocketAddr,
}

/// A disk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDisk {
    /// Directory below the pool for its versions, such as `web-1/vda`.
    pub name: String,
    /// The machine that reads it.
    pub machine: String,
    /// A file, a block device or the address of an NBD export, as that machine sees it. It must stand still: a snapshot.
    pub source: PathBuf,
    /// The map of changes since the newest version, at that machine.
    pub changed: Option<PathBuf>,
    /// The state at which the map begins.
    pub token_from: Option<String>,
    /// The state that is read.
    pub token: Option<String>,
    /// Bytes that are read, roughly: the rounds take about equally long.
    #[serde(default)]
    pub assumed_bytes: u64,
}

impl ClusterPlan {
    /// Reads a plan.
    ///
    /// # Errors
    /// A text that names the line, or the machine or disk and how to mend it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }

    /// Returns the place of a machine.
    #[must_use]
    pub fn machine(&self, name: &str) -> Option<usize> {
        self.machines.iter().position(|machine| machine.name == name)
    }

    /// Returns the round of each disk: the largest disks first, each into the round in which its machine has least (the paper's DBP2).
    #[must_use]
    pub fn round_of_disks(&self) -> Vec<usize> {
        let job = |disk: &ClusterDisk| Job {
            host: self.machine(&disk.machine).unwrap_or(0),
            bytes: disk.assumed_bytes.max(1),
            priority: 0,
            deadline_secs: None,
        };
        dbp2(&self.disks.iter().map(job).collect::<Vec<_>>(), self.rounds).round_of
    }

    fn check(&self) -> Result<(), String> {
        if self.machines.is_empty() || self.machines.len() > MACHINES_MAX {
            return Err(format!("it has {} machines: a plan has 1 to {MACHINES_MAX}", self.machines.len()));
        }
        if self.disks.is_empty() || self.disks.len() > DISKS_MAX {
            return Err(format!("it has {} disks: a plan has 1 to {DISKS_MAX}", self.disks.len()));
        }
        if self.rounds == 0 || self.rounds > self.disks.len() {
            return Err("rounds is a number from 1 to that of the disks".to_owned());
        }
        if !is_name_of_disk(&self.night) || self.night.contains('/') {
            return Err("night is the name of the versions, such as \"2026-11-27\"".to_owned());
        }
        if !self.pool.is_absolute() || !self.work.is_absolute() {
            return Err("pool and work are absolute paths".to_owned());
        }
        let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
        for machine in &self.machines {
            if !is_name_of_disk(&machine.name) || machine.name.contains('/') {
                return Err(format!("machine {:?}: its name is that of a directory", machine.name));
            }
            if !names.insert(&machine.name) || !addresses.insert(machine.address) {
                return Err(format!("two machines have the name or the address of {}", machine.name));
            }
        }
        let mut names = HashSet::new();
        for disk in &self.disks {
            let ClusterDisk { name, machine, .. } = disk;
            if !is_name_of_disk(name) {
                return Err(format!("disk {name:?}: its name is a path below the pool, such as web-1/vda"));
            }
            if !names.insert(PathBuf::from(name).components().collect::<PathBuf>()) {
                return Err(format!("two disks have the name {name}"));
            }
            if self.machine(machine).is_none() {
                return Err(format!("disk {name}: there is no machine {machine}"));
            }
            let tokens = [&disk.token_from, &disk.token].into_iter().flatten();
            if let Some(token) = tokens.into_iter().find(|token| !is_token(token)) {
                return Err(format!("disk {name}: token {token:?}: a token is 1 to 255 letters, digits and ._:-"));
            }
            if disk.changed.is_none() && disk.token_from.is_some() {
                return Err(format!(
                    "disk {name}: token_from says where a map of changes begins: give changed as well"
                ));
            }
            if disk.changed.is_some() && (disk.token_from.is_none() || disk.token.is_none()) {
                let why = "a map of changes needs token_from and token, the states between which it tells changes";
                return Err(format!("disk {name}: {why}"));
            }
        }
        let mut of_round = vec![0_usize; self.rounds];
        for round in self.round_of_disks() {
            if let Some(count) = of_round.get_mut(round) {
                *count += 1;
            }
        }
        match of_round.iter().max() {
            Some(most) if *most > DISKS_OF_A_ROUND_MAX => {
                Err(format!("a round has {most} disks, and takes {DISKS_OF_A_ROUND_MAX}: give more rounds"))
            }
            _ => Ok(()),
        }
    }
}

fn is_token(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "._:-".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        pool = "/mnt/pool/vm"
        work = "/var/lib/work"
        night = "2026-11-27"
        rounds = 2
        [[machine]]
        name = "a"
        address = "10.0.0.1:7411"
        [[machine]]
        name = "b"
        address = "10.0.0.2:7411"
        [[disk]]
        name = "web/vda"
        machine = "b"
        source = "/dev/snap"
        changed = "/maps/web"
        token_from = "one"
        token = "two"
        assumed_bytes = 10
        [[disk]]
        name = "db/vda"
        machine = "b"
        source = "/dev/other"
        assumed_bytes = 20
    "#;

    #[test]
    fn a_plan_is_read_and_its_disks_are_spread_over_rounds() {
        let plan = ClusterPlan::parse(PLAN).expect("is good");
        assert_eq!((plan.machine("b"), plan.machine("c")), (Some(1), None));
        assert_eq!(plan.round_of_disks(), [1, 0]);
        assert_eq!((plan.chunker.as_str(), plan.chunk_bytes, plan.fingerprint.as_str()), ("mincdc", 8192, "blake3"));
    }

    #[test]
    fn plans_that_make_no_sense_are_refused_by_name() {
        for (before, after, named) in [
            ("rounds = 2", "rounds = 3", "rounds"),
            ("rounds = 2", "rounds = 0", "rounds"),
            ("rounds = 2", "round = 2", "round"),
            ("\"2026-11-27\"", "\"a/b\"", "night"),
            ("name = \"b\"", "name = \"a\"", "two machines"),
            ("10.0.0.2", "10.0.0.1", "two machines"),
            ("10.0.0.2:7411", "ten", "address"),
            ("db/vda", "web//vda", "two disks"),
            ("db/vda", "../vda", "name is a path"),
            ("machine = \"b\"", "machine = \"c\"", "no machine c"),
            ("token = \"two\"", "", "needs token_from and token"),
            ("token = \"two\"", "token = \"t 2\"", "letters, digits"),
            ("changed = \"/maps/web\"", "", "give changed as well"),
            ("/var/lib/work", "work", "absolute"),
        ] {
            let error = ClusterPlan::parse(&PLAN.replacen(before, after, 1)).expect_err(after);
            assert!(error.contains(named), "{after}: {error}");
        }
    }
}
