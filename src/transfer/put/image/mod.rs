//! Puts the image of a disk: a version with one file, of which only the changes since a base are read.
//!
//! 1. [`base`] finds the file of an earlier version that the image is like, and holds it.
//! 2. A map names the ranges that changed since. Without a map or a base, or if the base's *token* is not that of the state at which the map
//!    begins, everything counts as changed. Without a token the base is taken as it is.
//! 3. Maps lie. [`sample`] compares unchanged content with the source by fingerprints. A difference means that everything is read.
//! 4. [`FileBody::follow`](dedupfs_content::FileBody::follow) reads what changed, and shares the rest. If the chunks of the changes were named
//!    ([`mod@named`]), [`FileBody::follow_named`](dedupfs_content::FileBody::follow_named) takes those that the pool has.
//! 5. The file gets the attributes of the source, and the token of its own state, for the next put.
//!
//! Batch deduplication for VM backup (section 3) does this with segments of 2 MiB, and checks nothing.
//!
//! Memory: the map, 24 bytes for each range; for each thread a run of new content, and 1 MiB of the source.

mod base;
mod named;
mod sample;
mod source;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dedupfs_base::EngineError;
use dedupfs_content::{Change, Changes, FileBody, FileContext, NamedRules, Published, StreamId};
use dedupfs_namespace::check_name;
use dedupfs_service::Ino;
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Attribute, Attributes, Content, encode_attributes};
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

pub use self::base::ImageBase;
use self::base::{Base, Checked};
use self::named::Named;
pub(crate) use self::named::answer;
pub use self::named::{ANSWER_BYTES, Cutter, Cutting, NAMED_RECORD_BYTES, QUESTION_BYTES, encode_named};
pub use self::sample::VerifyImage;
use self::source::Source;
use super::super::tally::Tally;
use super::super::{Result, TransferError, TransferReport};
use super::frozen::scope;
use super::options::Owner;
use crate::engine::Core;
use crate::progress::Progress;
use crate::service::{Service, now};
use crate::versions::build::{EntryAttributes, Keep, TreeBuilder};
use crate::versions::name::{Making, Origin, VersionReport, name_version};
use crate::versions::work::WORK_MARK;

/// The state of the source that an image holds, as its maker calls it.
pub const TOKEN_XATTR: &[u8] = b"user.dedupfs.token";
/// The content to which the token belongs: a file that was restored with its attributes, and changed, is no longer in that state.
const CONTENT_XATTR: &[u8] = b"user.dedupfs.content";
/// The source of an image.
const SOURCE_XATTR: &[u8] = b"user.dedupfs.source";
/// The time at which all of an image was last compared with its source or read from it, in seconds since 1970.
pub const CHECKED_XATTR: &[u8] = b"user.dedupfs.checked";
/// Longest token in bytes.
pub const TOKEN_BYTES_MAX: usize = 255;
/// Distinguishes the streams of these puts from those of processes.
const STREAM_BASE: u64 = 1 << 33;
/// Threads that read a source at most.
const THREADS_MAX: usize = 8;
/// How often names are followed again while containers are emptied, and the time between.
const NAMES_ATTEMPTS_MAX: u32 = 30;
const NAMES_PAUSE: Duration = Duration::from_secs(1);
/// Of a source that is shorter than the base, so much of the end is read.
const TAIL_BYTES: u64 = 1 << 20;

/// How an image is put.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageOptions {
    /// The source, for the version's record.
    pub origin: Origin,
    /// The image to which the map of changes refers.
    pub base: ImageBase,
    /// Name of the file in the version. If none is given, that of the base.
    pub file_name: Option<Vec<u8>>,
    /// Name that it has if the base gives none.
    pub default_file_name: Vec<u8>,
    /// Read everything. The base gives no more than its name to the file.
    pub reread: bool,
    /// The state at which the map begins: the base must be this one.
    pub token_from: Option<String>,
    /// The state that is put.
    pub token: Option<String>,
    /// The source is a socket of an NBD server, with which the caller agreed on this export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<dedupfs_nbd::Agreed>,
    /// Why there is no map of changes, although one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_map: Option<String>,
    /// A file of named chunks comes with the image.
    #[serde(default)]
    pub named: NamedImage,
    /// How much is compared with the source of the content that the map calls unchanged, or zeros.
    pub verify: VerifyImage,
    /// Bytes a second that are read at most.
    #[serde(default)]
    pub bytes_per_sec: Option<NonZeroU64>,
    /// The user that puts it, if it is not the superuser.
    pub owner: Option<Owner>,
}

