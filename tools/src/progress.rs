//! Progress of long work on a terminal; nothing where there is none.

use std::time::Duration;

use dedupfs::pool::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// One bar for the phase that runs, on the standard error output.
#[derive(Default)]
pub struct Bars {
    bar: Mutex<Option<ProgressBar>>,
}

impl Progress for Bars {
    fn start(&self, what: &str, total: u64) {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let form = if total == 0 {
            "{msg}: {human_pos} done, {elapsed}"
        } else {
            "{msg}: {wide_bar} {human_pos} of {human_len}, {elapsed}, {eta} left"
        };
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(REDRAW_INTERVAL);
        if let Some(old) = self.bar.lock().replace(bar) {
            old.finish_and_clear();
        }
    }

    fn advance(&self, by: u64) {
        if let Some(bar) = &*self.bar.lock() {
            bar.inc(by);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.bar.lock().take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.finish();
    }
}
