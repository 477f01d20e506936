//! Durations on the command line: `90s`, `30m`, `1h 30m`.

use std::time::Duration;

use jiff::{SignedDuration, Unit};

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let advice = "a time is a number with s, m, h or d, such as 90s, 30m or 2h";
    // A bare number would be ambiguous.
    let span: jiff::Span = text.parse().map_err(|_| advice.to_owned())?;
    let exact = |span: jiff::Span| span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok();
    let duration = exact(span).and_then(|duration: SignedDuration| Duration::try_from(duration).ok());
    duration.filter(|duration| duration.as_secs() > 0).ok_or_else(|| advice.to_owned())
}

/// Formats a duration for people, such as `2h 5m`. Shows milliseconds only below 10 seconds.
pub(crate) fn show(duration_ms: u64) -> String {
    let Ok(millis) = i64::try_from(duration_ms) else { return "for ever".to_owned() };
    let smallest = if duration_ms < 10_000 { Unit::Millisecond } else { Unit::Second };
    let rounded = SignedDuration::from_millis(millis).round(smallest);
    rounded.map_or_else(|_| format!("{duration_ms} ms"), |duration| format!("{duration:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, secs) in
            [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h 30m", 5400), ("1h30m", 5400), ("1d", 86_400)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "5", "-3m", "0s", "soon", "10ms", "1 month", "99999999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_shown_in_sensible_units() {
        assert_eq!(show(1234), "1s 234ms");
        assert_eq!(show(75_400), "1m 15s");
        assert_eq!(show(7_200_000), "2h");
        assert_eq!(show(0), "0s");
        assert_eq!(show(u64::MAX), "for ever");
    }
}
