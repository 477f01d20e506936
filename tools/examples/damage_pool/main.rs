//! Damages a pool that is not mounted, as a seed decides, and says how.
//!
//! ```text
//! damage_pool accidents POOL --seed 7     flipped bytes, cut, zeroed, swapped and missing files
//! damage_pool nonsense POOL --seed 7      other values, with checksums that fit them
//! ```
//!
//! The data root must lie within the pool. The last line says what may read otherwise afterwards: `strict`, nothing, every byte is right or
//! gives an error; `names`, what the changed rows of the namespace tell; `content`, what the changed region holds. Checksums find
//! accidents and no forger: where they fit, the second and the third cannot be noticed by all that reads.

mod accidents;
mod frames;
mod namespace;
mod nonsense;
mod random;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use random::Random;

/// Damages a pool that is not mounted, as a seed decides, and says how.
#[derive(Parser)]
struct Arguments {
    /// Which damage
    kind: Kind,
    /// Meta root, with the data root in it
    pool: PathBuf,
    /// Decides everything
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Which damage.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// What disks and people do: checksums show it
    Accidents,
    /// Other values under checksums that fit
    Nonsense,
}

/// What reads otherwise after the damage without an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Nothing.
    Strict,
    /// What the changed rows tell.
    Names,
    /// What the changed region holds.
    Content,
}

/// All files of the pool that belong to its format, sorted; `dedupfs.log`, `lock` and the socket do not.
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
