//! `dedupfs put` of the image of a disk: a version with this image, of which only the changes since the base are read.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use dedupfs::transfer::{ImageBase, ImageOptions, NamedImage, VerifyImage};
use dedupfs::{Origin, Progress};

use super::{ask_before_naming, destination, frozen_at, origin_of, owner};
use crate::args::copies::{PutArgs, VERIFY_ALL};
use crate::control::{ControlClient, Failure, FailureKind, PutImageRequest};
use crate::hidden::HiddenDirectory;
use crate::image_source::{ImageSource, Wanted};
use crate::progress::Bars;
use crate::{changes, exit, inside, interrupt, staged};

/// Detects duplicates in stages, unless something is in the way: then says so, and the daemon reads the image.
fn named_or_told(
    args: &PutArgs,
    daemon: &mut ControlClient,
    source: &ImageSource,
    progress: &dyn Progress,
) -> Result<Option<File>, Failure> {
    let named = name_chunks(args, daemon, source, progress);
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    let why = match named {
        Ok(_) if source.has_changed() => "the image changed while its duplicates were detected".to_owned(),
        Ok(named) => return Ok(Some(named)),
        Err(failure) if failure.kind == FailureKind::Usage => return Err(failure),
        Err(failure) => format!("duplicates were not detected in stages: {}", failure.message),
    };
    exit::tell(&format!("dedupfs: {why}: it is read at once\n"));
    Ok(None)
}

/// Detects duplicates in stages: returns the file of named chunks.
fn name_chunks(
    args: &PutArgs,
    daemon: &mut ControlClient,
    source: &ImageSource,
    progress: &dyn Progress,
) -> Result<File, Failure> {
    // Whoever names a chunk gets its bytes.
    if !rustix::process::geteuid().is_root() {
        let why =
            "--staged takes content of the pool by its fingerprints, which only the superuser may do: leave it out";
        return Err(FailureKind::Usage.because(why));
    }
    let cutting = daemon.cutting()?;
    staged::name_chunks(daemon, (&cutting, source.to_detect()), source.reader(), args.rate, progress)
}

pub(super) fn run(args: &PutArgs) -> Result<u8, Failure> {
    let wanted = Wanted { source: &args.source, changed: args.changed.as_deref(), format: args.changed_format };
    let source = ImageSource::open(&wanted)?;
    let (to, place) = destination(args, source.device)?;
    let map = source.changes.as_ref().map(changes::as_file).transpose();
    let map = map.map_err(|error| Failure::failed(format!("cannot hand the map over: {error}")))?;
    let base = match &args.base {
        Some(base) => frozen_at(base, &place)?.map_or(ImageBase::Gone, ImageBase::Version),
        None => ImageBase::LastIn(place.ino),
    };
    let origin = match &source.address {
        // No path, which would be made absolute.
        Some(address) => Origin { source: address.clone().into_bytes(), ..origin_of(&args.source) },
        None => origin_of(&args.source),
    };
    let options = ImageOptions {
        base,
        file_name: args.file_name.as_ref().map(|name| name.as_bytes().to_vec()),
        default_file_name: source.file_name.as_bytes().to_vec(),
        reread: args.reread,
        token_from: args.token_from.clone(),
        token: args.token.clone(),
        export: None,
        named: NamedImage::No,
        without_map: source.without_map.clone(),
        verify: match args.verify {
            None => VerifyImage::default(),
            Some(0) => VerifyImage::None,
            Some(VERIFY_ALL..) => VerifyImage::Full,
            Some(millionths) => VerifyImage::Sample(millionths),
        },
        bytes_per_sec: args.rate,
        owner: owner()?,
        origin,
    };
    // From here on a signal ends the command in order, and the hidden directory goes.
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let hidden = HiddenDirectory::make(&to.directory, Some(&options.origin))?;
    let mut daemon = inside::daemon(&place.pool, inside::COPIES_NEED_NO_DAEMON)?;
    let named = args.staged.then(|| named_or_told(args, &mut daemon, &source, &progress)).transpose();
    let put = named
        .and_then(|named| {
            let named = named.flatten();
            let (image, export) = source.hand_over()?;
            let used = if named.is_some() { NamedImage::Helps } else { NamedImage::No };
            let options = ImageOptions { export, named: used, ..options };
            let request = PutImageRequest { into: hidden.ino, name: to.name.as_bytes().to_vec(), options };
            let files = (image.as_fd(), named.as_ref().map(AsFd::as_fd), map.as_ref().map(AsFd::as_fd));
            daemon.put_image(request, files, &progress)
        })
        .and_then(|report| {
            if progress.is_cancelled() {
                return Err(Failure::failed("interrupted"));
            }
            if args.asks_before_naming {
                ask_before_naming()?;
            }
            hidden.give_name(&to.name, &args.destination)?;
            to.directory.sync_all().map_err(|error| {
                let shown = args.destination.display();
                Failure::failed(format!("{shown} was put, but could not be made durable: {error}; see the pool's log"))
            })?;
            Ok(report)
        });
    bars.finish();
    hidden.remove_or_tell(&args.destination);
    let report = put?;
    let code = inside::conclude("put", &report, args.json)?;
    let has_lies = report.image.is_some_and(|image| !image.lies.is_empty());
    Ok(if has_lies && code == exit::OK { exit::MAP_IS_WRONG } else { code })
}
