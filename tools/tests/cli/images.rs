//! Images of disks: command lines, maps, messages, exit codes and JSON.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use dedupfs_nbd::testing::{BITMAP, Export, Kind, Server, UNIT_BYTES};

use crate::site::{DEDUPFS, Ran, Site, run};

const IMAGE_BYTES: usize = 8 << 20;

struct Images {
    site: Site,
    source: PathBuf,
    map: PathBuf,
}

impl Images {
    fn if_fuse() -> Option<Self> {
        let site = Site::if_fuse()?;
        site.mount().ok();
        fs::create_dir(site.mnt.join("vm7")).unwrap();
        let (source, map) = (site.root.path().join("disk.raw"), site.root.path().join("map"));
        let mut state = 1_u64;
        let bytes = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        });
        fs::write(&source, bytes.take(IMAGE_BYTES).collect::<Vec<_>>()).unwrap();
        Some(Self { site, source, map })
    }

    /// Puts the image with these options from an NBD server.
    fn put_export(&self, kind: Kind, dirty_units: &[Range<u64>], options: &[&str], name: &str) -> Ran {
        let socket = self.site.root.path().join(format!("nbd {name}"));
        let content = fs::read(&self.source).unwrap();
        let export = Export { name: "disk.raw".to_owned(), content, dirty_units: dirty_units.to_vec() };
        let _server = Server::at(&socket, export, kind);
        let address = format!("nbd+unix:///disk.raw?socket={}", socket.display().to_string().replace(' ', "%20"));
        let to = self.site.mnt.join("vm7").join(name);
        let mut words = vec!["put".into()];
        words.extend(options.iter().map(std::ffi::OsString::from));
        words.extend([address.into(), to.into_os_string()]);
        run(DEDUPFS, &words)
    }

    /// Puts the image with these options.
    fn put(&self, options: &[&str], name: &str) -> Ran {
        let to = self.site.mnt.join("vm7").join(name);
        let mut words = vec!["put".into()];
        words.extend(options.iter().map(|option| match *option {
            "MAP" => self.map.clone().into_os_string(),
            option => option.into(),
        }));
        words.extend([self.source.clone().into_os_string(), to.into_os_string()]);
        run(DEDUPFS, &words)
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        fs::File::options().write(true).open(&self.source).unwrap().write_all_at(bytes, at).unwrap();
    }

    fn map(&self, text: &str) {
        fs::write(&self.map, text).unwrap();
    }

    fn assert_restored(&self, name: &str) {
        let (version, out) = (self.site.mnt.join("vm7").join(name), self.site.root.path().join(format!("out {name}")));
        run(DEDUPFS, &["get".into(), version.clone().into_os_string(), out.clone().into_os_string()]).ok();
        let expected = fs::read(&self.source).unwrap();
        assert!(fs::read(out.join("disk.raw")).unwrap() == expected, "by get: {name}");
        assert!(fs::read(version.join("disk.raw")).unwrap() == expected, "through the mount: {name}");
    }
}

#[test]
fn an_image_becomes_a_version_of_which_only_changes_are_read() {
    let Some(images) = Images::if_fuse() else { return };
    images
        .put(&["--token", "one"], "1")
        .expect(0, &["version with the image disk.raw (8 MiB) in", "read everything: there is no earlier version"]);
    images.assert_restored("1");
    images.overwrite(3_000_000, &[7; 5000]);
    images.map(r#"[{"offset":0,"length":2998272,"type":0,"description":"clean"},
        {"offset":2998272,"length":8192,"type":1,"description":"dirty"},{"offset":3006464,"length":5382144,"type":0,"description":"clean"}]"#);
    let put = images.put(&["--changed", "MAP", "--token-from", "one", "--token", "two", "--json"], "2").ok();
    let put: serde_json::Value = serde_json::from_str(&put.out).unwrap();
    let (image, read_bytes) = (&put["image"], put["image"]["read_bytes"].as_u64().unwrap());
    assert!((8192..300_000).contains(&read_bytes), "{put}");
    assert_eq!((&image["size_bytes"], &image["file_name"]), (&IMAGE_BYTES.into(), &"disk.raw".into()), "{put}");
    assert!(image["full_because"].is_null() && image["verified_bytes"].as_u64() > Some(1 << 20), "{put}");
    images.assert_restored("2");
    // A map that begins elsewhere, and one of nothing.
    images.overwrite(1 << 20, b"changed");
    images.map("# nothing\n");
    images
        .put(&["--changed", "MAP", "--token-from", "one", "--token", "three"], "3")
        .expect(0, &["begins at the state one", "the state two"]);
    images.assert_restored("3");
    images
        .put(&["--changed", "MAP", "--token-from", "three", "--verify", "full"], "4")
        .expect(0, &["read 0 B in and around changes, compared 8 MiB of the other 8 MiB"]);
    images
        .put(&["--changed", "MAP", "--base", images.site.mnt.join("vm7/gone").to_str().unwrap()], "5")
        .expect(0, &["there is no base"]);
    run(DEDUPFS, &["list".into(), images.site.mnt.join("vm7").into_os_string()]).expect(0, &["1", "5"]);
    images.site.umount().ok();
}

