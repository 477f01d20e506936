//! Questions to the daemon about chunks. They travel in a file in memory, which takes the answers as well.

use std::borrow::BorrowMut;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use dedupfs::transfer::{ANSWER_BYTES, QUESTION_BYTES};
use dedupfs_detect::{Answer, Chunk, Error, Pool, Result};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::control::{ControlClient, Failure};

const _: () = assert!(dedupfs_detect::ASKED_AT_ONCE <= dedupfs::transfer::ASKED_AT_ONCE);

/// The index of a mounted pool. Memory: the questions of one call, and their answers.
pub(crate) struct DaemonIndex<D> {
    daemon: D,
    file: File,
    bytes: Vec<u8>,
}

impl<D: BorrowMut<ControlClient>> DaemonIndex<D> {
    pub(crate) fn new(daemon: D) -> std::result::Result<Self, Failure> {
        let file = memfd_create("questions", MemfdFlags::CLOEXEC)
            .map_err(|errno| Failure::failed(format!("cannot make a file in memory: {errno}")))?;
        Ok(Self { daemon, file: file.into(), bytes: Vec::new() })
    }
}

fn is_zero(chunk: &Chunk) -> bool {
    chunk.fingerprint == [0; 32]
}

impl<D: BorrowMut<ControlClient>> Pool for DaemonIndex<D> {
    /// Answers that zeros are known, and asks the daemon for the others.
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>> {
        let failed = |error: std::io::Error| Error::Pool(format!("questions cannot be exchanged: {error}"));
        self.bytes.clear();
        let asked: Vec<&Chunk> = chunks.iter().filter(|chunk| !is_zero(chunk)).collect();
        for chunk in &asked {
            self.bytes.extend_from_slice(&chunk.fingerprint);
            self.bytes.extend_from_slice(&chunk.len_bytes.to_le_bytes());
        }
        if !asked.is_empty() {
            debug_assert_eq!(self.bytes.len(), asked.len() * QUESTION_BYTES);
            self.file.write_all_at(&self.bytes, 0).map_err(failed)?;
            let count = u32::try_from(asked.len()).unwrap_or(u32::MAX);
            self.daemon
                .borrow_mut()
                .answer_ahead(count, self.file.as_fd())
                .map_err(|failure| Error::Pool(failure.to_string()))?;
        }
        self.bytes.resize(asked.len() * ANSWER_BYTES, 0);
        self.file.read_exact_at(&mut self.bytes, 0).map_err(failed)?;
        let (answers, _) = self.bytes.as_chunks::<ANSWER_BYTES>();
        let mut answers = answers.iter();
        let answer = |chunk: &Chunk| {
            if is_zero(chunk) {
                return Answer { is_known: true, proof: [0; 20] };
            }
            let [is_known, proof @ ..] = *answers.next().unwrap_or(&[0; ANSWER_BYTES]);
            Answer { is_known: is_known == 1, proof }
        };
        Ok(chunks.iter().map(answer).collect())
    }
}
