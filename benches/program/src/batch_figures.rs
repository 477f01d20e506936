//! The tables and figures of the paper on parallel batch deduplication, by a model, and inline detection beside them.

use std::path::PathBuf;

use dedupfs_batch::model::{DISK_BYTES, DISKS_OF_A_MACHINE, Machine, TABLE_1_PUBLISHED, table_1};
use dedupfs_batch::schedule::lists::{Policy, Readers};
use dedupfs_batch::schedule::simulate::{Schedule, Times, simulate};
use dedupfs_batch::schedule::{Cost, Job, Weight};

use crate::data::Random;
use crate::{Outcome, fail, print_row, table, usage};

/// Computes table 1 and figures 8 to 12 of the paper on parallel batch deduplication with its own cost model.
///
/// Nothing is measured: the inputs are the paper's disks, rates and redundancy. Sizes of disks follow its three clusters: a lognormal and a
/// Pareto distribution with a mean of 40 GB, cut at 2 TB. Beside its schedules stands inline detection, which reads once and has no rounds.
/// Figures 9 to 12 have no numbers in the paper; for figure 9 each message is assumed to take 1 ms.
#[derive(clap::Args)]
pub struct BatchFigures {
    /// Write the costs of figures 10 to 12 to this file, as tab-separated values
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// Seed of the sizes
    #[arg(long, default_value = "1")]
    seed: String,
}

const GB: f64 = 1e9;
/// The values of alpha: from the span alone to the mean alone.
const ALPHAS: [f64; 7] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];
/// Disks and machines of the paper's clusters.
const CLUSTERS: [(u64, usize); 3] = [(1323, 53), (4224, 169), (8046, 322)];
const LARGEST_BYTES: f64 = 2e12;
const MEAN_BYTES: f64 = 40e9;
/// Assumed for figure 9.
const MESSAGE_SECS: f64 = 0.001;

/// Draws the size of a disk.
type Size = fn(&mut Random) -> f64;

/// Distributions of the sizes of disks.
const SIZES: [(&str, Size); 2] = [("lognormal", lognormal), ("Pareto", pareto)];

/// Runs the command.
pub fn run(args: &BatchFigures) -> Outcome {
    println!("Model of the paper, seed {}. Nothing is measured.\n", args.seed);
    print_table_1();
    print_figure_8();
    print_figure_9();
    let rows = schedules(&args.seed)?;
    match &args.tsv {
        Some(path) => std::fs::write(path, rows).or_else(|error| fail(format!("cannot write {path:?}: {error}"))),
        None => Ok(()),
    }
}

fn print_table_1() {
    println!("Table 1: 100 machines with 25 disks of 40 GB each, 35 MB of memory; in brackets as published\n");
    let names = ["partitions", "index and requests, MB", "hours", "GB/s", "hours, option 1"];
    println!("{}", table::head(&names));
    for (row, published) in table_1().into_iter().zip(TABLE_1_PUBLISHED) {
        let beside = |ours: Option<f64>, at: usize, decimals| match (ours, published) {
            (Some(ours), Some(published)) => format!("{ours:.decimals$} ({})", published[at]),
            _ => "does not fit".to_owned(),
        };
        print_row!(
            row.partitions,
            table::number(row.partition_bytes / 1e6, 1),
            beside(row.hours, 0, 2),
            beside(row.bytes_per_sec.map(|bytes| bytes / GB), 1, 2),
            beside(row.hours_of_option_1, 2, 1)
        );
    }
}

fn print_figure_8() {
    println!(
        "\nFigure 8: hours of the stages of 100 machines, by memory (the paper: 3.1 h, hardly less with 190 MB)\n"
    );
    println!("{}", table::head(&["memory, MB", "stage 1", "stage 2", "stage 3", "all"]));
    for memory_mb in [35.0, 50.0, 75.0, 100.0, 150.0, 190.0] {
        let machine = Machine { memory_bytes: memory_mb * 1e6, ..Machine::PAPER };
        let hours = machine.stages_secs(f64::from(DISKS_OF_A_MACHINE) * DISK_BYTES).map(|secs| secs / 3600.0);
        let [one, two, three] = hours.map(|hours| table::number(hours, 2));
        print_row!(memory_mb, one, two, three, table::number(hours.iter().sum(), 2));
    }
}

