//! Errors that the engine logs: where nothing is wrong with the disks, there must be none.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The first error of the present life. One world runs at a time.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the first error.
struct Errors;

impl<S: tracing::Subscriber> Layer<S> for Errors {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut words = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn Debug| {
            words.push_str(&format!("{field}: {value:?} "));
        });
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(words);
    }
}

/// Keeps errors from now on; prints the whole log, too, if it is part of a story.
pub fn keep(with_log: bool) {
    let log = with_log.then(|| {
        let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
        let layer = tracing_subscriber::fmt::layer().without_time().with_ansi(false);
        layer.with_filter(tracing_subscriber::EnvFilter::new(filter))
    });
    tracing_subscriber::registry().with(Errors.with_filter(LevelFilter::ERROR)).with(log).init();
}

/// Takes the first error since the last call.
pub fn take() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).take()
}
