//! Sizes on the command line: `8K`, `4M`, `512MiB`, `65536`. Powers of 1024.

use dedupfs::config::{KIB, MEMORY_BYTES_MIN, MIB};

const UNITS: [(&str, u64); 5] = [("", 1), ("K", KIB), ("M", MIB), ("G", 1024 * MIB), ("T", 1024 * 1024 * MIB)];

/// Parses a size in bytes.
///
/// # Errors
/// The advice for the user, if the text is no size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let advice = "a size is a whole number, optionally with K, M, G or T (powers of 1024), such as 8K or 512M";
    let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits).ok_or(advice)?;
    if number.is_empty() {
        return Err(advice.to_owned());
    }
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(advice)?;
    let number: u64 = number.parse().map_err(|_| format!("{number} is too large"))?;
    number.checked_mul(*factor).ok_or_else(|| format!("{text} is too large"))
}

fn parse_between(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let size = parse_size(text)?;
    if (min..=max).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{} is out of range: at least {}, at most {}", show(size), show(min), show(max)))
    }
}

pub(crate) fn parse_chunk(text: &str) -> Result<u32, String> {
    parse_between(text, 4 * KIB, 64 * KIB).map(|size| size as u32)
}

/// Parses a container size: 1M to 64M in whole pages, so that direct I/O stays aligned.
pub(crate) fn parse_container(text: &str) -> Result<u32, String> {
    let size = parse_between(text, MIB, 64 * MIB)?;
    if size.is_multiple_of(4 * KIB) { Ok(size as u32) } else { Err(format!("{size} is not a multiple of 4096")) }
}

pub(crate) fn parse_tanker(text: &str) -> Result<u32, String> {
    parse_between(text, KIB, 64 * MIB).map(|number| number as u32)
}

pub(crate) fn parse_buckets(text: &str) -> Result<u32, String> {
    let buckets = parse_between(text, 1, 64 * KIB)?;
    if buckets.is_power_of_two() { Ok(buckets as u32) } else { Err(format!("{buckets} is not a power of two")) }
}

pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    parse_between(text, MEMORY_BYTES_MIN, 1024 * 1024 * MIB)
}

/// A warning, if this is more memory than the computer has. Swap space and limits of control groups are not looked at.
pub(crate) fn beyond_machine(memory_bytes: u64) -> Option<String> {
    let machine = rustix::system::sysinfo();
    let there_bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
    (memory_bytes > there_bytes).then(|| {
        format!(
            "{} of memory for the pool are more than this computer has ({}): the kernel would kill the daemon. Unmount, and mount with less --memory",
            show(memory_bytes),
            show(there_bytes)
        )
    })
}

/// Formats a size for people: exact when it is a round number, otherwise with three digits.
pub(crate) fn show(bytes: u64) -> String {
    let (name, factor) = UNITS.iter().rev().find(|(_, factor)| bytes >= *factor).unwrap_or(&UNITS[0]);
    let suffix = if name.is_empty() { " B".to_owned() } else { format!(" {name}iB") };
    if bytes.is_multiple_of(*factor) {
        return format!("{}{suffix}", bytes / factor);
    }
    let value = bytes as f64 / *factor as f64;
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_machine_does_not_have_is_told() {
        assert_eq!(beyond_machine(MEMORY_BYTES_MIN), None);
        assert!(beyond_machine(u64::MAX).is_some_and(|warning| warning.contains("more than this computer has")));
    }

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65536),
            ("8K", 8192),
            ("8k", 8192),
            ("8KiB", 8192),
            ("8kb", 8192),
            ("4M", 4 << 20),
            ("3G", 3 << 30),
            ("2T", 2 << 40),
            ("100B", 100),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_advice() {
        for text in ["", "K", "-1", "8 K", "8Q", "1.5M", "8KK", "0x10", "1e3", "8ä", "iB", "8KBi"] {
            assert!(parse_size(text).is_err_and(|error| error.contains("8K or 512M")), "{text}");
        }
        assert!(parse_size("18446744073709551616").is_err());
        assert!(parse_size("99999999999T").is_err_and(|error| error.contains("too large")));
    }

    #[test]
    fn ranges_are_named() {
        assert_eq!(parse_chunk("8K"), Ok(8192));
        assert_eq!(parse_chunk("64K"), Ok(65536));
        assert!(parse_chunk("65537").is_err_and(|error| error.contains("at most 64 KiB")));
        assert!(parse_chunk("2K").is_err_and(|error| error.contains("2 KiB is out of range: at least 4 KiB")));
        assert_eq!(parse_container("4M"), Ok(4 << 20));
        assert!(parse_container("1048577").is_err_and(|error| error.contains("4096")));
        assert!(parse_memory("1M").is_err());
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (8192, "8 KiB"),
            (1536, "1.50 KiB"),
            (15 * 1024 + 512, "15.5 KiB"),
            (700 * 1024 + 1, "700 KiB"),
            (3 << 30, "3 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
