//! The synthetic series of `layout`, `seeking` and `mfdedup`: random files, half of which change in a few places from version to version.

use std::path::Path;

use crate::options::{count, size_1m};
use crate::{Outcome, data, files};

/// Places in a file that change, and bytes of each.
const PLACES: u64 = 4;
const PLACE_BYTES: usize = 20_000;

/// Options of a synthetic series.
#[derive(clap::Args, Clone)]
pub struct Synthetic {
    /// Synthetic versions
    #[arg(long, default_value = "30", value_parser = count)]
    pub versions: u64,
    /// Files of a synthetic version
    #[arg(long, default_value = "200", value_parser = count)]
    pub files: u64,
    /// Size of each, random bytes
    #[arg(long, default_value = "1M", value_parser = size_1m)]
    pub size: u64,
}

impl Synthetic {
    /// Makes the tree of version 0, or changes half of its files for the version `number`.
    pub fn change(&self, tree: &Path, number: u64) -> Outcome {
        if number == 0 {
            files::remove(tree)?;
            files::make_dir(tree)?;
        }
        for file in 0..self.files {
            let path = tree.join(format!("f{file:05}"));
            if number == 0 {
                data::random_file(&format!("layout {file}"), self.size, &path)?;
            } else if (file + number).is_multiple_of(2) {
                let mut random = data::Random::new(&format!("layout {file} {number}"));
                let mut content = std::fs::read(&path).or_else(files::at("read", &path))?;
                for _ in 0..PLACES {
                    let at = random.below(self.size) as usize;
                    let end = content.len().min(at + PLACE_BYTES);
                    content[at..end].fill_with(|| random.next() as u8);
                }
                std::fs::write(&path, &content).or_else(files::at("write", &path))?;
            }
        }
        Ok(())
    }
}