/// The named chunks of an image: detection in stages cut them, and asked for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum NamedImage {
    /// None: what changed is read and cut here.
    #[default]
    No,
    /// They are a help: where they do not fit, the image is read.
    Helps,
    /// The image has only the bytes that they call new: where they do not fit, nothing is put.
    IsAll,
}

/// The files of an image.
pub struct ImageFiles {
    /// The image: a regular file, a block device or the socket of an NBD server.
    pub image: OwnedFd,
    /// The changes since the base, if they are known.
    pub changes: Option<Changes>,
    /// Its named chunks, if [`ImageOptions::named`] says so.
    pub named: Option<OwnedFd>,
}

impl ImageFiles {
    /// An image with, perhaps, a map of its changes.
    #[must_use]
    pub fn new(image: OwnedFd, changes: Option<Changes>) -> Self {
        Self { image, changes, named: None }
    }
}

/// The reading of an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageReport {
    /// Name of the file in the version.
    pub file_name: String,
    /// Length of the image.
    pub size_bytes: u64,
    /// Bytes that were read because they count as changed, with what lies around them in their chunks.
    pub read_bytes: u64,
    /// Bytes that were compared besides.
    pub verified_bytes: u64,
    /// Why everything was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_because: Option<String>,
    /// Bytes that the named chunks cover and that were not read: the pool had them, or they are zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_bytes: Option<u64>,
    /// The first ranges that the map called unchanged, or zeros, and that are something else. Everything was read then.
    #[serde(default)]
    pub lies: Vec<[u64; 2]>,
}

/// A put under way.
struct ImagePut<'a> {
    options: &'a ImageOptions,
    core: &'a Core,
    files: Arc<FileContext>,
    stream: StreamId,
    threads: usize,
    /// Named chunks, and the context of content of whose chunks answers were given ahead.
    named: Option<(Mutex<Named>, Arc<FileContext>)>,
}

/// The result of following a map of changes.
enum Followed {
    /// The content.
    Whole(Box<FileBody>),
    /// It is wrong, with the reason.
    Lies(String),
}

/// The file of the version.
struct Image {
    root: Root,
    data_bytes: u64,
    keep: Vec<Keep>,
    report: ImageReport,
    checked: Checked,
}