fn print_figure_9() {
    println!("\nFigure 9: hours of 10 machines with 5 disks of 40 GB each, by memory for messages (of 1 ms each)\n");
    println!("{}", table::head(&["for messages, KB", "messages", "all"]));
    let machine = Machine { machines: 10, ..Machine::PAPER };
    let bytes = 5.0 * MEAN_BYTES;
    for network_kb in [20.0, 80.0, 320.0, 1280.0, 5120.0, 20480.0] {
        let messages = machine.messages_secs(bytes, network_kb * 1e3, MESSAGE_SECS);
        let hours = |secs: f64| table::number(secs / 3600.0, 3);
        print_row!(network_kb, hours(messages), hours(messages + machine.round_secs(bytes)));
    }
}

/// Prints figures 10 to 12, and returns them as tab-separated values.
fn schedules(seed: &str) -> Outcome<String> {
    println!(
        "\nFigures 10 to 12: rounds, job span J and mean life of a snapshot T in hours, cost alpha T + (1 - alpha) J\n"
    );
    let names = [
        "sizes",
        "disks, machines",
        "alpha",
        "DBP2",
        "J",
        "T",
        "cost",
        "BPL",
        "J",
        "T",
        "cost",
        "inline J",
        "T",
        "cost",
    ];
    println!("{}", table::head(&names));
    let machine = Machine::PAPER;
    let round_secs = |bytes: u64| machine.round_secs(bytes as f64) + machine.index_pass_secs();
    let mut rows = "sizes\tdisks\talpha\tschedule\trounds\tspan_hours\tmean_hours\tcost_hours\n".to_owned();
    for (sizes, size) in SIZES {
        for (disks, machines) in CLUSTERS {
            let mut random = Random::new(&format!("{seed} {sizes} {disks}"));
            let jobs: Vec<Job> = (0..disks)
                .map(|_| {
                    let host = random.below(machines as u64) as usize;
                    let bytes = size(&mut random).min(LARGEST_BYTES) as u64;
                    Job { host, bytes, priority: 0, deadline_secs: None }
                })
                .collect();
            let of_job = |job: &Job| machine.inline_secs(job.bytes as f64);
            let times = Times { of_job: &of_job, load: &|job| job.bytes, of_round: &round_secs };
            for alpha in ALPHAS {
                let Some(weight) = Weight::new(alpha) else { return usage("alpha lies between 0 and 1") };
                let hours = |cost: Cost| [cost.span_secs, cost.mean_secs, weight.of(cost)].map(|secs| secs / 3600.0);
                let mut cells = vec![sizes.to_owned(), format!("{disks}, {machines}"), alpha.to_string()];
                let all = simulate(&jobs, &Readers::default(), &times, weight);
                let schedules =
                    [("DBP2", Schedule::Dbp2), ("BPL", Schedule::Bpl), ("inline", Schedule::List(Policy::Shortest))];
                for (name, schedule) in schedules {
                    let Some(simulated) = all.iter().find(|simulated| simulated.schedule == schedule) else { continue };
                    let [span, mean, cost] = hours(simulated.cost);
                    let count = simulated.rounds.map(|count| count.to_string());
                    rows += &format!(
                        "{sizes}\t{disks}\t{alpha}\t{name}\t{}\t{span:.3}\t{mean:.3}\t{cost:.3}\n",
                        count.as_deref().unwrap_or("-")
                    );
                    cells.extend(count);
                    cells.extend([span, mean, cost].map(|hours| table::number(hours, 2)));
                }
                println!("{}", table::row(&cells));
            }
        }
    }
    Ok(rows)
}

/// A number above 0 and up to 1.
fn unit(random: &mut Random) -> f64 {
    ((random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// A size with a sigma of 1.6, by the method of Box and Muller.
fn lognormal(random: &mut Random) -> f64 {
    const SIGMA: f64 = 1.6;
    let normal = (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos();
    (MEAN_BYTES.ln() - SIGMA * SIGMA / 2.0 + SIGMA * normal).exp()
}

/// A size with a shape of 1.3.
fn pareto(random: &mut Random) -> f64 {
    const SHAPE: f64 = 1.3;
    MEAN_BYTES * (SHAPE - 1.0) / SHAPE * unit(random).powf(-1.0 / SHAPE)
}
