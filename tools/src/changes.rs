//! Maps of the changes of an image, as hypervisors and their tools print them, and the form in which the daemon takes them.
//!
//! 1. [`json`], [`thin`] and [`plain`] read one format each into ranges that hold data, or zeros; [`told`] asks an NBD server for them.
//! 2. [`Map::changes`] widens ranges of data to whole blocks, narrows those of zeros, and puts them in order. What is named twice
//!    counts as data: it is read.
//! 3. [`as_file`] hands the result over: three numbers of 8 bytes for each range.
//!
//! Memory: 24 bytes for each range of the map, 400 MB for the largest one; of one that a server tells three times as much.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod json;
mod plain;
#[cfg(test)]
mod tests;
mod thin;
mod told;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek as _, Write as _};
use std::path::Path;

use dedupfs::transfer::{Change, Changes};

pub(crate) use self::told::{data_in, data_told_by, told_by};
use crate::control::{Failure, FailureKind};
use crate::size::show;

/// Ranges of a map at most.
const RANGES_MAX: usize = 1 << 24;
/// Ranges that are handed over at most. Of more, neighbours are joined: more is read.
const CHANGES_MAX: usize = 1 << 20;
/// Unit of changes. Maps have larger ones; a range that does not fit is widened.
const BLOCK_BYTES: u64 = 4096;
/// Bytes of a range in the file for the daemon.
const RECORD_BYTES: usize = 24;

/// The format of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// Told by its first bytes.
    #[default]
    Auto,
    /// Of `nbdinfo --map --json`, `qemu-img map --output=json` or `rbd diff --format json`.
    Json,
    /// Of `thin_delta`.
    ThinDelta,
    /// Lines OFFSET LENGTH, with `zero` behind them for zeros.
    Plain,
}

/// Ranges in any order. They may overlap.
#[derive(Default, Debug)]
pub(crate) struct Map {
    ranges: Vec<Change>,
    /// If the format names unchanged ranges, too, one behind the other: the end of the last one.
    named_until: Option<u64>,
    /// Bytes by which the last range may go beyond the image, whose end need not be that of a block.
    overhang_bytes: u64,
    /// Ranges that were named, unchanged ones included.
    named: usize,
}

impl Map {
    /// Adds a range. `is_zero` is `None` for an unchanged one.
    fn add(&mut self, from: u64, len_bytes: u64, is_zero: Option<bool>) -> Result<(), String> {
        let to = from
            .checked_add(len_bytes)
            .ok_or_else(|| format!("the range of {len_bytes} bytes at {from} has no end"))?;
        if let Some(until) = &mut self.named_until {
            if *until != from {
                return Err(format!("it leaves a gap, or goes back: {from} follows {until}"));
            }
            *until = to;
        }
        self.named += 1;
        if self.named > RANGES_MAX {
            return Err(format!("it has more than {RANGES_MAX} ranges: use larger blocks"));
        }
        if let Some(is_zero) = is_zero.filter(|_| to > from) {
            self.ranges.push(Change { from, to, is_zero });
        }
        Ok(())
    }

    /// Returns the changes of an image of `size_bytes`.
    fn changes(self, size_bytes: u64) -> Result<Changes, String> {
        if let Some(until) = self.named_until.filter(|until| *until < size_bytes) {
            return Err(format!(
                "it ends at {until}, and the image has {}: it is of another image, or cut",
                bytes(size_bytes)
            ));
        }
        let is_beyond = |end: u64| end.saturating_sub(size_bytes) > self.overhang_bytes;
        if let Some(until) = self.named_until.filter(|until| is_beyond(*until)) {
            return Err(format!(
                "it ends at {until}, beyond the image, which has {}: it is of another image",
                bytes(size_bytes)
            ));
        }
        if let Some(beyond) = self.ranges.iter().find(|range| is_beyond(range.to)) {
            let Change { from, to, .. } = beyond;
            return Err(format!(
                "its range from {from} to {to} goes beyond the image, which has {}",
                bytes(size_bytes)
            ));
        }
        let up = |at: u64| at.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX).min(size_bytes);
        let down = |at: u64| if at == size_bytes { at } else { at - at % BLOCK_BYTES };
        let cut = |range: Change| Change { to: range.to.min(size_bytes), ..range };
        let ranges = self.ranges.into_iter().map(cut).filter(|range| range.from < range.to);
        let (zeros, mut data): (Vec<_>, Vec<_>) = ranges.partition(|range| range.is_zero);
        let mut holes = Vec::new();
        for Change { from, to, .. } in zeros {
            let (first, last) = (up(from), down(to));
            if first < last {
                holes.push(Change { from: first, to: last, is_zero: true });
            }
            // Their ends hold other bytes as well.
            let ends = [(from, first.min(to)), (last.max(from), to)];
            data.extend(ends.into_iter().filter(|(from, to)| from < to).map(|(from, to)| Change {
                from,
                to,
                is_zero: false,
            }));
        }
        data.iter_mut().for_each(|range| (range.from, range.to) = (down(range.from), up(range.to)));
        let mut changes = union(joined(data, 0), joined(holes, 0));
        let mut gap_bytes = BLOCK_BYTES;
        while changes.len() > CHANGES_MAX {
            gap_bytes *= 2;
            let short = |change: &Change| !change.is_zero || change.to - change.from <= gap_bytes;
            let (data, holes): (Vec<_>, Vec<_>) = changes.into_iter().partition(short);
            let data = data.into_iter().map(|change| Change { is_zero: false, ..change }).collect();
            changes = union(joined(data, gap_bytes), holes);
        }
        Changes::new(changes).map_err(|error| error.to_string())
    }
}

