//! A killed daemon keeps all answered synchronous writes, and of the last one at most a beginning.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::machine::search_path;
use crate::random::Random;
use crate::site::Site;

/// Writes one version after the other over the same bytes, and prints each answered one.
const WRITER: &str = "
import os, sys
path, how, offset, length = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
file = os.open(path, how | os.O_DSYNC)
version = 1
while True:
    try:
        if os.pwrite(file, bytes([version]) * length, offset) != length: break
    except OSError: break
    print(version, flush=True)
    version += 1
";

/// Bytes of each page of the page cache.
const PAGE_BYTES: usize = 4096;

struct Case {
    how: &'static str,
    offset: usize,
    length: usize,
    /// Offsets, from the start of the file, at which the new bytes may end and the old ones begin.
    may_be_cut_at: fn(usize) -> bool,
}

const CASES: [Case; 3] = [
    // One request of the kernel: there or not.
    Case { how: "os.O_WRONLY", offset: 1_234, length: 900_000, may_be_cut_at: |_| false },
    // Through the page cache the kernel makes one request of an incomplete first page, and others of the rest.
    Case { how: "os.O_RDWR", offset: 1_234, length: 900_000, may_be_cut_at: |at| at % PAGE_BYTES == 0 },
    // Several requests: a beginning may be there.
    Case { how: "os.O_WRONLY", offset: 0, length: 3_000_000, may_be_cut_at: |_| true },
];

#[test]
fn a_synchronous_write_that_was_not_answered_is_there_as_far_as_is_said() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let mut random = Random::new(crate::random::seed(9));
    for (number, case) in CASES.iter().enumerate() {
        let path = site.mnt.join(format!("file {number}"));
        fs::write(&path, vec![0; case.offset + case.length]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        for _ in 0..2 {
            let mut writer = Command::new("python3")
                .env("PATH", search_path())
                .args(["-c", WRITER])
                .arg(&path)
                .arg(case.how)
                .args([case.offset.to_string(), case.length.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let told = BufReader::new(writer.stdout.take().unwrap());
            let mut lines = told.lines();
            let mut answered: u8 = lines.next().unwrap().unwrap().parse().unwrap();
            std::thread::sleep(Duration::from_millis(random.between(20, 400)));
            site.kill_daemon();
            if let Some(last) = lines.map_while(Result::ok).last() {
                answered = last.parse().unwrap();
            }
            writer.wait().unwrap();
            site.mount();
            let content = fs::read(&path).unwrap();
            assert_eq!(content.len(), case.offset + case.length);
            let written = &content[case.offset..];
            let new_bytes = written.iter().take_while(|&&byte| byte == answered + 1).count();
            let rest = &written[new_bytes..];
            assert!(rest.iter().all(|&byte| byte == answered), "{}: not one version behind the other", case.how);
            let cut_at = case.offset + new_bytes;
            let is_whole = new_bytes == 0 || rest.is_empty();
            assert!(is_whole || (case.may_be_cut_at)(cut_at), "{}: cut at {cut_at}", case.how);
        }
    }
    site.umount();
    site.assert_clean();
}
