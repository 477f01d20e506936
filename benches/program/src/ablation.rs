//! The worth of each filter of the lookup chain.

use std::path::PathBuf;

use dedupfs_tools::parse_size;

use crate::ablation_data;
use crate::command::Run;
use crate::figures::{Figures, timed};
use crate::options::{PoolOptions, Words, count};
use crate::pool::{Bench, Pool};
use crate::table::{exact, head, human, number, row};
use crate::{Outcome, command, fail, files, machine, say, usage};

/// Measures the worth of each filter of lookups.
///
/// The newest backup goes into a pool that holds the ones before, after a new mount, once with all filters and once without each of them,
/// all of this in turns, so that a slow minute strikes all alike.
///
/// The workloads: `stream`, the newest generation of the aged stream, as a new file; `pages`, writes of 16 KiB at random places of one file,
/// half as much as it holds, 64 bytes of each changed; `tars`, the newest versions of the series, each as a tar; `images`, every second
/// version as an image of a filesystem, as new files, where the versions before them are there as images; `inplace`, the same images, each
/// written over the one of the version before.
///
/// "index reads" are buckets of the index read from disk: those of lookups, and those of counting references when a commit is counted.
#[derive(clap::Args)]
pub struct Ablation {
    /// Size of each generation of the synthetic aged stream (the example aged_stream). The newest one lies in memory; three times SIZE is
    /// needed on disk
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// Generations of it, of which the newest one is measured
    #[arg(long, value_name = "NUMBER", default_value = "3", value_parser = count)]
    pub generations: u64,
    /// Size of the file of pages
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub pages: u64,
    /// A real series, one directory for each version
    #[arg(long, value_name = "DIR")]
    pub series: Option<PathBuf>,
    /// Versions of it that are measured as tars; the ones before are there already
    #[arg(long, value_name = "NUMBER", default_value = "12", value_parser = count)]
    pub newest: u64,
    /// Size of other data in the pool, so that the index is larger than the cache of its buckets
    #[arg(long, value_name = "SIZE", default_value = "3G", value_parser = parse_size)]
    pub beside: u64,
    /// Measurements of each, of which the median is shown
    #[arg(long, value_name = "NUMBER", default_value = "3", value_parser = count)]
    repeat: u64,
    /// Some of stream,pages,tars,images,inplace [default: all; without --series, stream,pages]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = WORKLOADS)]
    workloads: Vec<String>,
    /// `yes`: also with the byte compare filter, which reads every chunk that is found
    #[arg(long, value_name = "yes|no", default_value = "no", value_parser = ["yes", "no"])]
    compare: String,
    /// File that gets the figures, too: the data of benches/plots/plots.sh
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// [default: TMPDIR or /var/tmp]
    #[arg(long, default_value_os_t = machine::scratch_parent(), hide_default_value = true)]
    dir: PathBuf,
    /// Memory of the mount: the less, the more of the index is read from disk
    #[arg(long, default_value = "128M")]
    memory: String,
    /// Options for dedupfs mkfs; by default tankers fill
    #[arg(
        long,
        value_name = "OPTIONS",
        allow_hyphen_values = true,
        default_value = "--chunk-size 4K --tanker-cells 256K --tanker-buckets 512"
    )]
    mkfs: Words,
}

/// The filters in the order in which they are shown.
const FILTERS: [&str; 5] = ["block", "open", "bloom", "locality", "sealed"];

const WORKLOADS: [&str; 5] = ["stream", "pages", "tars", "images", "inplace"];

/// Columns of the TSV file before those of the filters.
const COLUMNS: &str = "workload plan bytes mb_per_s mb_per_s_min mb_per_s_max against_all against_all_min against_all_max index_reads \
    index_reads_per_gb lookup_reads_per_gb tables_read";

/// A run of the command.
pub struct Measurement<'a> {
    /// Its options.
    pub args: &'a Ablation,
    /// Its places; the pool here is the one that is measured.
    pub bench: Bench,
    /// The pool with everything that came before, at the same mountpoint.
    pub base: PathBuf,
    /// Names of plans and their filters; the others are held against the first one.
    plans: Vec<(String, String)>,
    workload: &'static str,
    tsv: String,
    /// Bytes and number of images, and how many bytes of them are zeros, once they are made.
    pub images: Option<[u64; 3]>,
}

