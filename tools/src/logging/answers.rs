//! Keeps one line of the FUSE library out of the log.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The library's message when the kernel no longer wants an answer, because the calling process was killed. That is no error.
const UNWANTED: &str = "Failed to send FUSE reply: No such file or directory";

pub(crate) struct UnwantedAnswers;

impl<S: Subscriber> Layer<S> for UnwantedAnswers {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let mut message = Message(String::new());
        event.record(&mut message);
        !message.0.starts_with(UNWANTED)
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a String cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::logging::LogSink;

    #[test]
    fn regression_an_answer_that_nobody_waits_for_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let sink = LogSink::default();
        sink.switch_to(&path).unwrap();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(sink).finish().with(UnwantedAnswers);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("Failed to send FUSE reply: No such file or directory (os error 2)");
            tracing::error!("Failed to send FUSE reply: Invalid argument (os error 22)");
            tracing::error!("No such file or directory");
        });
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.contains("Invalid argument") && lines.contains(": No such file or directory\n"), "{lines}");
    }
}