#[test]
fn a_map_that_lies_costs_a_full_read_and_a_code_of_its_own() {
    let Some(images) = Images::if_fuse() else { return };
    images.put(&["--image"], "1").ok();
    images.overwrite(5 << 20, b"not in the map");
    images.map("0 4096\n");
    images
        .put(&["--changed", "MAP", "--verify", "full"], "2")
        .expect(10, &["the map of changes is wrong", "read everything"]);
    images.assert_restored("2");
    images.site.umount().ok();
}

#[test]
fn command_lines_and_maps_that_make_no_sense_are_refused_and_nothing_is_made() {
    let Some(images) = Images::if_fuse() else { return };
    for options in [
        &["--changed", "MAP", "--live"][..],
        &["--image", "--one-file-system"],
        &["--token-from", "one"],
        &["--changed-format", "plain"],
        &["--changed", "MAP", "--reread"],
        &["--token", ""],
        &["--image", "--verify", "101%"],
        &["--image", "--incomplete-every", "10"],
        &["--as", "name"],
    ] {
        images.put(options, "no").expect(2, &[]);
    }
    for (map, advice) in
        [("", "is empty"), ("what", "its format is unknown"), ("0 999999999\n", "goes beyond the image"), ("[", "EOF")]
    {
        images.map(map);
        images.put(&["--changed", "MAP"], "no").expect(2, &["is no map of the changes of this image", advice]);
    }
    fs::remove_file(&images.map).unwrap();
    images.put(&["--changed", "MAP"], "no").expect(1, &["cannot open the map"]);
    images.put(&["--image", "--as", "a/b"], "no").expect(2, &["a slash"]);
    let directory = images.site.root.path();
    let to = images.site.mnt.join("vm7/no");
    run(DEDUPFS, &["put".as_ref(), "--image".as_ref(), directory.as_os_str(), to.as_os_str()])
        .expect(2, &["is no image of a disk"]);
    assert_eq!(fs::read_dir(images.site.mnt.join("vm7")).unwrap().count(), 0, "nothing is left");
    images.site.umount().ok();
}

#[test]
fn an_export_of_an_nbd_server_is_put_and_of_the_next_one_only_dirty_ranges_are_read() {
    let Some(images) = Images::if_fuse() else { return };
    images.overwrite(2 << 20, &[0; 1 << 20]);
    // Zeros that the server tells are not read.
    let read_bytes = |put: &Ran| {
        let put: serde_json::Value = serde_json::from_str(&put.out).unwrap();
        assert_eq!(put["image"]["size_bytes"], IMAGE_BYTES, "{put}");
        put["image"]["read_bytes"].as_u64().unwrap()
    };
    let put = images.put_export(Kind::Good, &[], &["--token", "one", "--json"], "1").ok();
    assert_eq!(read_bytes(&put), (7 << 20));
    images.assert_restored("1");
    images.overwrite(10 * UNIT_BYTES, &[7; 100]);
    images.overwrite(60 * UNIT_BYTES, &[0; UNIT_BYTES as usize]);
    let map = format!("nbd:{BITMAP}");
    let delta = ["--changed", &map, "--token-from", "one", "--token", "two"];
    let put = images.put_export(Kind::InParts, &[10..11, 60..61], &[&delta[..], &["--json"]].concat(), "2").ok();
    assert!((UNIT_BYTES..6 * UNIT_BYTES).contains(&read_bytes(&put)), "{}", put.out);
    images.assert_restored("2");
    // Dirty ranges that the server keeps silent about.
    images.overwrite(4 << 20, b"changed");
    images
        .put_export(Kind::Good, &[], &["--changed", &map, "--verify", "full"], "3")
        .expect(10, &["the map of changes is wrong"]);
    images.assert_restored("3");
    images.put_export(Kind::LacksContexts, &[], &delta, "4").expect(0, &["has no map", "read everything"]);
    images.put_export(Kind::NoExtents, &[], &delta, "5").expect(1, &["breaks the protocol"]);
    images.put_export(Kind::Old, &[], &["--image"], "6").ok();
    images.assert_restored("6");
    images.site.umount().ok();
}

