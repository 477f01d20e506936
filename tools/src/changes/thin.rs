//! The XML of `thin_delta`: differences of two snapshots of a thin pool, in blocks of the pool.

use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::Map;

/// Unit of `data_block_size`.
const SECTOR_BYTES: u64 = 512;
/// Bytes of one element at most.
const ELEMENT_BYTES_MAX: usize = 4096;

pub(super) fn parse(from: &mut dyn BufRead) -> Result<Map, String> {
    let (mut reader, mut element) = (Reader::from_reader(from), Vec::new());
    let (mut map, mut block_bytes, mut is_whole) = (Map::default(), None, false);
    loop {
        element.clear();
        let place = reader.buffer_position();
        let wrong = |why: String| format!("at byte {place}: {why}");
        match reader.read_event_into(&mut element).map_err(|error| wrong(error.to_string()))? {
            Event::Start(tag) | Event::Empty(tag) => {
                let name = tag.name();
                let is_zero = match name.as_ref() {
                    "superblock" => {
                        let sectors = number(&tag, "data_block_size").map_err(wrong)?;
                        block_bytes = sectors.checked_mul(SECTOR_BYTES);
                        map.overhang_bytes = block_bytes.unwrap_or(0).saturating_sub(1);
                        continue;
                    }
                    // Of the older snapshot alone: discarded since.
                    "left_only" => Some(true),
                    "right_only" | "different" => Some(false),
                    "same" => None,
                    _ => continue,
                };
                let block_bytes = block_bytes.ok_or_else(|| wrong("ranges before the superblock".to_owned()))?;
                let range =
                    |name| number(&tag, name)?.checked_mul(block_bytes).ok_or("a number that is too large".to_owned());
                let (begin, length) = (range("begin").map_err(wrong)?, range("length").map_err(wrong)?);
                map.add(begin, length, is_zero).map_err(wrong)?;
            }
            Event::End(tag) if tag.name().as_ref() == "superblock" => is_whole = true,
            Event::Eof if is_whole => return Ok(map),
            Event::Eof => return Err("it ends within the superblock: it is cut".to_owned()),
            _ => {}
        }
        if element.len() > ELEMENT_BYTES_MAX {
            return Err(wrong("an element that is too long".to_owned()));
        }
    }
}

fn number(tag: &BytesStart<'_>, name: &str) -> Result<u64, String> {
    let found = tag.try_get_attribute(name).map_err(|error| error.to_string())?;
    let text = found.ok_or_else(|| format!("`{name}` is missing"))?;
    let text = &*text.value;
    text.parse().map_err(|_| format!("`{name}` is `{text}`, and no number"))
}
