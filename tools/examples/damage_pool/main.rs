//! Damages a pool that is not mounted, chosen by a seed, and prints the damage.
//!
//! ```text
//! damage_pool accidents POOL --seed 7     flipped bytes, cut, zeroed, swapped and missing files
//! damage_pool nonsense POOL --seed 7      other values, with checksums that fit them
//! ```
//!
//! The data root must be inside the pool. The last line says which reads may return wrong data without an error afterwards. `strict`: none,
//! every byte is right or gives an error. `names`: reads of the changed rows of the namespace. `content`: reads of the changed region.
//! Checksums find accidents but no forger: where they are valid, readers cannot always notice the damage of the second and third kind.

mod accidents;
mod frames;
mod namespace;
mod nonsense;
mod random;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Parser, ValueEnum};

use random::Random;

/// Damages a pool that is not mounted, chosen by a seed, and prints the damage.
#[derive(Parser)]
struct Arguments {
    /// Kind of damage
    kind: Kind,
    /// Meta root, with the data root in it
    pool: PathBuf,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The kinds of damage.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Accidents by disks and people, which checksums find
    Accidents,
    /// Other values under valid checksums
    Nonsense,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Strict,
    Names,
    Content,
}

/// All files of the pool that belong to its format, sorted. `dedupfs.log`, `lock` and the socket do not belong to it.
fn files(pool: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![pool.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() && !name.as_encoded_bytes().starts_with(b"dedupfs.log") && name != "lock" {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn main() -> ExitCode {
    let Arguments { kind, pool, seed } = Arguments::parse();
    let mut random = Random::new(seed);
    let result = files(&pool).and_then(|files| match kind {
        Kind::Accidents => accidents::happen(&files, &mut random).map(|()| Reach::Strict),
        Kind::Nonsense => nonsense::write(&files, &mut random),
    });
    match result {
        Ok(reach) => {
            println!(
                "{}",
                match reach {
                    Reach::Strict => "strict",
                    Reach::Names => "names",
                    Reach::Content => "content",
                }
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("damage_pool: {error}");
            ExitCode::FAILURE
        }
    }
}