/// Runs the command.
pub fn run(args: &Ablation) -> Outcome {
    let wanted: Vec<&'static str> = match args.workloads.as_slice() {
        [] => WORKLOADS[..if args.series.is_some() { 5 } else { 2 }].to_vec(),
        list => WORKLOADS.into_iter().filter(|name| list.iter().any(|wanted| wanted == name)).collect(),
    };
    if let (None, Some(name)) = (&args.series, wanted.iter().find(|name| WORKLOADS[2..].contains(name))) {
        return usage(format!("{name} needs --series"));
    }
    let needs_images = wanted.iter().any(|name| WORKLOADS[3..].contains(name));
    let commands = &["cp", "dd", "tar", "truncate", "mke2fs"][..if needs_images { 5 } else { 3 }];
    let disk = 3 * args.size + 2 * args.pages + args.beside / 3 + (2 << 30);
    let mount = Words(vec!["--memory".to_owned(), args.memory.clone()]);
    let options = PoolOptions { dir: args.dir.clone(), mkfs: args.mkfs.clone(), mount };
    let programs = ["dedupfs", "dedupfs-stats", "aged_stream"];
    let bench = Bench::new(&programs, commands, &options, args.size + args.pages + (2 << 30), disk)?;
    let all = FILTERS.join(",");
    let without = |left: &str| FILTERS.iter().filter(|name| **name != left).copied().collect::<Vec<_>>().join(",");
    let mut plans = vec![("all".to_owned(), all.clone())];
    plans.extend(FILTERS[..4].iter().map(|left| (format!("without {left}"), without(left))));
    if args.compare == "yes" {
        plans.push(("with compare".to_owned(), format!("{all},compare")));
    }
    println!("{}", machine::describe(&bench.work)?);
    println!(
        "- pool: {}; mount: --memory {}; {} of other data; medians of {} in turns",
        args.mkfs,
        args.memory,
        human(args.beside),
        args.repeat
    );
    let base = bench.work.join("base");
    let filters = FILTERS.iter().flat_map(|name| [(*name).to_owned(), format!("{name}_ms")]);
    let columns = COLUMNS.split(' ').map(str::to_owned).chain(filters);
    let tsv = columns.collect::<Vec<_>>().join("\t") + "\n";
    let mut measurement = Measurement { args, bench, base, plans, workload: "", tsv, images: None };
    for workload in wanted {
        measurement.workload = workload;
        ablation_data::measure(&mut measurement, workload)?;
    }
    if let Some(path) = &args.tsv {
        std::fs::write(path, &measurement.tsv).or_else(files::at("write", path))?;
        say!("the figures are in {}", path.display());
    }
    Ok(())
}

/// Work on a mounted pool with the newest data.
pub type Feed<'f> = &'f dyn Fn(&Pool) -> Outcome;

