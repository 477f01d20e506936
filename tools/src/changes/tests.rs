#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

const IMAGE_BYTES: u64 = 1 << 20;

fn map(text: &str) -> Result<Map, String> {
    parse(&mut text.as_bytes(), Format::Auto)
}

/// The changes that a map names, as tuples of begin, end and whether they are zeros.
fn changes_of(text: &str, size_bytes: u64) -> Result<Vec<(u64, u64, bool)>, String> {
    let changes = map(text)?.changes(size_bytes)?;
    Ok(changes.ranges().iter().map(|change| (change.from, change.to, change.is_zero)).collect())
}

fn changes(text: &str) -> Result<Vec<(u64, u64, bool)>, String> {
    changes_of(text, IMAGE_BYTES)
}

#[test]
fn maps_of_nbdinfo_are_read() {
    let allocation = r#"[
        { "offset": 0, "length": 65536, "type": 0, "description": "data" },
        { "offset": 65536, "length": 131072, "type": 3, "description": "hole,zero" },
        { "offset": 196608, "length": 851968, "type": 1, "description": "hole" }
    ]"#;
    let expected = vec![(0, 65_536, false), (65_536, 196_608, true), (196_608, IMAGE_BYTES, false)];
    assert_eq!(changes(allocation), Ok(expected));
    let bitmap = r#"[{"offset":0,"length":65536,"type":0,"description":"clean"},
        {"offset":65536,"length":65536,"type":1,"description":"dirty"}, {"offset":131072,"length":917504,"type":0,"description":"clean"}]"#;
    assert_eq!(changes(bitmap), Ok(vec![(65_536, 131_072, false)]));
    let depth = r#"[{"offset":0,"length":65536,"type":1,"description":"local"}]"#;
    assert!(changes(depth).is_err_and(|why| why.contains("`local`")));
}

#[test]
fn maps_of_qemu_img_are_read() {
    // The second range is of the file below, the third one was discarded since.
    let overlay = r#"[{ "start": 0, "length": 65536, "depth": 0, "present": true, "zero": false, "data": true, "compressed": false, "offset": 327680},
        { "start": 65536, "length": 65536, "depth": 1, "present": true, "zero": false, "data": true, "offset": 1},
        { "start": 131072, "length": 65536, "depth": 0, "present": true, "zero": true, "data": false},
        { "start": 196608, "length": 65536, "depth": 0, "present": true, "zero": true, "data": true, "offset": 5}]"#;
    assert_eq!(changes_of(overlay, 262_144), Ok(vec![(0, 65_536, false), (131_072, 262_144, true)]));
    // The end is rounded up.
    assert_eq!(changes_of(overlay, 262_000), Ok(vec![(0, 65_536, false), (131_072, 262_000, true)]));
    // Of a larger image, also if nothing changed behind the end; of a smaller one; and cut in its middle.
    for size_bytes in [100_000, 190_000] {
        assert!(changes_of(overlay, size_bytes).is_err_and(|why| why.contains("beyond the image")), "{size_bytes}");
    }
    assert!(changes(overlay).is_err_and(|why| why.contains("ends at 262144")));
    let cut = overlay.replace(r#""start": 65536"#, r#""start": 70000"#);
    assert!(changes(&cut).is_err_and(|why| why.contains("gap")));
}

