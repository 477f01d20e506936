//! Times by component as tables.

use std::fmt::Write as _;

use dedupfs::stats::{ComponentTime, Profile};

use super::table::Table;

pub(crate) fn profile(profile: &Profile) -> String {
    let secs = |ms: f64| ms / 1e3;
    let mut text = String::new();
    let (elapsed, busy, waited) = (secs(profile.elapsed_ms), secs(profile.busy_ms), secs(profile.waited_ms));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "since the mount {elapsed:.1} s ago; times are sums over all threads\n");
    let _ = writeln!(text, "at work, {busy:.3} s\n{}", table("component", &profile.components));
    let _ = write!(text, "waiting, {waited:.3} s\n{}", table("for", &profile.waits));
    text
}

fn table(title: &str, times: &[ComponentTime]) -> String {
    let mut table = Table::new(&[&format!("  {title:<20}"), "times", "seconds", "mean, us", "share"]);
    for ComponentTime { name, times, total_ms, mean_us, share } in times {
        let (secs, percent) = (total_ms / 1e3, share * 100.0);
        table.row([
            format!("  {name}"),
            times.to_string(),
            format!("{secs:.3}"),
            format!("{mean_us:.1}"),
            format!("{percent:.1}%"),
        ]);
    }
    table.show(&[1, 2, 3, 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_below_each_other() {
        let time = |name: &str, times, total_ms: f64, share| ComponentTime {
            name: name.to_owned(),
            times,
            total_ms,
            mean_us: total_ms * 1e3 / times as f64,
            share,
        };
        let shown = profile(&Profile {
            elapsed_ms: 61_000.0,
            busy_ms: 1500.0,
            waited_ms: 20.0,
            components: vec![time("compression", 10, 1200.0, 0.8), time("chunking", 1000, 300.0, 0.2)],
            waits: vec![time("store lock", 2, 20.0, 1.0)],
        });
        let expected = "\
since the mount 61.0 s ago; times are sums over all threads

at work, 1.500 s
  component             times  seconds  mean, us  share
  compression              10    1.200  120000.0  80.0%
  chunking               1000    0.300     300.0  20.0%

waiting, 0.020 s
  for                   times  seconds  mean, us   share
  store lock                2    0.020   10000.0  100.0%
";
        assert_eq!(shown, expected);
    }
}
