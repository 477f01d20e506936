//! Lines OFFSET LENGTH, in bytes; `zero` behind them for zeros, `#` before remarks.

use std::io::BufRead;

use super::Map;

/// Bytes of a line at most.
const LINE_BYTES_MAX: u64 = 1024;

pub(super) fn parse(from: &mut dyn BufRead) -> Result<Map, String> {
    let (mut map, mut line, mut number) = (Map::default(), String::new(), 0_u64);
    loop {
        line.clear();
        number += 1;
        let wrong = |why: &str| format!("line {number}: {why}");
        let read = std::io::Read::take(&mut *from, LINE_BYTES_MAX).read_line(&mut line);
        if read.map_err(|error| wrong(&error.to_string()))? == 0 {
            return Ok(map);
        }
        if !line.ends_with('\n') {
            return Err(wrong("it has no end, or is too long: the map is cut"));
        }
        let content = line.split('#').next().unwrap_or_default();
        let mut words = content.split_ascii_whitespace();
        let Some(offset) = words.next() else { continue };
        let numeral = |word: Option<&str>| word.and_then(|word| word.parse().ok());
        let (Some(offset), Some(len_bytes)) = (numeral(Some(offset)), numeral(words.next())) else {
            return Err(wrong("give OFFSET LENGTH, both in bytes"));
        };
        let is_zero = match (words.next(), words.next()) {
            (None, _) => false,
            (Some("zero"), None) => true,
            _ => return Err(wrong("behind OFFSET LENGTH only `zero` may stand")),
        };
        map.add(offset, len_bytes, Some(is_zero)).map_err(|why| wrong(&why))?;
    }
}
