//! Lines for the journal: `<N>` with the level of syslog(3) in front, and no time, which the journal adds itself.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable that systemd sets to device and inode of the journal's stream.
const VARIABLE: &str = "JOURNAL_STREAM";

pub(crate) fn has_stderr() -> bool {
    let own = rustix::fs::fstat(rustix::stdio::stderr()).ok().map(|stat| (stat.st_dev, stat.st_ino));
    std::env::var(VARIABLE).ok().and_then(|stream| parse(&stream)).is_some_and(|stream| Some(stream) == own)
}

fn parse(stream: &str) -> Option<(u64, u64)> {
    let (device, inode) = stream.split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

pub(crate) struct JournalFormat(Format<Full, ()>);

impl Default for JournalFormat {
    fn default() -> Self {
        // The level is already in front.
        Self(tracing_subscriber::fmt::format().without_time().with_target(false).with_level(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        let level = priority(*event.metadata().level());
        // In the journal, each line is an entry of its own.
        text.lines().try_for_each(|line| writeln!(writer, "<{level}>{line}"))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_has_its_level_and_no_time() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .event_format(JournalFormat::default())
            .with_max_level(Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(pool = "/p", "lost");
            tracing::warn!("two\nlines");
            tracing::info!("mounted");
            tracing::debug!("asked");
        });
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "<3>lost pool=\"/p\"");
        assert!(lines[1..lines.len() - 2].iter().all(|line| line.starts_with("<4>")), "{text}");
        assert_eq!(lines[lines.len() - 2..], ["<6>mounted", "<7>asked"]);
    }

    #[test]
    fn streams_are_device_and_inode() {
        assert_eq!(parse("8:1234"), Some((8, 1234)));
        for odd in ["", "8", "8:", ":1", "a:b", "1:2:3"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
