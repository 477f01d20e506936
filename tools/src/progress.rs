//! Progress of long work on standard error: a bar on a terminal, otherwise a line now and then.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use dedupfs::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use crate::report::message;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two lines of text. Shorter work leaves no line in a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

enum Shown {
    Bar(ProgressBar),
    Lines(Step),
}

/// A step of the work, and the time of the last line about it.
struct Step {
    what: String,
    total: u64,
    done: u64,
    started: Instant,
    told: Instant,
}

#[derive(Default)]
pub(crate) struct Bars {
    step: Mutex<Option<Shown>>,
}

/// Progress of work that is to end early once `is_cancelled`.
pub(crate) struct Cancellable<'a, C> {
    pub(crate) listener: &'a dyn Progress,
    pub(crate) is_cancelled: C,
}

impl<C: Fn() -> bool + Sync> Progress for Cancellable<'_, C> {
    fn start(&self, what: &str, total: u64) {
        self.listener.start(what, total);
    }

    fn advance(&self, by: u64) {
        self.listener.advance(by);
    }

    fn finish(&self) {
        self.listener.finish();
    }

    fn say(&self, line: &str) {
        self.listener.say(line);
    }

    fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }
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

/// Writes progress as lines of JSON of type `progress` to standard output, at most one a second.
#[derive(Default)]
pub(crate) struct JsonLines {
    step: Mutex<Option<Step>>,
}

impl Step {
    fn new(what: &str, total: u64) -> Self {
        let now = Instant::now();
        Self { what: what.to_owned(), total, done: 0, started: now, told: now }
    }

    /// Adds to the work done, and tells of it if `interval` has passed since the last line.
    fn advance(&mut self, by: u64, interval: Duration, tell: impl FnOnce(&Self)) {
        self.done += by;
        if self.told.elapsed() >= interval {
            self.told = Instant::now();
            tell(self);
        }
    }

    fn json(&self) -> serde_json::Value {
        let elapsed = self.started.elapsed();
        let left_ms = (self.done > 0 && self.total > 0)
            .then(|| elapsed.as_millis() * u128::from(self.total.saturating_sub(self.done)) / u128::from(self.done));
        serde_json::json!({
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
        *self.step.lock() = Some(Step::new(what, total));
    }

    fn advance(&self, by: u64) {
        if let Some(step) = &mut *self.step.lock() {
            // The reader may be gone; the work goes on.
            step.advance(by, JSON_INTERVAL, |step| {
                let _gone = message("progress", &step.json()).map(|line| std::io::stdout().write_all(line.as_bytes()));
            });
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
        *self.step.lock() = Some(if std::io::stderr().is_terminal() {
            Shown::Bar(bar(what, total))
        } else {
            Shown::Lines(Step::new(what, total))
        });
    }

    fn advance(&self, by: u64) {
        match &mut *self.step.lock() {
            Some(Shown::Bar(bar)) => bar.inc(by),
            Some(Shown::Lines(step)) => step.advance(by, LINE_INTERVAL, |step| {
                tell(&line(&step.what, step.done, step.total, step.started.elapsed()));
            }),
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(Shown::Bar(bar)) = self.step.lock().take() {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        match &*self.step.lock() {
            Some(Shown::Bar(bar)) => bar.suspend(|| tell(text)),
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
        let line = Step {
            started: step.started.checked_sub(Duration::from_secs(10)).unwrap(),
            what: step.what.clone(),
            ..*step
        }
        .json();
        assert_eq!((&line["step"], &line["done"], &line["total"]), (&"emptying".into(), &100.into(), &300.into()));
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
