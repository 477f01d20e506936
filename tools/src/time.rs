//! Points in time for people, in UTC, so that reports of several machines can be compared.

use jiff::Timestamp;

/// Formats seconds since 1970, such as `2026-11-22 02:41:50 UTC`.
pub(crate) fn show(secs: u64) -> String {
    let time = i64::try_from(secs).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    time.map_or_else(|| format!("{secs} s after 1970"), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (u64::MAX, "18446744073709551615 s after 1970"),
        ] {
            assert_eq!(show(secs), text);
        }
    }
}
