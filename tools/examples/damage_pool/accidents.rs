//! Accidents by disks, by crashes of other programs, and by people.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::random::Random;

pub(crate) fn happen(files: &[PathBuf], random: &mut Random) -> io::Result<()> {
    for _ in 0..1 + random.below(4) {
        // Skip files that an earlier accident removed.
        let there: Vec<&PathBuf> = files.iter().filter(|file| file.is_file()).collect();
        let Some(file) = there.get(random.below(there.len().max(1))) else { return Ok(()) };
        accident(file, &there, random)?;
    }
    Ok(())
}

fn accident(file: &Path, files: &[&PathBuf], random: &mut Random) -> io::Result<()> {
    let len = fs::metadata(file)?.len() as usize;
    let shown = file.display();
    let kind = random.below(if len == 0 { 3 } else { 10 });
    match kind {
        0 => {
            println!("missing {shown}");
            fs::remove_file(file)
        }
        1 => {
            let other = *random.choose(files);
            println!("swapped {shown} {}", other.display());
            let (bytes, others) = (fs::read(file)?, fs::read(other)?);
            fs::write(file, others)?;
            fs::write(other, bytes)
        }
        2 => {
            let surplus_bytes = 1 + random.below(9000);
            let surplus = noise(random, surplus_bytes);
            println!("longer {shown} by {}", surplus.len());
            OpenOptions::new().write(true).open(file)?.write_all_at(&surplus, len as u64)
        }
        3 => {
            let kept = random.below(len);
            println!("cut {shown} at {kept} of {len}");
            OpenOptions::new().write(true).open(file)?.set_len(kept as u64)
        }
        4 | 5 => {
            // Disks lose whole blocks.
            let at = random.below(len) & !4095;
            let bytes = if kind == 4 { vec![0; 4096.min(len - at)] } else { noise(random, 4096.min(len - at)) };
            println!("block {shown} at {at}: {}", if kind == 4 { "zeros" } else { "noise" });
            OpenOptions::new().write(true).open(file)?.write_all_at(&bytes, at as u64)
        }
        6 => {
            // A block written to the place of another.
            let (from, to) = (random.below(len) & !4095, random.below(len) & !4095);
            println!("misplaced {shown} {from} at {to}");
            let bytes = fs::read(file)?;
            let block = &bytes[from..(from + 4096).min(len).min(from + len - to)];
            OpenOptions::new().write(true).open(file)?.write_all_at(block, to as u64)
        }
        _ => {
            let mut bytes = fs::read(file)?;
            for _ in 0..1 + random.below(6) {
                // The beginnings of files matter most.
                let at = if random.below(2) == 0 { random.below(len.min(300)) } else { random.below(len) };
                bytes[at] ^= 1 << random.below(8);
                println!("flipped {shown} at {at}");
            }
            fs::write(file, bytes)
        }
    }
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}
