//! The tables of `depth`: a row for each kind of work, a column for each size.

use crate::depth::SCRUB_SECS;
use crate::figures::Figures;
use crate::table::{cell, human};
use crate::{print_row, table};

/// Work that synced writes are measured beside.
const WORK: [&str; 4] = ["filling", "gc", "check", "scrub"];

/// A row: its text, the name of the figure, the figure's unit, and decimals.
type Row = (&'static str, &'static str, f64, usize);

const MIB: f64 = 1_048_576.0;
const ROWS: [Row; 26] = [
    ("files", "files", 1.0, 0),
    ("chunks", "chunks", 1.0, 0),
    ("index, MiB", "index", MIB, 1),
    ("checkpoints for each GiB written", "checkpoints per GiB", 1.0, 2),
    ("time of each, ms", "checkpoints", 1.0, 0),
    ("exports for each GiB written", "export per GiB", 1.0, 2),
    ("time of each, ms", "export", 1.0, 0),
    ("mounted in, s", "mount", 1.0, 3),
    ("statistics, s", "stats", 1.0, 4),
    ("kB read", "stats read", 1e3, 1),
    ("stored again, s", "again", 1.0, 2),
    ("MB of the index read", "again read", 1e6, 3),
    ("stored anew, s", "new", 1.0, 2),
    ("MB of the index read", "new read", 1e6, 3),
    ("gc of nothing, s", "idle gc", 1.0, 4),
    ("MB read", "idle gc read", 1e6, 3),
    ("gc of 1%, s", "gc", 1.0, 3),
    ("MB read", "gc read", 1e6, 1),
    ("MB read for guides meanwhile", "gc guides", 1e6, 1),
    ("memory of the daemon, MiB", "memory", MIB, 0),
    ("fsck, s", "fsck", 1.0, 2),
    ("of the processors, s", "fsck cpu", 1.0, 2),
    ("memory of fsck at most, MiB", "fsck memory", MIB, 0),
    ("trial recovery, s", "trial", 1.0, 2),
    ("of the processors, s", "trial cpu", 1.0, 2),
    ("memory of it at most, MiB", "trial memory", MIB, 0),
];

/// Returns how many times a value is that of the line through the first two points, at `x`. Nothing if the line has no value there.
fn beside_line(points: &[(f64, f64)]) -> Option<f64> {
    let [(x0, y0), (x1, y1), .., (x, y)] = points else { return None };
    // A line that falls proves nothing.
    let slope = ((y1 - y0) / (x1 - x0)).max(0.0);
    let line = y1 + slope * (x - x1);
    (line > 0.0).then(|| y / line)
}

/// Prints the tables.
pub fn print(figures: &Figures, sizes: &[u64], probe: u64) {
    println!(
        "- stored is {}; removed is 1% of the files, one at least; read is by the daemon, from the page cache too",
        human(probe)
    );
    println!("- memory of the daemon after all work; that of fsck is looked up ten times a second");
    println!("- the last column: the last size beside the line through the first two, by the bytes in the pool");
    let named = |name: &str, size: &u64| figures.median(&format!("{name} {size}"), "dedupfs");
    let columns: Vec<_> = ["data in the pool".to_owned()]
        .into_iter()
        .chain(sizes.iter().map(|size| human(*size)))
        .chain(["beside the line".to_owned()])
        .collect();
    println!("\n{}", table::head(&columns));
    for (text, name, unit, decimals) in ROWS {
        let values = sizes.iter().map(|size| cell(named(name, size).map(|value| value / unit), decimals));
        let points: Vec<_> = sizes.iter().filter_map(|size| Some((*size as f64, named(name, size)?))).collect();
        let row: Vec<_> = [text.to_owned()].into_iter().chain(values).chain([cell(beside_line(&points), 2)]).collect();
        println!("{}", table::row(&row));
    }
    println!(
        "\nMilliseconds that the sync of a small file takes, one each 50 ms, beside other work (gc with checkpoint and export, a scrub of {SCRUB_SECS} s at most):\n"
    );
    println!("{}", table::head(&["data in the pool", "work", "syncs", "median", "99%", "longest"]));
    for (size, work) in sizes.iter().flat_map(|size| WORK.map(|work| (size, work))) {
        let figure = |of: &str| format!("{work} synced {of} {size}");
        let median = |of: &str| cell(figures.median(&figure(of), "dedupfs"), 1);
        let longest = cell(figures.most(&figure("100"), "dedupfs"), 1);
        let count = cell(figures.median(&figure("count"), "dedupfs"), 0);
        print_row!(human(*size), work, count, median("50"), median("99"), longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_size_is_compared_with_a_line() {
        assert_eq!(beside_line(&[(1.0, 2.0), (2.0, 4.0), (4.0, 12.0)]), Some(1.5));
        assert_eq!(beside_line(&[(1.0, 4.0), (2.0, 2.0), (4.0, 3.0)]), Some(1.5), "the line does not fall");
        assert_eq!(beside_line(&[(1.0, 0.0), (2.0, 0.0), (4.0, 1.0)]), None);
        assert_eq!(beside_line(&[(1.0, 2.0), (2.0, 4.0)]), None, "two sizes are the line");
    }
}