fn bytes(count: u64) -> String {
    format!("{count} bytes ({})", show(count))
}

/// Sorts ranges of one kind, and joins those with at most so many bytes between them.
pub(crate) fn joined(mut ranges: Vec<Change>, gap_bytes: u64) -> Vec<Change> {
    ranges.sort_unstable_by_key(|range| range.from);
    let mut joined: Vec<Change> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.from <= last.to.saturating_add(gap_bytes) => last.to = last.to.max(range.to),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the ranges of data, and of the others what lies outside of these; both are in order.
pub(crate) fn union(data: Vec<Change>, holes: Vec<Change>) -> Vec<Change> {
    let (mut united, mut first) = (Vec::with_capacity(data.len() + holes.len()), 0);
    for hole in holes {
        let mut from = hole.from;
        while data.get(first).is_some_and(|range| range.to <= from) {
            first += 1;
        }
        for range in data.iter().skip(first).take_while(|range| range.from < hole.to) {
            if from < range.from {
                united.push(Change { from, to: range.from, is_zero: true });
            }
            from = range.to;
        }
        if from < hole.to {
            united.push(Change { from, ..hole });
        }
    }
    united.extend(data);
    united.sort_unstable_by_key(|range| range.from);
    united
}

/// Reads a map of changes of an image of `size_bytes`.
pub(crate) fn read(path: &Path, format: Format, size_bytes: u64) -> Result<Changes, Failure> {
    let shown = path.display();
    let wrong =
        |why: String| FailureKind::Usage.because(format!("{shown} is no map of the changes of this image: {why}"));
    let file = File::open(path).map_err(|error| Failure::failed(format!("cannot open the map {shown}: {error}")))?;
    let map = parse(&mut BufReader::new(file), format).map_err(wrong)?;
    map.changes(size_bytes).map_err(wrong)
}

/// Reads a map.
pub(crate) fn parse(from: &mut dyn BufRead, format: Format) -> Result<Map, String> {
    let first = first_letter(from).map_err(|error| format!("it cannot be read: {error}"))?;
    match (format, first) {
        (_, None) => Err("it is empty: if nothing changed, a line `# nothing` says so".to_owned()),
        (Format::Json, _) | (Format::Auto, Some(b'[')) => json::parse(from),
        (Format::ThinDelta, _) | (Format::Auto, Some(b'<')) => thin::parse(from),
        (Format::Plain, _) | (Format::Auto, Some(b'#' | b'0'..=b'9')) => plain::parse(from),
        (Format::Auto, Some(_)) => Err(
            "its format is unknown: give JSON of nbdinfo, qemu-img or rbd, XML of thin_delta, or lines OFFSET LENGTH"
                .to_owned(),
        ),
    }
}

/// Passes over white space, and returns the letter behind it without taking it.
fn first_letter(from: &mut dyn BufRead) -> std::io::Result<Option<u8>> {
    loop {
        let buffer = from.fill_buf()?;
        let Some(at) = buffer.iter().position(|byte| !byte.is_ascii_whitespace()) else {
            let len = buffer.len();
            if len == 0 {
                return Ok(None);
            }
            from.consume(len);
            continue;
        };
        let first = buffer.get(at).copied();
        from.consume(at);
        return Ok(first);
    }
}

/// Writes changes into a file without a name, for the daemon.
pub(crate) fn as_file(changes: &Changes) -> std::io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("changes", rustix::fs::MemfdFlags::CLOEXEC)?);
    let mut writer = BufWriter::new(file);
    for Change { from, to, is_zero } in changes.ranges() {
        for number in [*from, *to, u64::from(*is_zero)] {
            writer.write_all(&number.to_le_bytes())?;
        }
    }
    let mut file = writer.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Reads what [`as_file`] wrote. The file may be anything.
pub(crate) fn from_file(file: File) -> Result<Changes, Failure> {
    let wrong = |why: String| Failure::failed(format!("the changes that came with the request are unusable: {why}"));
    // Another one may wait for ever.
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(wrong("they are in no regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let limit = (CHANGES_MAX * RECORD_BYTES) as u64;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
    if !rest.is_empty() || bytes.len() as u64 > limit {
        return Err(wrong(format!("{} bytes", bytes.len())));
    }
    let change = |record: &[u8; RECORD_BYTES]| {
        let (numbers, _) = record.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Change { from: number(0), to: number(1), is_zero: number(2) == 1 }
    };
    Changes::new(records.iter().map(change).collect()).map_err(|error| wrong(error.to_string()))
}
