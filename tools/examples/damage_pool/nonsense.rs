//! Writes other values into frames, with valid checksums up to the manifest that names the file.

use std::path::{Path, PathBuf};
use std::{fs, io};

use dedupfs_store::codec::checksum;

use crate::frames::{self, Frame, u32_at};
use crate::random::Random;
use crate::{Reach, namespace};

const REGION: u8 = 2;
/// The kinds of directories of files of pages. Their payload has the number of entries and the checksum of each page.
const DIRECTORIES: [u8; 4] = [4, 6, 9, 10];

pub(crate) fn write(files: &[PathBuf], random: &mut Random) -> io::Result<Reach> {
    let (store, framed): (Vec<&PathBuf>, Vec<&PathBuf>) =
        files.iter().partition(|file| file.file_name().is_some_and(|name| name == "namespace.redb"));
    let mut reach = Reach::Strict;
    for _ in 0..1 + random.below(3) {
        let touched = match store.first() {
            Some(store) if random.below(3) == 0 => namespace::change(store, random)?,
            _ => {
                let place = random.below(framed.len());
                change_frame(framed[place], random)?
            }
        };
        reach = reach.max(touched);
    }
    Ok(reach)
}

fn change_frame(file: &Path, random: &mut Random) -> io::Result<Reach> {
    if !file.exists() {
        // A file of checksums of blocks, which a change of the namespace removed.
        return Ok(Reach::Strict);
    }
    let mut bytes = fs::read(file)?;
    let found = frames::find(&bytes);
    if found.is_empty() {
        return Ok(Reach::Strict);
    }
    let frame = random.choose(&found);
    let seal_before = frames::seal_of_file(&bytes, &found);
    let (what, at, width) = place(&bytes, frame, random);
    let reach = if frame.kind == REGION && what == "payload" { Reach::Content } else { Reach::Strict };
    random.other(&mut bytes[at..at + width]);
    println!("{} frame {} at {}: {width} bytes of the {what} at {at}", file.display(), frame.kind, frame.at);
    if what == "page" {
        fit_pages(&mut bytes, frame);
    }
    frames::seal(&mut bytes, frame);
    fs::write(file, &bytes)?;
    if let (Some(before), Some(after)) = (seal_before, frames::seal_of_file(&bytes, &found)) {
        fit_manifest(file, before, after)?;
    }
    Ok(reach)
}

/// Chooses the bytes to change: the part of the frame, the offset and the width.
fn place(bytes: &[u8], frame: &Frame, random: &mut Random) -> (&'static str, usize, usize) {
    // Changing magic and checksums would prove little.
    let header = frame.at + 4..frame.at + 48;
    let pages = frame.end().next_multiple_of(frames::HEADER_BYTES)..bytes.len();
    let (what, range) = match random.below(8) {
        0 => ("header", header),
        1..=3 if !frame.meta().is_empty() => ("meta", frame.meta()),
        4 | 5 if DIRECTORIES.contains(&frame.kind) && !pages.is_empty() => ("page", pages),
        _ if !frame.payload().is_empty() => ("payload", frame.payload()),
        _ if !frame.meta().is_empty() => ("meta", frame.meta()),
        _ => ("header", header),
    };
    let width = (*random.choose(&[1, 2, 4, 8])).min(range.len());
    // Most numbers are aligned.
    let at = range.start + random.below(range.len() - width + 1);
    let aligned = range.start + (at - range.start) / width * width;
    (what, if random.below(4) == 0 { at } else { aligned }, width)
}

fn fit_pages(bytes: &mut [u8], directory: &Frame) {
    let meta = directory.meta().start;
    let entry_bytes = u32_at(bytes, meta + 4) as usize;
    let mut page = directory.end().next_multiple_of(frames::HEADER_BYTES);
    for entry in directory.payload().step_by(12) {
        if entry + 12 > directory.end() {
            return;
        }
        let len = entry_bytes.saturating_mul(u32_at(bytes, entry) as usize);
        let Some(content) = page.checked_add(len).and_then(|end| bytes.get(page..end)) else { return };
        let sum = checksum(content);
        bytes[entry + 4..entry + 12].copy_from_slice(&sum.to_le_bytes());
        page += len;
    }
}

/// Puts the file's new seal into the manifest beside the file.
fn fit_manifest(file: &Path, before: u64, after: u64) -> io::Result<()> {
    let manifest = file.with_file_name("manifest");
    if !manifest.is_file() || before == after {
        return Ok(());
    }
    let mut bytes = fs::read(&manifest)?;
    let Some(frame) = frames::find(&bytes).first().copied() else { return Ok(()) };
    for at in frame.meta().start..frame.end() - 7 {
        if bytes[at..at + 8] == before.to_le_bytes() {
            bytes[at..at + 8].copy_from_slice(&after.to_le_bytes());
        }
    }
    frames::seal(&mut bytes, &frame);
    fs::write(manifest, bytes)
}
