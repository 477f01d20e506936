//! Tables of `retention`: the steps of a policy, and all policies side by side.

use crate::figures::Figures;
use crate::retention::Row;
use crate::table::{cell, head, number, row};

/// Columns of the TSV file.
const COLUMNS: &str = "policy step gc_when versions logical_bytes physical_bytes du_bytes highest_du_bytes live_bytes live_du_bytes \
    live_by ratio moved_bytes freed_bytes gc_read_bytes gc_written_bytes garbage_left_bytes containers_freed gc_seconds write_mb_per_s \
    beside_percent restore_newest_mb_per_s restore_oldest_mb_per_s restore_fresh_mb_per_s data_container_bytes recipe_container_bytes \
    namespace_bytes index_bytes export_bytes export_recipe_bytes live_data_container_bytes live_recipe_container_bytes \
    live_namespace_bytes live_index_bytes live_export_bytes live_export_recipe_bytes";

/// The physical bytes, and their parts. `live_` before a name is the same of the fresh pool.
pub const PARTS: &str = "physical_bytes data_container_bytes recipe_container_bytes namespace_bytes index_bytes export_bytes \
    export_recipe_bytes";

/// Columns of the table of steps: head, name, unit and decimals.
const STEPS: [(&str, &str, f64, usize); 13] = [
    ("step", "step", 1.0, 0),
    ("versions", "versions", 1.0, 0),
    ("physical, MB", "physical_bytes", 1e6, 1),
    ("live minimum, MB", "live_bytes", 1e6, 1),
    ("ratio", "ratio", 1.0, 2),
    ("highest, MB", "highest_du_bytes", 1e6, 1),
    ("moved, MB", "moved_bytes", 1e6, 1),
    ("freed, MB", "freed_bytes", 1e6, 1),
    ("gc, s", "gc_seconds", 1.0, 2),
    ("written, MB/s", "write_mb_per_s", 1.0, 0),
    ("restored, MB/s: newest", "restore_newest_mb_per_s", 1.0, 0),
    ("oldest", "restore_oldest_mb_per_s", 1.0, 0),
    ("newest of a fresh pool", "restore_fresh_mb_per_s", 1.0, 0),
];

/// Place of "gc was", which is no number, in the table of steps.
const GC_WAS: usize = 9;

fn text<'a>(row: &'a Row, name: &str) -> &'a str {
    row.get(name).map_or("", String::as_str)
}

fn value(row: &Row, name: &str) -> Option<f64> {
    text(row, name).parse().ok()
}

/// Returns the TSV file.
pub fn tsv(rows: &[Row]) -> String {
    let names: Vec<&str> = COLUMNS.split(' ').collect();
    let lines = rows.iter().map(|line| names.iter().map(|name| text(line, name)).collect::<Vec<_>>());
    std::iter::once(names.clone()).chain(lines).map(|fields| fields.join("\t") + "\n").collect()
}

/// Returns a step as a message.
pub fn progress(row: &Row) -> String {
    let of = |name, unit, decimals| cell(value(row, name).map(|value| value / unit), decimals);
    format!(
        "{}: {} MB, {} of {}, gc {} {} s, moved {} MB, written at {} MB/s: step {}",
        text(row, "policy"),
        of("physical_bytes", 1e6, 1),
        of("ratio", 1.0, 2),
        text(row, "live_by"),
        text(row, "gc_when"),
        of("gc_seconds", 1.0, 2),
        of("moved_bytes", 1e6, 1),
        of("write_mb_per_s", 1.0, 0),
        text(row, "step")
    )
}

/// Prints every step of a policy at which restores were measured.
pub fn print_steps(rows: &[Row], policy: &str, every: u64, last: u64) {
    let mut heads: Vec<&str> = STEPS.iter().map(|step| step.0).collect();
    heads.insert(GC_WAS, "gc was");
    println!("\n{}", head(&heads));
    for line in rows.iter().filter(|line| text(line, "policy") == policy) {
        let step = value(line, "step").unwrap_or(0.0) as u64;
        if step.is_multiple_of(every) || step == last {
            let cells = STEPS.iter().map(|(_, name, unit, decimals)| {
                let is_estimate = *name == "live_bytes" && text(line, "live_by") == "estimate";
                let note = if is_estimate { " (estimate)" } else { "" };
                cell(value(line, name).map(|value| value / unit), *decimals) + note
            });
            let mut cells: Vec<String> = cells.collect();
            cells.insert(GC_WAS, text(line, "gc_when").replace("none", "-"));
            println!("{}", row(&cells));
        }
    }
}

