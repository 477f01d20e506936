//! Options that several commands have, and parsers of their values.

use std::convert::Infallible;
use std::path::PathBuf;

use dedupfs_tools::parse_size;

use crate::{Outcome, machine, usage};

/// Options for another program, given as one argument.
#[derive(Clone, Debug, Default)]
pub struct Words(pub Vec<String>);

impl std::str::FromStr for Words {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.split_whitespace().map(str::to_owned).collect()))
    }
}

impl std::fmt::Display for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// Options of commands that make a pool.
#[derive(clap::Args, Clone)]
pub struct PoolOptions {
    /// Directory on the filesystem to measure [default: TMPDIR or /var/tmp]
    #[arg(long, default_value_os_t = machine::scratch_parent(), hide_default_value = true)]
    pub dir: PathBuf,
    /// Options for dedupfs mkfs, such as "--compression none"
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    pub mkfs: Words,
    /// Options for dedupfs mount, such as "--memory 1G"
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    pub mount: Words,
}

impl PoolOptions {
    /// The same, for pools whose content is only arranged by a command.
    #[must_use]
    pub fn arranged_by_hand(&self) -> Self {
        let mut options = self.clone();
        options.mount.0.extend(["-o", "arrange=off"].map(str::to_owned));
        options
    }
}

/// The option `--drop-caches`.
#[derive(clap::Args)]
pub struct Caches {
    /// Empty all caches of the machine before cold reads (root), not only those of the files read
    #[arg(long)]
    pub drop_caches: bool,
}

/// Parses a size of 1 MiB or more, in bytes.
pub fn size_1m(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| if bytes < 1 << 20 { Err("it must be 1M or more".into()) } else { Ok(bytes) })
}

/// Parses a size of 4 KiB or more, in bytes.
pub fn size_4k(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| if bytes < 4096 { Err("it must be 4K or more".into()) } else { Ok(bytes) })
}

/// Parses a number from 1 to 9,999,999.
pub fn count(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..10_000_000).contains(number));
    number.ok_or_else(|| "it must be a number from 1 up".to_owned())
}

/// Returns the numbers of a list.
pub fn list(text: &str, parse: fn(&str) -> Result<u64, String>) -> Outcome<Vec<u64>> {
    text.split_whitespace().map(|word| parse(word).or_else(|error| usage(format!("{word}: {error}")))).collect()
}

/// Returns the sizes of a list, one at least, each larger than the one before it.
pub fn ascending(text: &str) -> Outcome<Vec<u64>> {
    let sizes = list(text, size_1m)?;
    if !sizes.is_empty() && sizes.is_sorted_by(|one, next| one < next) {
        Ok(sizes)
    } else {
        usage("--sizes must be sizes that ascend")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_pool_ascend() {
        assert_eq!(ascending("1M 2M  1G").ok(), Some(vec![1 << 20, 2 << 20, 1 << 30]));
        assert!(["", "2M 1M", "1M 1M", "1K", "1M,2M"].into_iter().all(|text| ascending(text).is_err()));
    }

    #[test]
    fn sizes_have_units_of_1024_and_counts_begin_with_1() {
        assert_eq!((size_1m("1M"), size_1m("2GiB")), (Ok(1 << 20), Ok(2 << 30)));
        assert!(size_1m("1023K").is_err() && size_1m("many").is_err());
        assert_eq!((count("1"), count("9999999")), (Ok(1), Ok(9_999_999)));
        assert!(count("0").is_err() && count("10000000").is_err() && count("-1").is_err());
        assert_eq!(" --a  b ".parse::<Words>().map(|words| words.0), Ok(vec!["--a".to_owned(), "b".to_owned()]));
    }
}