/// Makes a version with the image `source`, which is a regular file, a block device or the socket of an NBD server, and names it `name` in the directory `into` of the
/// pool. `changes` are those since the base.
///
/// # Errors
/// `changes` lie beyond the source; the source cannot be read; the pool takes no more; `progress` is cancelled. Then nothing has the name.
pub(crate) fn put_image(
    core: &Core,
    service: &Service,
    options: &ImageOptions,
    files: ImageFiles,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let ImageFiles { image: source, changes, named } = files;
    check_name(name)?;
    let begun = Instant::now();
    drop(core.begin_change()?);
    core.namespace.check_versions()?;
    // The kernel must see nothing of what is named, and forgotten if the put is interrupted.
    let has_mark = core.namespace.xattr(into, WORK_MARK)?.is_some();
    let _hidden = has_mark.then(|| service.hide(into)).transpose()?;
    let stored_before = core.dedup.stats().bytes_stored;
    let threads = dedupfs_sync::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(THREADS_MAX);
    let tally = Tally::new(progress).with_rate(options.bytes_per_sec);
    let path = PathBuf::from(OsStr::from_bytes(&options.origin.source));
    let source = Source::open((source, options.export.as_ref(), path), (core, service), &tally)?;
    // Held until the version is named, so that what it shares stays.
    let base = Base::open(core, service, &options.base);
    let base_ino = base.as_ref().ok().map(|base| base.version);
    let new_content = scope::context(core, service, &tally, (into, base_ino));
    let files = Arc::new(new_content.files.finer(source.size_bytes));
    let named = named.filter(|_| options.named != NamedImage::No).map(|file| {
        let named = Named::new(core, file);
        let files = core.files.finer(source.size_bytes).with_kept(named.kept.clone());
        (Mutex::new(named), Arc::new(files))
    });
    if options.named != NamedImage::No && named.is_none() {
        return Err(TransferError::Top("the named chunks of the image did not come with it".to_owned()));
    }
    let put = ImagePut { options, core, files, stream: StreamId(STREAM_BASE | into), threads, named };
    let file_name = put.file_name(base.as_ref().ok())?;
    let made = put.image(&source, base.as_ref().map_err(String::as_str), changes)?;
    if source.has_changed() {
        let what = "changed while it was read: it may be neither as it was nor as it is".to_owned();
        tally.problem(&put.path(), what);
    }
    let (report, checked) = (ImageReport { file_name: dedupfs_base::shown(&file_name), ..made.report }, made.checked);
    let (attributes, mut keep) = put.attributes(&source, base.as_ref().ok(), (&made.root, checked))?;
    keep.extend(made.keep);
    let _pass = core.begin_change()?;
    let room = service.admit_entries(2)?;
    let mut tree = TreeBuilder::new(&core.dedup, put.stream);
    tree.begin_directory(b"");
    let top = put.top_attributes(&attributes);
    let content = Content::File { root: made.root, data_bytes: made.data_bytes };
    tree.add(&file_name, attributes, None, content, keep)?;
    let built = tree.finish(top)?;
    drop(room);
    // A client that has gone gives the version no name.
    tally.note(tally.go_on(), PathBuf::new);
    tally.file(report.read_bytes);
    let mut transfer = tally.finish()?;
    let making = Making {
        dated_secs: None,
        origin: &options.origin,
        new_bytes: core.dedup.stats().bytes_stored.saturating_sub(stored_before),
        problems: transfer.problem_count,
        elapsed: begun.elapsed(),
        is_incomplete: false,
        completed: now(),
    };
    let named = name_version(core, built, (into, name), &making)?;
    transfer.version = Some(VersionReport { base: base_ino, without_base: report.full_because.clone(), ..named });
    transfer.image = Some(report);
    core.relieve()?;
    Ok(transfer)
}

/// Names the content of a root.
fn content_name(root: &Root) -> String {
    let fingerprint = root.reference().map_or_else(String::new, |reference| reference.fingerprint().to_string());
    format!("{} {fingerprint}", root.len_bytes())
}

/// Whether an error tells of content of the pool that cannot be read.
fn is_damage(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::NotFound
            | EngineError::Store(StoreError::Corrupt { .. } | StoreError::Io { .. } | StoreError::NotFound { .. })
    )
}

