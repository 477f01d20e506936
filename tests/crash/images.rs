//! Images in the workload: a disk changes in some places, and is put by a map of the changes since the put before.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use dedupfs::NoProgress;
use dedupfs::transfer::{
    Change, Changes, ImageBase, ImageFiles, ImageOptions, NamedBytes, NamedChunk, NamedImage, VerifyImage, encode_named,
};
use dedupfs_service::ROOT_INO;
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::workload::{PIECES, Workload, piece};

/// The image is no longer than this.
const SIZE_BYTES_MAX: usize = 150_000;

/// A disk of which images are put.
#[derive(Default)]
pub struct Disk {
    bytes: Vec<u8>,
    puts: u64,
    /// Name of the last image, or of the version that took it.
    last: String,
}

impl Workload {
    /// Changes the disk, and puts it.
    pub fn put_image(&mut self) {
        let changes = self.change_disk();
        let name = format!("v{}", self.random.below(3));
        if self.versions.contains_key(&name) {
            self.forget_version(&name);
        }
        let site = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("makes a directory");
        let image = site.path().join("disk");
        fs::write(&image, &self.disk.bytes).expect("writes");
        fs::set_permissions(&image, Permissions::from_mode(0o640)).expect("sets the mode");
        let (from, to) = (self.disk.puts, self.disk.puts + 1);
        let last = self.engine().find(&self.disk.last);
        (self.disk.puts, self.disk.last) = (to, name.clone());
        self.versions.insert(name.clone(), described(&name, &self.disk.bytes, &to.to_string()));
        self.note();
        let options = ImageOptions {
            // If this is another version than the last image, its token tells.
            base: last.map_or(ImageBase::LastIn(ROOT_INO), |last| ImageBase::Version(last.ino)),
            file_name: Some(b"disk".to_vec()),
            token_from: Some(from.to_string()),
            token: Some(to.to_string()),
            verify: [VerifyImage::None, VerifyImage::Full][self.random.below(2) as usize],
            named: [NamedImage::No, NamedImage::Helps][self.random.below(2) as usize],
            ..ImageOptions::default()
        };
        let source = File::open(&image).expect("opens").into();
        let to = (ROOT_INO, name.as_bytes());
        let named = (options.named == NamedImage::Helps).then(|| self.named(&changes));
        let files = ImageFiles { image: source, changes: Some(changes), named };
        let report = self.pool().put_image(&options, files, to, &NoProgress).expect("puts");
        let image = report.image.expect("tells of the image");
        assert_eq!((report.problem_count, image.lies), (0, vec![]));
        if image.full_because.is_none() {
            self.images_by_map += 1;
        }
        self.images_by_name += u64::from(image.named_bytes.is_some());
    }

    /// Names the chunks of the changes and of the end, as detection in stages does.
    fn named(&self, changes: &Changes) -> OwnedFd {
        let size = self.disk.bytes.len() as u64;
        let cutter = self.pool().cutting().cutter().expect("knows the pool's way of cutting");
        let mut seen = HashSet::new();
        let mut text = Vec::new();
        let mut at = 0;
        // The end is shorter than a mebibyte: everything up to it counts.
        let ranges = changes.with_all_from(size.saturating_sub(1 << 20), size);
        for range in ranges.ranges() {
            at = range.from.max(at);
            let mut chunks = Vec::new();
            cutter.cut(&self.disk.bytes[at as usize..range.to as usize], true, &mut chunks);
            for (fingerprint, len_bytes) in chunks {
                let question: Vec<u8> = fingerprint.0.into_iter().chain(len_bytes.to_le_bytes()).collect();
                let answer = self.pool().answer_ahead(&question).expect("answers");
                let is_known = answer[0] == 1 || fingerprint.is_zero() || !seen.insert(fingerprint);
                let bytes = if is_known { NamedBytes::InPool } else { NamedBytes::InSource };
                let sealed = answer[1..].try_into().expect("an answer");
                text.extend(encode_named(&NamedChunk { at, len_bytes, fingerprint, bytes, sealed }));
                at += u64::from(len_bytes);
            }
        }
        let mut file = tempfile::tempfile().expect("makes a file");
        file.write_all(&text).expect("writes");
        file.into()
    }

    /// Changes the disk in some places. Returns the map.
    fn change_disk(&mut self) -> Changes {
        let before_bytes = self.disk.bytes.len();
        if self.disk.puts == 0 || self.random.one_in(4) {
            let size = self.random.below(SIZE_BYTES_MAX as u64) as usize;
            let grown = (0..).flat_map(|number| piece((number + size as u64) % PIECES)).take(size);
            let grown: Vec<u8> = grown.skip(before_bytes).collect();
            self.disk.bytes.extend(grown);
            self.disk.bytes.truncate(size);
        }
        let size = self.disk.bytes.len();
        let mut changed: Vec<(u64, u64)> = Vec::new();
        if size > before_bytes {
            changed.push((before_bytes as u64, size as u64));
        }
        for _ in 0..self.random.below(4) {
            let (at, new) = (self.random.below(size as u64 + 1) as usize, piece(self.random.below(PIECES)));
            let to = (at + new.len()).min(size);
            self.disk.bytes[at..to].copy_from_slice(&new[..to - at]);
            if at < to {
                changed.push((at as u64, to as u64));
            }
        }
        changed.sort_unstable();
        let mut merged: Vec<Change> = Vec::new();
        for (from, to) in changed {
            match merged.last_mut() {
                Some(last) if from <= last.to => last.to = last.to.max(to),
                _ => merged.push(Change { from, to, is_zero: false }),
            }
        }
        Changes::new(merged).expect("is in order")
    }
}

/// Describes the version of an image.
fn described(version: &str, bytes: &[u8], token: &str) -> String {
    let (len, content) = (bytes.len(), XxHash3_128::oneshot(bytes));
    let (source, token) = (XxHash3_64::oneshot(b""), XxHash3_64::oneshot(token.as_bytes()));
    format!(
        "/{version} Directory 750 x2\n/{version}/disk Regular 640 x1 {len} {content:032x} user.dedupfs.checked \
         user.dedupfs.content user.dedupfs.source={source:x} user.dedupfs.token={token:x}\n"
    )
}
