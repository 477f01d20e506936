//! The incomplete version of a put: what is complete of its tree, named now and then, so that the next put need not read
//! it again if this one dies.
//!
//! It lies in the hidden directory of the put, where nothing lists it, and each one replaces the one before. Its notes are
//! a copy of those so far: the walk has come to the same entries. The next put judges it as it judges any base.
//!
//! Cost of one: the open ends of the tree as nodes, some changes of the namespace, and 16 bytes for each entry so far
//! written and synced as notes. The thread that builds the tree waits for it, those that read the source do not.

use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_service::Ino;
use dedupfs_sync::clock::Instant;

use super::super::options::VersionOptions;
use crate::engine::Core;
use crate::service::{Service, now};
use crate::versions::build::{Built, EntryAttributes, TreeBuilder};
use crate::versions::name::{Making, name_version};
use crate::versions::notes::{About, NotesWriter};
use crate::versions::work::INCOMPLETE_PREFIX;

/// A put that ends early names what it has if it worked at least this part of the time between two incomplete versions
/// since the last one. Reading again what takes less is cheaper than a directory that is left over.
const PART_AT_THE_END: u32 = 10;

/// The incomplete version of one put.
pub(super) struct SoFar<'a> {
    core: &'a Core,
    service: &'a Service,
    version: &'a VersionOptions,
    /// The hidden directory, and the final name in it.
    to: (Ino, &'a [u8]),
    every: Duration,
    begun: Instant,
    /// The last attempt.
    tried: Instant,
    stored_before: u64,
    count: u64,
    /// The name of the last one.
    name: Option<Vec<u8>>,
}

impl<'a> SoFar<'a> {
    /// `None` if this put is to name none.
    pub(super) fn new(
        core: &'a Core,
        service: &'a Service,
        version: &'a VersionOptions,
        to: (Ino, &'a [u8]),
        begun: Instant,
    ) -> Option<Self> {
        let every = Duration::from_millis(version.incomplete_every_ms);
        let stored_before = core.dedup.stats().bytes_stored;
        let so_far =
            Self { core, service, version, to, every, begun, tried: begun, stored_before, count: 0, name: None };
        (!every.is_zero()).then_some(so_far)
    }

    /// Names the tree so far if it is time.
    pub(super) fn look(&mut self, tree: &mut TreeBuilder<'_>, notes: Option<&NotesWriter>) {
        self.name_after(self.every, tree, notes);
    }

    /// Names the tree so far of a put that ends early, unless it is not worth it.
    pub(super) fn end_early(&mut self, tree: &mut TreeBuilder<'_>, notes: Option<&NotesWriter>) {
        self.name_after(self.every / PART_AT_THE_END, tree, notes);
    }

    fn name_after(&mut self, time: Duration, tree: &mut TreeBuilder<'_>, notes: Option<&NotesWriter>) {
        if let Some(notes) = notes
            && tree.depth() > 0
            && self.tried.elapsed() >= time
        {
            let rows = tree.open_rows();
            let room = self.service.admit_entries(rows);
            // Whoever is not the owner of the pool sees nothing in it: some attributes are not known yet.
            let attributes = EntryAttributes { mode: 0o700, ..EntryAttributes::default() };
            let built = room.and_then(|_room| tree.so_far(&attributes));
            let named = built.and_then(|built| self.name(built, notes));
            self.note(named);
        }
    }

    /// As [`end_early`](Self::end_early), for a tree that is complete.
    pub(super) fn end_whole(&mut self, built: Built, notes: &NotesWriter) {
        if self.tried.elapsed() >= self.every / PART_AT_THE_END {
            let named = self.name(built, notes);
            self.note(named);
        }
    }

    fn note(&mut self, named: Result<()>) {
        self.tried = Instant::now();
        if let Err(error) = named {
            tracing::warn!(%error, "what a put has copied so far could not be named: it is read again if the put dies");
        }
    }

    fn name(&mut self, built: Built, notes: &NotesWriter) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let making = Making {
            origin: &self.version.origin,
            new_bytes: self.core.dedup.stats().bytes_stored.saturating_sub(self.stored_before),
            problems: 0,
            elapsed: self.begun.elapsed(),
            is_incomplete: true,
            dated_secs: None,
            completed: now(),
        };
        let about = About::new(built.top(), &self.version.origin);
        let name = self.new_name();
        let named = name_version(self.core, built, (self.to.0, &name), &making)?;
        // The one before stays until this one is of use.
        let noted = notes.copy_for(named.ino, &about);
        let useless = if noted.is_ok() { self.name.replace(name) } else { Some(name) };
        useless.map_or(Ok(()), |name| self.service.forget_version(self.to.0, &name))?;
        noted
    }

    fn new_name(&mut self) -> Vec<u8> {
        loop {
            self.count += 1;
            let name = format!("{INCOMPLETE_PREFIX}{}", self.count).into_bytes();
            if name != self.to.1 {
                return name;
            }
        }
    }

    /// Forgets the incomplete version: the put is complete.
    pub(super) fn forget(self) {
        let forgotten = self.name.map_or(Ok(()), |name| self.service.forget_version(self.to.0, &name));
        if let Err(error) = forgotten {
            tracing::warn!(%error, "the incomplete version of a complete put stays until its directory is removed");
        }
    }
}