/// Notes the figures of a step for the summary: those with gc, and all restores.
fn note(figures: &mut Figures, line: &Row) {
    let (policy, when) = (text(line, "policy"), text(line, "gc_when"));
    for name in COLUMNS.split(' ').filter(|name| when != "none" || name.starts_with("restore")) {
        if let Some(value) = value(line, name) {
            figures.note(name, policy, value);
            figures.note(&format!("{name} {when}"), policy, value);
        }
    }
    let of = |name: &str| value(line, name).unwrap_or(f64::NAN);
    if when != "none" {
        figures.note("highest", policy, of("highest_du_bytes") / of("live_bytes"));
    }
    if text(line, "live_by") == "fresh" {
        let (content, recipes) = ("data_container_bytes", "recipe_container_bytes");
        let rest = |all, prefix: &str| of(all) - of(&format!("{prefix}{content}")) - of(&format!("{prefix}{recipes}"));
        figures.note("fresh", policy, of("ratio"));
        figures.note("content", policy, of(content) / of("live_data_container_bytes"));
        figures.note("recipes", policy, of(recipes) / of("live_recipe_container_bytes"));
        figures.note("rest", policy, rest("physical_bytes", "") / rest("live_bytes", "live_"));
    }
}

/// A cell of the summary: figures and the name of a policy to text.
type Cell = fn(&Figures, &str) -> String;

fn range(figures: &Figures, name: &str, policy: &str, decimals: usize) -> String {
    let (median, values) = (figures.median(name, policy), figures.values(name, policy));
    let [least, most] = [f64::min, f64::max].map(|end| cell(values.iter().copied().reduce(end), decimals));
    format!("{} ({least} to {most})", cell(median, decimals))
}

fn sum_mb(figures: &Figures, name: &str, policy: &str) -> f64 {
    figures.values(name, policy).iter().sum::<f64>() / 1e6
}

fn pair(cells: [String; 2]) -> String {
    cells.join(", ")
}

const SUMMARY: [(&str, Cell); 16] = [
    ("physical against fresh pools, worst", |all, of| cell(all.most("fresh", of), 2)),
    ("the same in all steps, estimates too", |all, of| range(all, "ratio", of, 2)),
    ("of its content, recipes, all else: worst", |all, of| {
        ["content", "recipes", "rest"].map(|name| cell(all.most(name, of), 2)).join(", ")
    }),
    ("highest size within a step against the minimum", |all, of| range(all, "highest", of, 2)),
    ("moved, freed, MB", |all, of| pair(["moved_bytes", "freed_bytes"].map(|name| number(sum_mb(all, name, of), 1)))),
    ("moved for each byte freed", |all, of| {
        let freed = sum_mb(all, "freed_bytes", of);
        cell((freed > 0.0).then(|| sum_mb(all, "moved_bytes", of) / freed), 2)
    }),
    ("gc read, wrote, MB", |all, of| match all.values("gc_read_bytes", of) {
        [] => "-".to_owned(),
        _ => pair(["gc_read_bytes", "gc_written_bytes"].map(|name| number(sum_mb(all, name, of), 1))),
    }),
    ("gc before a backup, beside one, median seconds", |all, of| {
        pair(["gc_seconds before", "gc_seconds beside"].map(|name| cell(all.median(name, of), 2)))
    }),
    ("backup after gc, MB/s", |all, of| range(all, "write_mb_per_s before", of, 0)),
    ("backup beside gc, MB/s", |all, of| range(all, "write_mb_per_s beside", of, 0)),
    ("beside against after, medians", |all, of| {
        let [beside, after] = ["beside", "before"].map(|when| all.median(&format!("write_mb_per_s {when}"), of));
        cell(beside.zip(after).map(|(beside, after)| beside / after), 2)
    }),
    ("part of the backup during which gc ran, median %", |all, of| cell(all.median("beside_percent", of), 0)),
    ("restore of the newest, first and last, MB/s", |all, of| {
        let rates = all.values("restore_newest_mb_per_s", of);
        pair([rates.first(), rates.last()].map(|rate| cell(rate.copied(), 0)))
    }),
    ("restore of the newest, MB/s", |all, of| range(all, "restore_newest_mb_per_s", of, 0)),
    ("restore of the oldest, MB/s", |all, of| range(all, "restore_oldest_mb_per_s", of, 0)),
    ("restore of the newest of a fresh pool, MB/s", |all, of| range(all, "restore_fresh_mb_per_s", of, 0)),
];

/// Prints a column for each policy, over the steps with gc.
pub fn print_summary(rows: &[Row], policies: &[(String, String)]) {
    let mut figures = Figures::default();
    rows.iter().for_each(|line| note(&mut figures, line));
    let line = |title: &str, cell: &dyn Fn(&str) -> String| {
        let cells = policies.iter().map(|(policy, _)| cell(policy));
        std::iter::once(title.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    println!("\n{}", head(&line("median (least to most)", &str::to_owned)));
    for (title, figure) in SUMMARY {
        println!("{}", row(&line(title, &|policy| figure(&figures, policy))));
    }
}