impl Measurement<'_> {
    /// Measures all plans in turns, each round beginning with another one; then prints the table.
    pub fn measure(&mut self, title: &str, bytes: u64, feed: Feed<'_>) -> Outcome {
        let mut figures = Figures::default();
        for round in 0..self.args.repeat as usize {
            for turn in 0..self.plans.len() {
                let (plan, filters) = self.plans[(turn + 2 * round) % self.plans.len()].clone();
                say!("{}, round {} of {}: {plan}", self.workload, round + 1, self.args.repeat);
                self.measure_once(&mut figures, &plan, &filters, bytes, feed)?;
            }
        }
        files::remove(&self.bench.pool.path)?;
        println!("\n**{title}** ({}): {}\n", self.workload, exact(bytes));
        self.print(&figures, bytes);
        Ok(())
    }

    /// Measures a plan in a copy of the base.
    fn measure_once(&mut self, figures: &mut Figures, plan: &str, list: &str, bytes: u64, feed: Feed<'_>) -> Outcome {
        let pool = &mut self.bench.pool;
        files::remove(&pool.path)?;
        command!("cp", "-a", "--sparse=always", &self.base, &pool.path).run()?;
        rustix::fs::sync();
        files::evict(&pool.path);
        pool.mount_with(&["--memory", &self.args.memory, "--filters", list].map(str::to_owned))?;
        let before = pool.stats()?.number("chunk_index.bucket_reads")?;
        let seconds = timed(|| feed(pool))?;
        let stats = pool.stats()?;
        pool.unmount()?;
        let reads = stats.number("chunk_index.bucket_reads")? - before;
        let tables = stats.number("chunk_index.locality_tables_read")?;
        let Some(filters) = stats.0["filters"].as_array() else { return fail("dedupfs-stats --json has no filters") };
        let lookup_reads: u64 = filters.iter().filter_map(|filter| filter["reads"].as_u64()).sum();
        for (name, value) in [("reads", reads), ("tables", tables), ("lookup reads", lookup_reads)] {
            figures.note(name, plan, value as f64);
        }
        for filter in filters {
            let name = filter["name"].as_str().unwrap_or_default();
            let decided = ["existing", "non_existing"].iter().filter_map(|key| filter[*key].as_u64()).sum::<u64>();
            figures.note(name, plan, decided as f64);
            figures.note(&format!("{name} ms"), plan, filter["time_ms"].as_f64().unwrap_or(0.0));
        }
        figures.note("rate", plan, bytes as f64 / 1e6 / seconds);
        Ok(())
    }

    /// Prints medians of all plans, and adds them to the TSV text.
    fn print(&mut self, figures: &Figures, bytes: u64) {
        let names = ["filters", "MB/s (least to most)", "against all (least to most)", "index reads for each GB"];
        let mut heads: Vec<String> =
            names.iter().chain(&["of lookups", "tables read"]).map(|name| (*name).into()).collect();
        heads.push(format!("{} decided", FILTERS[0]));
        heads.extend(FILTERS[1..].iter().map(|name| (*name).to_owned()));
        println!("{}", head(&heads));
        let gb = bytes as f64 / 1e9;
        for (plan, _) in &self.plans {
            let median = |name: &str| figures.median(name, plan);
            let rates = figures.values("rate", plan);
            // A rate against that of all filters is of one round.
            let ratios: Vec<f64> =
                rates.iter().zip(figures.values("rate", &self.plans[0].0)).map(|(own, all)| own / all).collect();
            let [rate, ratio] = [rates, &ratios].map(|values| {
                let ends = [f64::min, f64::max].map(|end| values.iter().copied().reduce(end).unwrap_or(0.0));
                [crate::figures::median(values).unwrap_or(0.0), ends[0], ends[1]]
            });
            let span = |values: [f64; 3], decimals| {
                let [median, least, most] = values.map(|value| number(value, decimals));
                format!("{median} ({least} to {most})")
            };
            let [reads, lookup_reads, tables] =
                ["reads", "lookup reads", "tables"].map(|name| median(name).unwrap_or(0.0));
            let counts = [reads / gb, lookup_reads / gb, tables].map(|count| number(count, 0));
            let decided =
                |name: &&str, none: &str| median(name).map_or_else(|| none.to_owned(), |count| number(count, 0));
            let cells = [plan.clone(), span(rate, 0), span(ratio, 2)].into_iter().chain(counts.clone());
            let cells = cells.chain(FILTERS.iter().map(|name| decided(name, "-")));
            println!("{}", row(&cells.collect::<Vec<_>>()));

            let [reads_per_gb, lookups_per_gb, tables] = counts;
            let mut fields = vec![self.workload.to_owned(), plan.clone(), bytes.to_string()];
            fields.extend(rate.map(|rate| number(rate, 1)).into_iter().chain(ratio.map(|ratio| number(ratio, 3))));
            fields.extend([number(reads, 0), reads_per_gb, lookups_per_gb, tables]);
            for name in &FILTERS {
                let ms = median(&format!("{name} ms")).map_or_else(String::new, |ms| number(ms, 2));
                fields.extend([decided(name, ""), ms]);
            }
            self.tsv += &(fields.join("\t") + "\n");
        }
    }
}
