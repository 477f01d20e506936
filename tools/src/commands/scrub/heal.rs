//! `dedupfs scrub --heal-from`: lost content is stored again from the view of a replica.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use dedupfs::scrub::{COPIES_BYTES_MAX, LOST_AT_ONCE, LostContent, decode_lost, encode_copies};
use dedupfs::{OpenOptions, Pool, Progress as _};
use dedupfs_store::superblock::Role;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::access::{self, Access};
use crate::args::remote::ViewArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::Bars;
use crate::report::Healed;
use crate::view::Reader;
use crate::{interrupt, target};

/// Bytes of copies that travel together: with the largest one behind it, less than the daemon takes.
const COPIES_BYTES: usize = COPIES_BYTES_MAX / 4;

/// The pool that has losses.
enum Losing {
    Daemon(ControlClient),
    Local(Arc<Pool>),
}

/// Finds the replica, before the scrub: a mistake in its address or key is told at once.
pub(super) fn find(pool: &Path, store: &Path, args: &ViewArgs) -> Result<Reader, Failure> {
    let reader = Reader::find(store, args, None)?;
    let (own, other) = (target::superblock(pool, Role::Meta)?.pool, reader.of_pool());
    if own != other {
        let message = format!("{} is a replica of pool {other}, and not of {own}", store.display());
        return Err(FailureKind::Usage.because(message));
    }
    Ok(reader)
}

/// Stores everything that is lost again, as far as the replica has it.
pub(super) fn run(pool: &Path, reader: Reader) -> Result<Healed, Failure> {
    let opened = access::reach(pool, &access::to_write("dedupfs scrub --heal-from"))?;
    let (mut losing, local) = match opened {
        Access::Daemon(client) => (Losing::Daemon(client), None),
        Access::Local(pool) => (Losing::Local(pool.clone()), Some(pool)),
    };
    let healed = losing.heal_from(reader);
    let closed = local.map_or(Ok(()), |local| access::close(&local));
    healed
        .and_then(|healed| closed.map(|()| healed))
        .map_err(|failure| failure.while_trying("the scrub is done, but lost content is not healed"))
}

impl Losing {
    fn heal_from(&mut self, reader: Reader) -> Result<Healed, Failure> {
        let mut lost = self.lost()?;
        let mut healed = Healed { left: lost.len() as u64, ..Healed::default() };
        if lost.is_empty() {
            return Ok(healed);
        }
        let bars = Bars::default();
        let progress = interrupt::ended_by_signals(&bars)?;
        let options = OpenOptions::default();
        let opened = reader.open(options.memory_bytes, None, &progress)?;
        healed.commit = opened.commit();
        let view = opened.pool(&OpenOptions { note: "dedupfs scrub --heal-from".to_owned(), ..options })?;
        let done = loop {
            progress.start("healing lost content", lost.len() as u64);
            let done = self.heal(&lost, &view, &progress);
            progress.finish();
            match done {
                Ok(count) => healed.healed += count,
                Err(failure) => break Err(failure),
            }
            let was_full = lost.len() == LOST_AT_ONCE;
            let left = self.lost()?;
            // Another pass, while there is more than is told at once and it gets less.
            let goes_on = was_full && left != lost;
            lost = left;
            if !goes_on {
                break Ok(());
            }
        };
        bars.finish();
        access::close(&view)?;
        done?;
        healed.left = lost.len() as u64;
        Ok(healed)
    }

    fn heal(&mut self, lost: &[LostContent], view: &Pool, progress: &dyn dedupfs::Progress) -> Result<u64, Failure> {
        let (mut copies, mut bytes, mut healed) = (Vec::new(), 0, 0);
        for content in lost {
            if progress.is_cancelled() {
                return Err(Failure::failed("interrupted"));
            }
            match view.stored_content(content) {
                Ok(Some(copy)) => {
                    bytes += copy.len();
                    copies.push((*content, copy));
                }
                Ok(None) => {}
                Err(error) => progress.say(&format!("{}: {error}", content.fingerprint)),
            }
            if bytes >= COPIES_BYTES {
                healed += self.store(&std::mem::take(&mut copies))?;
                bytes = 0;
            }
            progress.advance(1);
        }
        Ok(healed + self.store(&copies)?)
    }

    fn lost(&mut self) -> Result<Vec<LostContent>, Failure> {
        match self {
            Self::Local(pool) => Ok(pool.lost_content(LOST_AT_ONCE)?),
            Self::Daemon(client) => {
                let file = in_memory()?;
                client.lost_content(LOST_AT_ONCE as u32, file.as_fd())?;
                let len = file.metadata().map_err(exchange)?.len();
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut bytes, 0).map_err(exchange)?;
                Ok(decode_lost(&bytes)?)
            }
        }
    }

    fn store(&mut self, copies: &[(LostContent, Vec<u8>)]) -> Result<u64, Failure> {
        if copies.is_empty() {
            return Ok(0);
        }
        match self {
            Self::Local(pool) => {
                let copies: Vec<_> = copies.iter().map(|(content, bytes)| (*content, bytes.as_slice())).collect();
                Ok(pool.heal(&copies)?)
            }
            Self::Daemon(client) => {
                let (file, bytes) = (in_memory()?, encode_copies(copies));
                file.write_all_at(&bytes, 0).map_err(exchange)?;
                client.heal(bytes.len() as u32, file.as_fd())
            }
        }
    }
}

fn in_memory() -> Result<File, Failure> {
    memfd_create("copies", MemfdFlags::CLOEXEC).map(File::from).map_err(|errno| exchange(errno.into()))
}

fn exchange(error: std::io::Error) -> Failure {
    Failure::failed(format!("copies cannot be exchanged with the daemon: {error}"))
}
