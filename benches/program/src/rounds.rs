//! Rounds of several machines, whose disks and pool are made up.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::command::Run;
use crate::figures::median;
use crate::options::count;
use crate::pool::{find_programs, program};
use crate::{Outcome, cleanup, command, fail, machine, print_row, say, table};

const DISKS: u64 = 8;
const PORT: u16 = 7411;

/// Measures the detection of duplicates by several machines, each in a network namespace of its own (root).
///
/// Each machine is a process of the example `machine` of `dedupfs-detect`: it makes up the chunks of its disks, of which 74.5% are known, and
/// the first one, which has the pool, compares each record that lands with an oracle. Without payload new chunks have 16 bytes.
#[derive(clap::Args)]
pub struct RoundsArgs {
    /// Numbers of machines
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4")]
    machines: Vec<usize>,
    /// Chunks of all disks together
    #[arg(long, default_value = "4000000", value_parser = count)]
    chunks: u64,
    /// Bytes of a chunk
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4096,16")]
    chunk_bytes: Vec<u32>,
    /// Runs, of which medians count
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    /// Directory for spools [default: TMPDIR or /var/tmp]
    #[arg(long, default_value_os_t = machine::scratch_parent(), hide_default_value = true)]
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &RoundsArgs) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return fail("network namespaces need root");
    }
    machine::need_commands(&["ip"])?;
    find_programs(&["machine"])?;
    let work = cleanup::scratch(&args.dir)?;
    println!("{}", machine::describe(&work)?);
    println!("- {} chunks on {DISKS} disks\n", args.chunks);
    println!(
        "{}",
        table::head(&["machines", "bytes of a chunk", "blocks/s", "MB of memory of each", "MB sent by all"])
    );
    for &chunk_bytes in &args.chunk_bytes {
        for &machines in &args.machines {
            let (mut rates, mut peaks, mut sent) = (Vec::new(), vec![0.0_f64; machines], 0.0);
            for number in 0..args.runs {
                let lines = round(args, (machines, chunk_bytes), &work)?;
                let of = |line: &Value, name: &str| line[name].as_f64().unwrap_or(0.0);
                rates.extend(lines.first().map(|line| of(line, "blocks_per_second_of_all")));
                for (peak, line) in peaks.iter_mut().zip(&lines) {
                    *peak = peak.max(of(line, "vm_hwm_bytes"));
                }
                sent = lines.iter().map(|line| of(line, "sent_bytes")).sum();
                say!("{machines} machines, {chunk_bytes} bytes, run {number}: {:.0} blocks/s", rates[rates.len() - 1]);
            }
            let peaks: Vec<String> = peaks.iter().map(|peak| table::number(peak / 1e6, 1)).collect();
            let rate = median(&rates).unwrap_or(0.0);
            print_row!(machines, chunk_bytes, table::number(rate, 0), peaks.join(", "), table::number(sent / 1e6, 0));
        }
    }
    println!("\n{}", machine::describe_end(args.runs)?);
    Ok(())
}

/// Runs a round, and returns the figures of each machine.
fn round(args: &RoundsArgs, (machines, chunk_bytes): (usize, u32), work: &Path) -> Outcome<Vec<Value>> {
    let network = Network::new(machines)?;
    let addresses: Vec<String> = (0..machines).map(|machine| format!("{}:{PORT}", address(machine))).collect();
    let mut children = Vec::new();
    for me in 0..machines {
        let mut start = command!("ip", "netns", "exec", network.namespace(me));
        start.arg(program("machine")).args(["--machines", &addresses.join(","), "--me", &me.to_string()]);
        start.args(["--disks", &DISKS.to_string(), "--chunks", &(args.chunks / DISKS).to_string()]);
        start.args(["--chunk-bytes", &chunk_bytes.to_string(), "--directory"]).arg(work).stdout(Stdio::piped());
        children.push(start.spawn().or_else(|error| fail(format!("cannot start a machine: {error}")))?);
    }
    let mut lines = Vec::new();
    for child in children {
        let output = child.wait_with_output().or_else(|error| fail(format!("cannot wait for a machine: {error}")))?;
        if !output.status.success() {
            return fail(format!("a machine ended with {}", output.status));
        }
        lines.push(serde_json::from_slice(&output.stdout).or_else(|error| fail(format!("figures: {error}")))?);
    }
    Ok(lines)
}

fn address(machine: usize) -> String {
    format!("10.213.77.{}", machine + 1)
}

/// Namespaces on a bridge, which has one of its own. They go when this is dropped.
struct Network {
    name: String,
    machines: usize,
}

impl Network {
    fn new(machines: usize) -> Outcome<Self> {
        let network = Self { name: format!("dedupfs-bench-{}", std::process::id()), machines };
        let bridge = network.bridge();
        command!("ip", "netns", "add", &bridge).run()?;
        let within =
            |namespace: &str, words: &str| command!("ip", "-n", namespace).args(words.split_whitespace()).run();
        within(&bridge, "link add br0 type bridge forward_delay 0")?;
        within(&bridge, "link set br0 up")?;
        for machine in 0..machines {
            let here = network.namespace(machine);
            command!("ip", "netns", "add", &here).run()?;
            within(&bridge, &format!("link add v{machine} type veth peer name eth0 netns {here}"))?;
            within(&bridge, &format!("link set v{machine} master br0 up"))?;
            within(&here, &format!("addr add {}/24 dev eth0", address(machine)))?;
            within(&here, "link set eth0 up")?;
            within(&here, "link set lo up")?;
        }
        Ok(network)
    }

    fn bridge(&self) -> String {
        format!("{}-b", self.name)
    }

    fn namespace(&self, machine: usize) -> String {
        format!("{}-{machine}", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in (0..self.machines).map(|machine| self.namespace(machine)).chain([self.bridge()]) {
            let _ = command!("ip", "netns", "del", namespace).quiet().run();
        }
    }
}
