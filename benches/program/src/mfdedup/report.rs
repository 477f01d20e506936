//! The paper's ten figures beside those of a series.

use super::classes::{Classes, index_bytes};
use super::disk::Disk;
use super::restore::Restore;
use super::simulation::{Arranged, Outcome, Settings, categories, rivals};
use super::store::Moved;
use super::trace::Trace;
use crate::print_row;
use crate::table::{self, number};

/// A number of the paper: its title, and its value there.
const ROWS: [(&str, &str); 21] = [
    ("1. series: bytes, versions", "269 GB to 1.55 TB, 100 to 200"),
    ("exact deduplication of all versions", "2.19 to 44.65"),
    ("2. chunks: internal, adjacent, skip, unique", "-"),
    ("the same in bytes", "-"),
    ("skip, of duplicate chunks", "below 0.5% in most"),
    ("3. ratio of versions kept: exact, MFDedup", "near each other"),
    ("MFDedup against HAR and capping, perfect GC and CMA", "1.12 to 2.19 times"),
    ("4. ratio of HAR, capping against exact", "-20% to -40%"),
    ("restore by HAR, capping, as a share of sequential reading", "1/8 to 1/3"),
    ("read amplification of exact, HAR, capping", "HAR, capping 2 to 4"),
    ("5. restore by MFDedup against HAR, at most", "2.63 to 11.64 times"),
    ("as a share of sequential reading, mean and most", "most 1.5"),
    ("6. seeks of exact, HAR, capping, MFDedup", "thousands, 20 by MFDedup"),
    ("read amplification of MFDedup; against capping, HAR", "below 1; 34.32%, 50.19%"),
    ("7. index of two versions, of all kept, MB", "6.27 to 46.35, 26.81 to 64.45"),
    ("8. time of arranging, of that of perfect GC of exact, HAR, capping", "25% to 109%"),
    ("the same in bytes read and written", "-"),
    ("bytes read and written by arranging for each new byte", "-"),
    ("9. backup throughput (`dedupfs-bench`)", "as HAR and capping"),
    ("10. volumes, MB", "90 to 1,300"),
    ("largest active category, of the last version", "16.99% to 51.87%"),
];

/// The figures of a series.
pub struct Series {
    name: String,
    versions: usize,
    bytes: u64,
    distinct_bytes: u64,
    classes: Classes,
    index: [u64; 2],
    rivals: [Outcome; 3],
    arranged: Arranged,
    disk: Disk,
}

impl Series {
    /// Simulates all stores with a series.
    pub fn of(name: String, trace: &Trace, settings: &Settings) -> Self {
        Self {
            name,
            versions: trace.versions.len(),
            bytes: trace.versions.iter().map(|chunks| trace.bytes(chunks)).sum(),
            distinct_bytes: trace.lens.iter().copied().map(u64::from).sum(),
            classes: Classes::of(trace),
            index: index_bytes(trace, settings.kept),
            rivals: rivals(trace, settings),
            arranged: categories(trace, settings),
            disk: settings.disk,
        }
    }

    /// Returns the values of [`ROWS`].
    fn cells(&self) -> [String; ROWS.len()] {
        let [exact, har, capping] = &self.rivals;
        let arranged = &self.arranged;
        let means = [exact, har, capping].map(|outcome| Restore::mean(&outcome.restores));
        let mean = Restore::mean(&arranged.restores);
        let [internal, adjacent, skip, unique] = self.classes.all();
        let kinds = [internal, adjacent, skip, unique];
        let chunks = kinds.map(|kind| kind.chunks as f64);
        let join = |cells: &[String]| cells.join(", ");
        let duplicates = chunks[..3].iter().sum();
        let against = |ratio: f64| arranged.ratio / ratio;
        let others = [har.ratio, har.ratio_of_marker, capping.ratio, capping.ratio_of_marker].map(against);
        let rates: Vec<f64> = arranged.restores.iter().map(|restore| restore.rate(self.disk)).collect();
        let gains = arranged.restores.iter().zip(&har.restores);
        let gains = gains.map(|(one, other)| other.seconds(self.disk) / one.seconds(self.disk));
        let against_gc = |of: &dyn Fn(Moved) -> f64| {
            let one = |outcome: &Outcome| percent(of(arranged.moved_when_full), of(outcome.collected), 0);
            join(&[exact, har, capping].map(one))
        };
        let volumes = &arranged.volumes;
        let volume = |bytes: Option<&u64>| number(bytes.map_or(0.0, |bytes| *bytes as f64 / 1e6), 2);
        [
            format!("{} MB, {}", number(self.bytes as f64 / 1e6, 0), self.versions),
            number(self.bytes as f64 / self.distinct_bytes as f64, 2),
            join(&shares(chunks)),
            join(&shares(kinds.map(|kind| kind.bytes as f64))),
            percent(skip.chunks as f64, duplicates, 2),
            join(&[exact.ratio, arranged.ratio].map(|ratio| number(ratio, 2))),
            format!("{} to {} times", number(least(others), 2), number(most(others), 2)),
            join(&[har, capping].map(|outcome| percent(outcome.ratio - exact.ratio, exact.ratio, 1))),
            join(&[means[1], means[2]].map(|mean| number(mean.rate(self.disk), 2))),
            join(&means.map(|mean| number(mean.amplification(), 2))),
            format!("{} times", number(most(gains), 2)),
            format!("{}, {}", number(mean.rate(self.disk), 2), number(most(rates), 2)),
            join(&[means[0], means[1], means[2], mean].map(|mean| number(mean.seeks, 0))),
            format!(
                "{}; {}, {}",
                number(mean.amplification(), 2),
                percent(mean.amplification(), means[2].amplification(), 1),
                percent(mean.amplification(), means[1].amplification(), 1)
            ),
            join(&self.index.map(|bytes| number(bytes as f64 / 1e6, 2))),
            against_gc(&|moved| moved.seconds(self.disk)),
            against_gc(&|moved| moved.bytes() as f64),
            number(arranged.moved_for_new, 1),
            "`retention`, `layout`".to_owned(),
            format!("{} to {}", volume(volumes.iter().min()), volume(volumes.iter().max())),
            percent(arranged.largest_active, 1.0, 1),
        ]
    }

