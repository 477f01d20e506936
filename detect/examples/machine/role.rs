//! A machine's part: options, the round, and a line of figures.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dedupfs_detect::{Cluster, Landing, MemoryPlan, Result, RoundTally, Rounds, Stage, Window, run};

use crate::synthetic::{Synthetic, SyntheticDisks, SyntheticPool};

/// One machine of a round with made-up disks and pool.
#[derive(clap::Parser, Clone, Debug)]
pub struct Options {
    /// Addresses of all machines, in order
    #[arg(long, value_delimiter = ',', required = true)]
    machines: Vec<SocketAddr>,
    /// The index of this one
    #[arg(long)]
    me: usize,
    /// Disks of all machines; disk d is of machine d modulo their number
    #[arg(long, default_value_t = 8)]
    disks: u32,
    /// Chunks of each disk
    #[arg(long, default_value_t = 20_000)]
    chunks: u64,
    /// Bytes of each chunk
    #[arg(long, default_value_t = 4096)]
    chunk_bytes: u32,
    /// Decides the content
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The name of the job
    #[arg(long, default_value = "nightly")]
    job: String,
    #[arg(long, default_value_t = 0)]
    round: u64,
    /// For spools
    #[arg(long, default_value = "/tmp")]
    directory: PathBuf,
    /// For commits, at machine 0
    #[arg(long)]
    rounds: Option<PathBuf>,
    #[arg(long, default_value_t = 10 << 20)]
    memory_bytes: u64,
    #[arg(long, default_value_t = 20)]
    join_secs: u64,
    /// Kills itself at a stage
    #[arg(long, value_parser = stage)]
    die_at: Option<Stage>,
    /// Waits before the commit, milliseconds
    #[arg(long, default_value_t = 0)]
    linger_millis: u64,
    /// Waits at each segment, milliseconds
    #[arg(long, default_value_t = 0)]
    slow_millis: u64,
    /// Gives content in the second reading that the first one did not
    #[arg(long)]
    changes: bool,
}

fn stage(name: &str) -> std::result::Result<Stage, String> {
    Ok(match name {
        "read" => Stage::Read,
        "compare" => Stage::Compare,
        "verdict" => Stage::Verdict,
        "store" => Stage::Store,
        "finish" => Stage::Finish,
        _ => return Err("read, compare, verdict, store or finish".into()),
    })
}

/// A hash of a job's name.
pub fn job(name: &str) -> [u8; 32] {
    let mut job = [0; 32];
    for (place, byte) in job.iter_mut().zip(name.bytes().cycle()) {
        *place = byte;
    }
    job
}

/// Plays it. Says whether the round is committed.
pub fn play(options: &Options) -> bool {
    match round(options) {
        Ok(line) => {
            println!("{line}");
            true
        }
        Err(error) => {
            eprintln!("machine {}: {error}", options.me);
            false
        }
    }
}

fn round(options: &Options) -> Result<serde_json::Value> {
    let machines = options.machines.len() as u32;
    let synthetic = Synthetic {
        seed: options.seed,
        disks: options.disks,
        chunks: options.chunks,
        chunk_bytes: options.chunk_bytes,
    };
    let asks = u64::from(options.disks) * options.chunks;
    let expected_asks = asks / u64::from(machines.max(1));
    let memory = MemoryPlan { directory: options.directory.clone(), expected_asks, memory_bytes: options.memory_bytes };
    let cluster = Cluster {
        machines: options.machines.clone(),
        me: options.me,
        machine_of_disk: (0..options.disks).map(|disk| disk % machines).collect(),
        job: job(&options.job),
        round: options.round,
        window: Window::default(),
        memory,
        join_secs: options.join_secs,
    };
    let mine = (0..options.disks).filter(|disk| (disk % machines) as usize == options.me).collect();
    let slow = Duration::from_millis(options.slow_millis);
    let mut disks = SyntheticDisks::new(synthetic, mine, slow, options.changes);
    let mut pool = (options.me == 0).then(|| {
        let rounds = options.rounds.as_ref().map(Rounds::new);
        SyntheticPool::new(synthetic, rounds, cluster.job, options.round)
    });
    let looks = Cell::new((Stage::Join, 0));
    let watch = |stage| {
        let (before, count) = looks.get();
        looks.set((stage, if stage == before { count + 1 } else { 0 }));
        // Of reading, something has been done then.
        let dies = options.die_at == Some(stage) && (stage != Stage::Read || looks.get().1 > 1);
        if dies {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        if stage == Stage::Finish && looks.get().1 == 0 {
            std::thread::sleep(Duration::from_millis(options.linger_millis));
        }
        true
    };
    let begin = Instant::now();
    let landing = pool.as_mut().map(|pool| pool as &mut dyn Landing);
    let RoundTally { here, landed, landed_bytes, parcels, sent_bytes, join_millis } =
        run(&cluster, &mut disks, landing, &watch)?;
    let oracle = pool.map_or(Duration::ZERO, |pool| pool.oracle_time);
    let seconds = (begin.elapsed() - oracle).as_secs_f64() - join_millis as f64 / 1000.0;
    Ok(serde_json::json!({
        "machine": options.me, "asks": here.asks, "asks_of_all": asks, "seconds": seconds,
        "blocks_per_second_of_all": asks as f64 / seconds, "vm_hwm_bytes": peak_bytes(), "messages": parcels,
        "sent_bytes": sent_bytes, "known": here.known, "new": here.new, "repeated": here.repeated, "chunks": here.chunks,
        "parts": here.parts, "spooled_bytes": here.spooled_bytes, "landed": landed, "landed_bytes": landed_bytes,
    }))
}

/// The peak of this process's resident memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}
