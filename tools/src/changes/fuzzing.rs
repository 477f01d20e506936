//! Maps of changes, for the fuzz targets.

use super::{Format, as_file, from_file, parse};

/// Reads a map of an image whose length the first bytes give, and hands over its changes.
pub fn fuzz_map(bytes: &[u8]) {
    let Some((length, map)) = bytes.split_first_chunk::<5>() else { return };
    let size_bytes = length.iter().fold(0, |size, byte| size << 8 | u64::from(*byte));
    for format in [Format::Auto, Format::Json, Format::ThinDelta, Format::Plain] {
        let changes = parse(&mut &*map, format).and_then(|map| map.changes(size_bytes));
        let Ok(changes) = changes else { continue };
        assert!(changes.ranges().iter().all(|change| change.to <= size_bytes));
        let again = as_file(&changes).map(from_file);
        assert!(matches!(again, Ok(Ok(again)) if again == changes));
    }
}