    /// Prints the restores from each store, and the result of removing versions.
    pub fn print_restores(&self) {
        println!("\nRestores of {}, in their order from containers, out of it from volumes:\n", self.name);
        println!(
            "{}",
            table::head(&[
                "store",
                "version kept",
                "MB a container",
                "read for a byte",
                "seeks",
                "model, s",
                "of sequential"
            ])
        );
        let stores = [("exact", 0), ("HAR", 1), ("capping", 2)].map(|(name, at)| (name, &self.rivals[at].restores));
        for (name, restores) in stores.into_iter().chain([("MFDedup", &self.arranged.restores)]) {
            for (title, at) in [("oldest", 0), ("middle", (restores.len() - 1) / 2), ("newest", restores.len() - 1)] {
                let one = restores[at];
                let factor = (name != "MFDedup").then(|| one.speed_factor());
                print_row!(
                    name,
                    title,
                    table::cell(factor, 2),
                    number(one.amplification(), 3),
                    one.seeks,
                    number(one.seconds(self.disk), 3),
                    number(one.rate(self.disk), 2)
                );
            }
        }
        let [oldest, middle] = self.arranged.freed.map(|bytes| number(bytes as f64 / 1e6, 2));
        println!(
            "\nThe oldest version goes with its volume of {oldest} MB, the middle one by cutting {middle} MB off its volume. Nothing is moved."
        );
    }
}

/// Prints the ten figures of some series.
pub fn print(series: &[Series]) {
    let names = series.iter().map(|series| series.name.as_str());
    println!("{}", table::head(&["", "paper"].into_iter().chain(names).collect::<Vec<_>>()));
    let columns: Vec<_> = series.iter().map(Series::cells).collect();
    for (at, (title, paper)) in ROWS.into_iter().enumerate() {
        let cells = columns.iter().map(|column| column[at].as_str());
        println!("{}", table::row(&[title, paper].into_iter().chain(cells).collect::<Vec<_>>()));
    }
}

fn percent(part: f64, whole: f64, decimals: usize) -> String {
    format!("{}%", number(100.0 * part / whole, decimals))
}

/// Returns parts in percent of their sum.
fn shares(parts: [f64; 4]) -> [String; 4] {
    parts.map(|part| percent(part, parts.iter().sum(), 2))
}

fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_small_series_are_those_of_a_calculation_by_hand() {
        // Chunks of 1 MB; version 3 brings 0 back; two versions are kept.
        let versions = vec![vec![0, 1, 2, 1], vec![1, 2, 3], vec![0, 2, 3]];
        let trace = Trace { lens: vec![1_000_000; 4], versions };
        let disk = Disk { seek_seconds: 1.0, bytes_per_second: 1e6 };
        let settings =
            Settings { kept: 2, container_bytes: 2_000_000, segment_bytes: 9_000_000, cap: 9, cache: 9, disk };
        let cells = Series::of("small".to_owned(), &trace, &settings).cells();
        assert_eq!(cells[..2], ["10 MB, 3", "2.50"]);
        // 1; 1 and 2, then 2 and 3; 0; the four.
        assert_eq!(cells[2], "10.00%, 40.00%, 10.00%, 40.00%");
        assert_eq!(cells[4], "16.67%");
        // 6 MB are kept. Exact: 0, 1, 2 and 3. MFDedup: 1, 2, 3, and the new 0; the old one went with volume 1.
        assert_eq!(cells[5], "1.50, 1.50");
        // Version 2 reads 1 and, of volume 3, 2 and 3; version 3 reads 2, 3 and 0 in a row: 5 s and 4 s for 3 MB each.
        assert_eq!(cells[11], "0.67, 0.75");
        // Of containers each of the two reads (0, 1), (2) and (3): 4 MB.
        assert_eq!((cells[9].as_str(), cells[13].as_str()), ("1.33, 1.33, 1.33", "1.00; 75.0%, 75.0%"));
        // Tables of 3 and 3 chunks; four chunks in all.
        assert_eq!(cells[14], "0.00, 0.00");
        // 3 MB were read and written behind each of the later versions, for 1 MB new each.
        assert_eq!(cells[17], "6.0");
        // Volume 1 had 0, volume 2 had 1. Of version 3, (1, 3) has 2, (2, 3) has 3, (3, 3) has 0.
        assert_eq!(cells[19..], ["1.00 to 1.00", "33.3%"]);
    }
}
