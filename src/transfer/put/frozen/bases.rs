//! The bases of a put: what earlier puts of its source that died have left, the newest first, and the last complete
//! version.
//!
//! The first base with a note for a name speaks for it; one without a note still tells the file's former content. A base
//! that cannot be read any more is given up, the others are not.

use dedupfs_base::Result;
use dedupfs_service::Ino;
use dedupfs_sync::OnceLock;

use super::super::options::VersionOptions;
use super::base::{Base, BaseDirectory, BaseEntry};
use crate::engine::Core;
use crate::service::Service;
use crate::versions::work::{IncompleteVersion, incomplete_in};

/// A base that is used until an error comes.
struct Used<'a> {
    base: Base<'a>,
    /// Of an incomplete version, the time of its naming.
    incomplete_secs: Option<i64>,
    given_up: OnceLock<String>,
}

/// The bases.
pub(super) struct Bases<'a> {
    used: Vec<Used<'a>>,
    /// Why there is no complete version among them.
    without: Option<String>,
}

/// A directory with its counterparts in the bases.
pub(super) struct BaseDirectories(Vec<Option<BaseDirectory>>);

impl<'a> Bases<'a> {
    pub(super) fn open(core: &'a Core, service: &'a Service, version: &VersionOptions) -> Self {
        if core.namespace.has_doubt() {
            let why = "content of the pool may be lost: all files are read, and what they have of it is stored again";
            return Self { used: Vec::new(), without: Some(why.to_owned()) };
        }
        let mut used = Vec::new();
        for IncompleteVersion { ino, named_secs } in incomplete(core, version) {
            match Base::open_incomplete(core, service, ino, &version.origin) {
                Ok(base) => used.push(Used { base, incomplete_secs: Some(named_secs), given_up: OnceLock::new() }),
                Err(why) => tracing::warn!(why, "an incomplete version of the source is not used"),
            }
        }
        let without = match Base::open(core, service, version.base, &version.origin) {
            Ok(base) => {
                used.push(Used { base, incomplete_secs: None, given_up: OnceLock::new() });
                None
            }
            Err(why) => Some(why),
        };
        Self { used, without }
    }

    /// The complete version that is used.
    pub(super) fn complete(&self) -> Option<Ino> {
        self.used.iter().find(|used| used.incomplete_secs.is_none()).map(|used| used.base.ino)
    }

    /// Why no complete version is used, or not to the end.
    pub(super) fn without_complete(&self) -> Option<String> {
        let used = self.used.iter().find(|used| used.incomplete_secs.is_none());
        self.without.clone().or_else(|| used.and_then(|used| used.given_up.get()).cloned())
    }

    /// The time of the newest incomplete version that is used, in seconds since 1970.
    pub(super) fn resumed_from_secs(&self) -> Option<i64> {
        self.used.iter().find_map(|used| used.incomplete_secs)
    }

    /// The uppermost directory.
    pub(super) fn top(&self) -> BaseDirectories {
        BaseDirectories(self.used.iter().map(|used| used.ask(|base| base.top().map(Some))).collect())
    }

    /// Returns the subdirectory of this name.
    pub(super) fn enter(&self, within: &mut BaseDirectories, name: &[u8]) -> BaseDirectories {
        let enter = |(used, within): (&Used<'_>, &mut Option<BaseDirectory>)| {
            within.as_mut().and_then(|within| used.ask(|base| base.enter(within, name)))
        };
        BaseDirectories(self.used.iter().zip(&mut within.0).map(enter).collect())
    }

    /// Returns the entry of this name with its note. Names must ascend from call to call.
    pub(super) fn entry(&self, within: &mut BaseDirectories, name: &[u8]) -> Option<BaseEntry> {
        let mut first = None;
        for (used, within) in self.used.iter().zip(&mut within.0) {
            // Each is asked, because the names that it has passed must ascend.
            let found = within.as_mut().and_then(|within| used.ask(|base| base.entry(within, name)));
            let is_better = |found: &BaseEntry| match &first {
                Some(BaseEntry { noted, .. }) => noted.ino == 0 && found.noted.ino != 0,
                None => true,
            };
            if let Some(found) = found.filter(is_better) {
                first = Some(BaseEntry { is_incomplete: used.incomplete_secs.is_some(), ..found });
            }
        }
        first
    }
}

impl<'a> Used<'a> {
    /// Asks the base, unless it was given up.
    fn ask<T>(&self, ask: impl FnOnce(&Base<'a>) -> Result<Option<T>>) -> Option<T> {
        if self.given_up.get().is_some() {
            return None;
        }
        ask(&self.base).unwrap_or_else(|error| {
            tracing::warn!(%error, "a base of a put cannot be read: its other entries are read from the source");
            self.given_up.get_or_init(|| format!("the base cannot be read: {error}"));
            None
        })
    }
}

/// Returns the incomplete versions that may be used.
fn incomplete(core: &Core, version: &VersionOptions) -> Vec<IncompleteVersion> {
    let Some(directory) = version.resume_in else { return Vec::new() };
    let find = || {
        core.committer.commit()?;
        incomplete_in(&core.namespace.committed()?, directory, &version.origin)
    };
    find().unwrap_or_else(|error| {
        tracing::warn!(%error, "incomplete versions of the source cannot be looked for");
        Vec::new()
    })
}
