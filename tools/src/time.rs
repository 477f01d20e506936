//! Points in time for people: UTC, so that reports of several machines can be compared.

/// Days of 400 years of the Gregorian calendar.
const DAYS_PER_ERA: u64 = 146_097;
const DAY_SECS: u64 = 86_400;

/// Seconds since 1970 as `2026-11-22 02:41:50 UTC`.
#[must_use]
pub fn show(secs: u64) -> String {
    let (days, second) = (secs / DAY_SECS, secs % DAY_SECS);
    // Years begin in March here, so that the day that leap years add is the last of one. 719468 days lie between
    // 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_709_164_800, "2024-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
        ] {
            assert_eq!(show(secs), format!("{text} UTC"));
        }
        // Nothing from disk makes it fail.
        assert!(show(u64::MAX).ends_with("UTC"));
    }
}
