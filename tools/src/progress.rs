//! Progress of long work on standard error: a bar on a terminal, otherwise a line now and then.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use dedupfs::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest time between two lines of JSON.
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two lines of text. Shorter work leaves no line in a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The current step.
enum Step {
    Bar(ProgressBar),
    Lines { what: String, total: u64, done: u64, started: Instant, told: Instant },
}

/// Shows the current step as one bar or as repeated lines.
#[derive(Default)]
pub struct Bars {
    step: Mutex<Option<Step>>,
}

/// Formats progress, such as "1234 of 5678, 100/s, 44 s left".
fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let mut text = format!("{what}: {done}");
    // Writing to a String cannot fail.
    let _ = match total {
        0 => write!(text, " done, {rate:.0}/s"),
        _ if done == 0 => write!(text, " of {total}"),
        _ => {
            let left_secs = total.saturating_sub(done) as f64 / rate;
            write!(text, " of {total}, {rate:.0}/s, {left_secs:.0} s left")
        }
    };
    text
}

/// Writes progress as lines of JSON to standard output, at most one a second. `"message_type": "status"` distinguishes them from the
/// result.
#[derive(Default)]
pub struct JsonLines {
    step: Mutex<Option<JsonStep>>,
}

struct JsonStep {
    what: String,
    total: u64,
    done: u64,
    started: Instant,
    told: Instant,
}

impl JsonStep {
    fn line(&self) -> serde_json::Value {
        let elapsed = self.started.elapsed();
        let left_ms = (self.done > 0 && self.total > 0)
            .then(|| elapsed.as_millis() * u128::from(self.total.saturating_sub(self.done)) / u128::from(self.done));
        serde_json::json!({
            "message_type": "status",
            "step": self.what,
            "done": self.done,
            "total": self.total,
            "step_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            "left_ms": left_ms.and_then(|left| u64::try_from(left).ok()),
        })
    }
}

impl Progress for JsonLines {
    fn start(&self, what: &str, total: u64) {
        let now = Instant::now();
        *self.step.lock() = Some(JsonStep { what: what.to_owned(), total, done: 0, started: now, told: now });
    }

    fn advance(&self, by: u64) {
        if let Some(step) = &mut *self.step.lock() {
            step.done += by;
            if step.told.elapsed() >= JSON_INTERVAL {
                step.told = Instant::now();
                // The reader may be gone; the work goes on.
                let _ = writeln!(std::io::stdout(), "{}", step.line());
            }
        }
    }

    fn finish(&self) {
        *self.step.lock() = None;
    }

    fn say(&self, text: &str) {
        tell(text);
    }
}

/// Prints a line on standard error. A failure to print it does not stop the work.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn bar(what: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let form = if total == 0 {
        "{msg}: {human_pos} done, {rate}, {elapsed}"
    } else {
        "{msg}: {wide_bar} {human_pos} of {human_len}, {rate}, {elapsed}, {eta} left"
    };
    if let Ok(style) = ProgressStyle::with_template(form) {
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

impl Progress for Bars {
    fn start(&self, what: &str, total: u64) {
        self.finish();
        let now = Instant::now();
        *self.step.lock() = Some(if std::io::stderr().is_terminal() {
            Step::Bar(bar(what, total))
        } else {
            Step::Lines { what: what.to_owned(), total, done: 0, started: now, told: now }
        });
    }

    fn advance(&self, by: u64) {
        match &mut *self.step.lock() {
            Some(Step::Bar(bar)) => bar.inc(by),
            Some(Step::Lines { what, total, done, started, told }) => {
                *done += by;
                if told.elapsed() >= LINE_INTERVAL {
                    *told = Instant::now();
                    tell(&line(what, *done, *total, started.elapsed()));
                }
            }
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(Step::Bar(bar)) = self.step.lock().take() {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        match &*self.step.lock() {
            Some(Step::Bar(bar)) => bar.suspend(|| tell(text)),
            _ => tell(text),
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_how_much_is_left() {
        let lines = JsonLines::default();
        lines.start("emptying", 300);
        lines.advance(100);
        let step = lines.step.lock();
        let step = step.as_ref().unwrap();
        let line = JsonStep {
            started: step.started.checked_sub(Duration::from_secs(10)).unwrap(),
            what: step.what.clone(),
            ..*step
        }
        .line();
        assert_eq!(
            (&line["message_type"], &line["done"], &line["total"]),
            (&"status".into(), &100.into(), &300.into())
        );
        assert!((20_000..21_000).contains(&line["left_ms"].as_u64().unwrap()), "{line}");
        assert!(!line.to_string().contains('\n'));
    }

    #[test]
    fn lines_have_rate_and_time_left() {
        let elapsed = Duration::from_secs(20);
        assert_eq!(line("reading", 500, 2000, elapsed), "reading: 500 of 2000, 25/s, 60 s left");
        assert_eq!(line("reading", 0, 2000, elapsed), "reading: 0 of 2000");
        assert_eq!(line("marking", 500, 0, elapsed), "marking: 500 done, 25/s");
        assert_eq!(line("marking", 5, 5, Duration::ZERO), "marking: 5 of 5, 5000/s, 0 s left");
    }
}
