//! The file of named chunks that goes to the daemon with an image.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use dedupfs::transfer::{Fingerprint, NamedBytes, NamedChunk, SEALED_BYTES, encode_named};
use dedupfs_detect::{Record, Verdict};

use crate::control::Failure;

/// A file of named chunks that is being written.
pub(crate) struct Names(BufWriter<File>);

impl Names {
    /// Makes a file without a name, and a buffer of so many bytes.
    pub(crate) fn new(directory: &Path, buffer_bytes: usize) -> Result<Self, Failure> {
        let file = tempfile::tempfile_in(directory).map_err(|error| {
            let shown = directory.display();
            Failure::failed(format!("cannot make a file in {shown}: {error}: name another directory with TMPDIR"))
        })?;
        Ok(Self(BufWriter::with_capacity(buffer_bytes, file)))
    }

    /// Adds the next chunk.
    pub(crate) fn add(&mut self, record: &Record) -> io::Result<()> {
        let (bytes, sealed) = match record.verdict {
            Verdict::Known(proof) => (NamedBytes::InPool, proof),
            Verdict::New(proof) => (NamedBytes::InSource, proof),
            Verdict::Repeated => (NamedBytes::InPool, [0; SEALED_BYTES]),
        };
        let Record { at, len_bytes, fingerprint, .. } = *record;
        let chunk = NamedChunk { at, len_bytes, fingerprint: Fingerprint(fingerprint), bytes, sealed };
        self.0.write_all(&encode_named(&chunk))
    }

    /// Returns the file.
    pub(crate) fn finish(self) -> io::Result<File> {
        self.0.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