/// Found by review: zeros that the sample had proved false were stored all the same.
#[test]
fn regression_zeros_of_an_nbd_server_that_are_none_are_not_believed_again() {
    let Some(images) = Images::if_fuse() else { return };
    images.put(&["--token", "one"], "1").ok();
    images.overwrite(10 * UNIT_BYTES, &[7; UNIT_BYTES as usize]);
    let map = format!("nbd:{BITMAP}");
    let delta = ["--changed", &map, "--token-from", "one"];
    let put = images.put_export(Kind::CallsDataZeros, std::slice::from_ref(&(10..11)), &delta, "2");
    put.expect(10, &["the map of changes is wrong", "read everything"]);
    images.assert_restored("2");
    for (options, name) in [(&["--verify", "full"][..], "3"), (&["--reread"], "4")] {
        images.put_export(Kind::CallsDataZeros, &[], options, name).ok();
        images.assert_restored(name);
    }
    images.site.umount().ok();
}

#[test]
fn nbd_servers_that_fail_are_named_and_nothing_is_made() {
    let Some(images) = Images::if_fuse() else { return };
    for (kind, why) in [
        (Kind::DemandsTls, "TLS"),
        (Kind::LacksExport, "there is no such export"),
        (Kind::RefusesReading, "cannot read the image"),
        (Kind::DataMissing, "breaks the protocol"),
        (Kind::Leaves, "cannot read the image: the connection to the NBD server broke"),
    ] {
        images.put_export(kind, &[], &[], "no").expect(1, &[why]);
        fs::remove_file(images.site.root.path().join("nbd no")).unwrap();
    }
    let put = |source: &str, options: &[&str]| {
        let to = images.site.mnt.join("vm7/no");
        let words = [&["put"], options, &[source, to.to_str().unwrap()]].concat();
        run(DEDUPFS, &words)
    };
    put("nbd+unix:///x?socket=/none", &[]).expect(1, &["cannot connect to nbd+unix:///x?socket=/none"]);
    put("nbd+unix:///x", &[]).expect(2, &["nbd+unix:///EXPORT?socket=PATH"]);
    put("nbds://host/x", &[]).expect(2, &["TLS"]);
    put("nbd://host/x", &["--changed", "nbd:base:allocation"]).expect(2, &["qemu:dirty-bitmap:NAME"]);
    put(images.source.to_str().unwrap(), &["--changed", &format!("nbd:{BITMAP}")]).expect(2, &["give an export"]);
    assert_eq!(fs::read_dir(images.site.mnt.join("vm7")).unwrap().count(), 0, "nothing is left");
    images.site.umount().ok();
}

#[test]
fn duplicates_are_detected_in_stages_and_only_new_chunks_are_read_again() {
    let Some(images) = Images::if_fuse() else { return };
    images.put(&["--staged"], "1").expect(0, &["detected in stages: 0 B were known or zeros, 8 MiB were read again"]);
    images.assert_restored("1");
    let bytes = fs::read(&images.source).unwrap();
    // Content of another place, zeros, and a change.
    images.overwrite(2 << 20, &bytes[5 << 20..7 << 20]);
    images.overwrite(4 << 20, &[0; 1 << 20]);
    images.overwrite(7 << 20, b"changed");
    images.map("2097152 3145728\n7340032 7\n");
    let options = ["--staged", "--changed", "MAP", "--verify", "full", "--json"];
    for name in ["2", "3"] {
        let put = images.put(&options, name).ok();
        let put: serde_json::Value = serde_json::from_str(&put.out).unwrap();
        let number = |name: &str| put["image"][name].as_u64().unwrap();
        assert!(put["image"]["full_because"].is_null() && number("read_bytes") < 200_000, "{put}");
        // All segments that the changes touch, and the last one.
        assert_eq!(number("named_bytes") + number("read_bytes"), 6 << 20, "{put}");
        images.assert_restored(name);
    }
    // A map that lies is found, and everything is read.
    images.overwrite(100, b"unseen");
    images.put(&options, "4").expect(10, &[]);
    images.assert_restored("4");
    images.put_export(Kind::Good, &[], &["--staged"], "5").expect(0, &["detected in stages"]);
    images.assert_restored("5");
    // Nothing of a changed image is held by names that are of no use.
    images.overwrite(6 << 20, &[9; 300_000]);
    images.map("6291456 300000\n");
    images.put(&["--staged", "--changed", "MAP"], "6").expect(0, &["detected in stages"]);
    images.assert_restored("6");
    images.site.umount().ok();
    run(DEDUPFS, &["fsck".into(), "--read-data".into(), images.site.pool.clone().into_os_string()]).ok();
}