#[test]
fn maps_of_rbd_are_read() {
    for (number, truth) in [("0", r#""true""#), (r#""0""#, "true")] {
        let text = format!(
            r#"[{{"offset":{number},"length":"65536","exists":{truth}}}, {{"offset":"131072","length":65536,"exists":"false"}}]"#
        );
        assert_eq!(changes(&text), Ok(vec![(0, 65_536, false), (131_072, 196_608, true)]), "{text}");
    }
    assert_eq!(changes("[]").map_err(|_| ()), Ok(Vec::new()), "of rbd: nothing changed");
}

#[test]
fn maps_of_thin_delta_are_read() {
    let text = r#"<superblock uuid="" time="1" transaction="2" data_block_size="128" nr_data_blocks="16">
  <diff left="1" right="2">
    <same begin="0" length="1"/>
    <different begin="1" length="2"/>
    <right_only begin="4" length="1"/>
    <left_only begin="5" length="1"/>
  </diff>
</superblock>
"#;
    assert_eq!(changes(text), Ok(vec![(65_536, 196_608, false), (262_144, 327_680, false), (327_680, 393_216, true)]));
    for (wrong, why) in [
        (text.replace("</superblock>", ""), "cut"),
        (text.replace(r#"data_block_size="128""#, ""), "data_block_size"),
        (text.replace(r#"begin="4""#, r#"begin="x""#), "no number"),
        (text.replace(r#"length="2""#, r#"length="99999999999999999""#), "too large"),
        ("<diff><same begin=\"0\" length=\"1\"/></diff>".to_owned(), "before the superblock"),
        (text[..text.len() / 2].to_owned(), ""),
    ] {
        assert!(changes(&wrong).is_err_and(|found| found.contains(why)), "{wrong}: {:?}", changes(&wrong));
    }
}

#[test]
fn lines_are_read() {
    let text = "# since yesterday\n4096 4096\n\n65536 131072 zero # discarded\n";
    assert_eq!(changes(text), Ok(vec![(4096, 8192, false), (65_536, 196_608, true)]));
    assert_eq!(changes("# nothing\n"), Ok(Vec::new()));
    for wrong in
        ["1\n", "1 x\n", "1 2 three\n", "1 2 zero 4\n", "1 -5\n", "18446744073709551615 2\n", &"1".repeat(5000)]
    {
        assert!(changes(wrong).is_err_and(|why| why.starts_with("line 1: ")), "{wrong}");
    }
}

#[test]
fn what_is_no_map_is_refused() {
    for (text, why) in [
        ("", "empty"),
        ("  \n ", "empty"),
        ("{}", "unknown"),
        ("qcow2", "unknown"),
        ("[{\"offset\":0}]", "length"),
        ("[{\"offset\":0,\"length\":1}]", "neither"),
        ("[{\"length\":1,\"exists\":\"true\"}]", "without offset"),
        ("[{\"offset\":\"x\",\"length\":1,\"exists\":\"true\"}]", "no number"),
        ("[{\"offset\":-1,\"length\":1,\"exists\":\"true\"}]", ""),
        ("[", ""),
        ("[] []", ""),
        ("[{\"offset\":0,\"length\":1,\"exists\":\"yes\"}]", "neither `true`"),
        ("0 4096\n4096 40", "the map is cut"),
        ("0 1048577\n", "beyond"),
    ] {
        assert!(changes(text).is_err_and(|found| found.contains(why)), "{text}: {:?}", changes(text));
    }
}

#[test]
fn ranges_are_put_in_order_and_what_is_named_twice_is_read() {
    assert_eq!(changes("8192 4096\n0 4096\n4096 4096\n"), Ok(vec![(0, 12_288, false)]));
    assert_eq!(
        changes("0 65536 zero\n8192 4096\n20480 100 zero\n"),
        Ok(vec![
            (0, 8192, true),
            (8192, 12_288, false),
            (12_288, 20_480, true),
            (20_480, 24_576, false),
            (24_576, 65_536, true)
        ])
    );
    // Blocks that are zeros in part are read, and ranges of data are widened, not over the end.
    assert_eq!(changes("100 20000 zero\n"), Ok(vec![(0, 4096, false), (4096, 16_384, true), (16_384, 20_480, false)]));
    assert_eq!(changes("100 200 zero\n"), Ok(vec![(0, 4096, false)]));
    assert_eq!(changes_of("4000 1000\n", 5000), Ok(vec![(0, 5000, false)]));
    assert_eq!(changes_of("0 5000 zero\n", 5000), Ok(vec![(0, 5000, true)]));
}

#[test]
fn a_map_of_too_many_ranges_is_made_coarser_and_never_smaller() {
    let mut map = Map::default();
    let ranges = CHANGES_MAX as u64 + 1000;
    (0..ranges).for_each(|number| map.add(number * 3 * BLOCK_BYTES, BLOCK_BYTES, Some(number % 2 == 0)).unwrap());
    let changes = map.changes(ranges * 3 * BLOCK_BYTES).unwrap();
    assert!(changes.ranges().len() <= CHANGES_MAX);
    assert!(
        (0..ranges).step_by(999).all(|number| changes.touch(number * 3 * BLOCK_BYTES, number * 3 * BLOCK_BYTES + 1))
    );
}

#[test]
fn changes_travel_in_a_file() {
    let changes = map("0 65536 zero\n131072 4096\n").unwrap().changes(IMAGE_BYTES).unwrap();
    assert_eq!(from_file(as_file(&changes).unwrap()).unwrap(), changes);
    let file = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    };
    assert_eq!(from_file(file(&[])).unwrap(), Changes::default());
    for wrong in [&[0; 24][..], &[1; 23]] {
        assert!(from_file(file(wrong)).is_err());
    }
    let endless = File::open("/dev/zero").unwrap();
    assert!(from_file(endless).is_err());
}