impl ImagePut<'_> {
    fn path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.options.origin.source))
    }

    fn file_name(&self, base: Option<&Base<'_>>) -> Result<Vec<u8>> {
        let ImageOptions { file_name, default_file_name, .. } = self.options;
        let name = file_name.as_ref().or(base.map(|base| &base.entry.name)).unwrap_or(default_file_name);
        check_name(name)?;
        Ok(name.clone())
    }

    /// Stores the content.
    fn image(
        &self,
        source: &Source<'_>,
        base: std::result::Result<&Base<'_>, &str>,
        changes: Option<Changes>,
    ) -> Result<Image> {
        if let Some(last) = changes.as_ref().and_then(|changes| changes.ranges().last())
            && last.to > source.size_bytes
        {
            let (to, size_bytes) = (last.to, source.size_bytes);
            let why = format!(
                "the map of changes goes to {to}, and the image has {size_bytes} bytes: give the map of this image"
            );
            return Err(TransferError::Top(why));
        }
        let mut report = ImageReport { size_bytes: source.size_bytes, ..ImageReport::default() };
        let mut checked = match self.options.verify {
            VerifyImage::Full => Checked::Now,
            VerifyImage::None | VerifyImage::Sample(_) => Checked::AsBefore,
        };
        let everything = Changes::all(source.size_bytes);
        let had_map = changes.is_some();
        let followed = self.known_changes(base, changes).and_then(|(base, changes)| {
            let outcome = self.follow_map(source, base, &changes, &mut report);
            match outcome {
                Err(TransferError::Pool(error)) if is_damage(&error) => {
                    Err(format!("the base cannot be read: {error}"))
                }
                Ok(Followed::Lies(why)) => Err(why),
                Ok(Followed::Whole(body)) => Ok(Ok(*body)),
                Err(error) => Ok(Err(error)),
            }
        });
        let mut body = match followed {
            Ok(body) => body?,
            Err(why) => {
                // Zeros of a map, or of a server that is not to be believed, are among the names.
                let by_name = match had_map || self.doubts_zeros(&report) {
                    true => None,
                    false => self.follow_names(source, &Root::Empty, &everything, &mut report)?,
                };
                if self.options.named == NamedImage::IsAll && by_name.is_none() {
                    let why = format!("the chunks that were new are not enough, because {why}: the image must be read");
                    return Err(TransferError::Top(why));
                }
                if let Some(mut body) = by_name {
                    report.full_because = Some(why);
                    let (root, data_bytes, keep) = self.publish(&mut body)?;
                    let keep = keep.into_iter().collect();
                    // Machines of a cluster do not tell what server they read from.
                    let is_read = self.options.named == NamedImage::Helps && !source.is_export();
                    let checked = if is_read { Checked::Now } else { Checked::AsBefore };
                    return Ok(Image { root, data_bytes, keep, report, checked });
                }
                tracing::info!(why, image = %self.path().display(), "all of an image is read");
                report.full_because = Some(why);
                // A chunk of the base may be lost.
                let former = base.ok().filter(|base| !self.may_lack(base)).map_or(Root::Empty, Base::root);
                let (body, reads_all) = self.whole(source, former, &mut report)?;
                // Zeros that a server tells are believed, and not read.
                checked = if reads_all { Checked::Now } else { Checked::AsBefore };
                body
            }
        };
        let (root, data_bytes, keep) = self.publish(&mut body)?;
        Ok(Image { root, data_bytes, keep: keep.into_iter().collect(), report, checked })
    }

    /// Stores the content that the base and a map of changes give, if the map does not lie as far as it is compared.
    fn follow_map(
        &self,
        source: &Source<'_>,
        base: &Base<'_>,
        changes: &Changes,
        report: &mut ImageReport,
    ) -> Result<Followed> {
        let mut body = self.body(&base.root())?;
        let lies = sample::compare(self, &body, source, changes)?;
        report.verified_bytes = source.take_read_bytes();
        if let Some(first) = lies.first() {
            for lie in &lies {
                let (from, to) = (lie.start, lie.end);
                tracing::warn!(from, to, image = %self.path().display(), "this range is not as the map of changes says");
            }
            report.lies = lies.iter().map(|lie| [lie.start, lie.end]).collect();
            let (from, to) = (first.start, first.end);
            return Ok(Followed::Lies(format!(
                "the map of changes is wrong: bytes {from} to {to}, at least, are not as it says"
            )));
        }
        let tail;
        let changes = match body.size_bytes() > source.size_bytes {
            // The last chunk of the source is cut out of one of the base: it must not come from there.
            true => {
                tail = changes.with_all_from(source.size_bytes.saturating_sub(TAIL_BYTES), source.size_bytes);
                &tail
            }
            false => changes,
        };
        if let Some(body) = self.follow_names(source, &base.root(), changes, report)? {
            return Ok(Followed::Whole(Box::new(body)));
        }
        let followed = body.follow(self.stream, source, (changes, source.size_bytes), self.threads);
        followed.map_err(|error| source.reason(error))?;
        report.read_bytes = source.take_read_bytes();
        Ok(Followed::Whole(Box::new(body)))
    }

    /// Stores the content that a root and the named chunks give, if there are any, they cover the changes, and the pool has those that it
    /// should have.
    fn follow_names(
        &self,
        source: &Source<'_>,
        root: &Root,
        changes: &Changes,
        report: &mut ImageReport,
    ) -> Result<Option<FileBody>> {
        let Some((named, files)) = &self.named else { return Ok(None) };
        let mut named = named.lock();
        let kept = named.kept.clone();
        let rules = NamedRules { kept: &kept, is_strict: self.options.named == NamedImage::IsAll };
        let mut attempts = 0;
        let mut follow = || {
            let mut body = FileBody::open(files.clone(), root)?;
            let mut covered_bytes = 0;
            named.read(|next| {
                let ranges = body.follow_named(self.stream, source, next, (rules, source.size_bytes))?;
                covered_bytes = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
                let covers = |change: &Change| {
                    let at = ranges.partition_point(|range| range.end < change.to);
                    ranges.get(at).is_some_and(|range| range.start <= change.from)
                };
                match changes.ranges().iter().all(covers) {
                    true => Ok(()),
                    false => Err(EngineError::Invalid("named chunks leave out a changed range")),
                }
            })?;
            Ok((body, covered_bytes))
        };
        let followed = loop {
            // A chunk in a container that is being emptied is there again in a moment.
            let is_moving = self.core.dedup.claims_containers();
            match follow() {
                Err(TransferError::Pool(EngineError::ChunkGone)) if is_moving && attempts < NAMES_ATTEMPTS_MAX => {
                    attempts += 1;
                    source.wait(NAMES_PAUSE)?;
                }
                followed => break followed,
            }
        };
        let why = match followed {
            Ok((body, covered_bytes)) => {
                report.read_bytes = source.take_read_bytes();
                report.named_bytes = Some(covered_bytes - report.read_bytes.min(covered_bytes));
                return Ok(Some(body));
            }
            Err(TransferError::Pool(error @ (EngineError::ChunkGone | EngineError::Invalid(_)))) => error,
            Err(TransferError::Pool(error)) => return Err(source.reason(error)),
            Err(error) => return Err(error),
        };
        if self.options.named == NamedImage::IsAll {
            return Err(why.into());
        }
        tracing::warn!(%why, image = %self.path().display(), "named chunks are of no use: the image is read");
        Ok(None)
    }

    /// Stores all of the source, and returns whether all of it was read, or is a hole of its file. Chunks of the base are found without
    /// asking the index.
    fn whole(&self, source: &Source<'_>, base: Root, report: &mut ImageReport) -> Result<(FileBody, bool)> {
        let files = &self.files;
        // Of a comparison, or of a base that cannot be read to its end.
        report.verified_bytes += source.take_read_bytes();
        let mut body = match FileBody::anew(files.clone(), &base) {
            Ok(body) => body,
            Err(_) => self.body(&Root::Empty)?,
        };
        let everything = if self.doubts_zeros(report) { Changes::all(source.size_bytes) } else { source.everything() };
        let followed = body.follow(self.stream, source, (&everything, source.size_bytes), self.threads);
        followed.map_err(|error| source.reason(error))?;
        report.read_bytes = source.take_read_bytes();
        let reads_all = !source.is_export() || everything.ranges().iter().all(|change| !change.is_zero);
        Ok((body, reads_all))
    }

    /// Returns the base and the changes since, or why they are not known.
    fn known_changes<'a, 'b>(
        &self,
        base: std::result::Result<&'a Base<'b>, &str>,
        changes: Option<Changes>,
    ) -> std::result::Result<(&'a Base<'b>, Changes), String> {
        if self.options.reread {
            return Err("--reread asks for that".to_owned());
        }
        let changes = changes.ok_or_else(|| {
            let told = self.options.without_map.as_deref().or(base.err());
            told.unwrap_or("no map of changes was given").to_owned()
        })?;
        let base = base.map_err(str::to_owned)?;
        if self.may_lack(base) {
            let why = "content of the base is lost: all of the image is read, and what it has of it is stored again";
            return Err(why.to_owned());
        }
        if let Some(from) = &self.options.token_from {
            match base.token() {
                Some(token) if token == from.as_bytes() => {}
                Some(token) => {
                    let token = dedupfs_base::shown(token);
                    return Err(format!("the map begins at the state {from}, and the base is the state {token}"));
                }
                None => return Err(format!("the map begins at the state {from}, and the base names no state")),
            }
        }
        Ok((base, changes))
    }

    /// Whether told zeros are read: whoever told zeros that were none is not believed again.
    fn doubts_zeros(&self, report: &ImageReport) -> bool {
        !report.lies.is_empty() || self.options.reread || self.options.verify == VerifyImage::Full
    }

    /// Whether content of the base may be lost: then reading the source stores it again.
    fn may_lack(&self, base: &Base<'_>) -> bool {
        let lacks = base.root().reference().map(|reference| self.core.dedup.may_lack_below(&reference));
        // What cannot be read is no help either.
        lacks.is_some_and(|lacks| lacks.unwrap_or(true))
    }

    fn body(&self, root: &Root) -> Result<FileBody> {
        Ok(FileBody::open(self.files.clone(), root)?)
    }

    /// Publishes content, and pins what its root names.
    fn publish(&self, body: &mut FileBody) -> Result<(Root, u64, Option<Keep>)> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.admit(self.core.cost.of_lists(body.piece_count() as u64))?;
        let mut outcome = None;
        let mut log = |published: Published| {
            let keep = self.core.dedup.pin_root(&published.root).map(|pin| Keep::Root(Arc::new(pin)));
            outcome = Some((published.root, published.data_bytes, keep));
            Ok(())
        };
        body.publish(self.stream, &mut log)?;
        outcome.ok_or_else(|| EngineError::Internal("an image that was not published").into())
    }

    /// The attributes of the source, and what is known of the image.
    fn attributes(
        &self,
        source: &Source<'_>,
        base: Option<&Base<'_>>,
        (root, checked): (&Root, Checked),
    ) -> Result<(EntryAttributes, Vec<Keep>)> {
        let mut attributes = source.attributes(self.options.owner.as_ref());
        let mut set: Vec<Attribute> = source.xattrs(attributes.mode, self.options.owner.is_some())?;
        set.retain(|(name, _)| ![TOKEN_XATTR, CONTENT_XATTR, SOURCE_XATTR, CHECKED_XATTR].contains(&&**name));
        if let Some(token) = &self.options.token {
            set.push((TOKEN_XATTR.to_vec(), token.clone().into_bytes()));
            set.push((CONTENT_XATTR.to_vec(), content_name(root).into_bytes()));
        }
        set.push((SOURCE_XATTR.to_vec(), self.options.origin.source.clone()));
        let checked = match checked {
            Checked::Now => Some(now().secs.to_string().into_bytes()),
            Checked::AsBefore => base.and_then(Base::checked).map(<[u8]>::to_vec),
        };
        set.extend(checked.map(|checked| (CHECKED_XATTR.to_vec(), checked)));
        set.sort_unstable();
        let encoded = encode_attributes(&set);
        let mut keep = Vec::new();
        attributes.attributes = if encoded.len() <= dedupfs_store::tree::ATTRIBUTES_INLINE_BYTES_MAX {
            Attributes::Inline(encoded)
        } else {
            let mut body = self.body(&Root::Empty)?;
            body.write(self.stream, 0, &encoded)?;
            let (root, _, pin) = self.publish(&mut body)?;
            keep.extend(pin);
            Attributes::Stored(root)
        };
        Ok((attributes, keep))
    }

    /// The attributes of the version: it belongs to the owner of the image.
    fn top_attributes(&self, image: &EntryAttributes) -> EntryAttributes {
        let may_list = (image.mode & 0o444) >> 2;
        let mode = 0o700 | (image.mode & 0o777) | may_list;
        EntryAttributes { mode, attributes: Attributes::default(), ..image.clone() }
    }
}
