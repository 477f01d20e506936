//! Assigns streams to open containers (stream locality as in MAD2 and DDFS).
//!
//! 1. A stream keeps its container until that is full.
//! 2. A stream without a container takes over one whose process is gone. Otherwise it takes the container that has been
//!    idle longest, if that is more than [`IDLE_AFTER_MS`]. Otherwise it opens a new one. At the limit of open
//!    containers it takes the least recently used.
//!
//! So the chunks of two living streams mix in one container only when there are more streams than open containers, or
//! when one was idle. [`choose`] is pure; one short lock guards the streams (second in the order of [`super`]).

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_sync::process;

use super::open_container::OpenContainer;

/// A writing process (its pid), or an id of at least 2^32 for a writer that is no process and never ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamId(pub u64);

/// The stream of the chunks that reclaiming copies forward.
pub const RECLAIM_STREAM: StreamId = StreamId(u64::MAX);
/// The stream of those among them that the newest versions use.
pub const ACTIVE_STREAM: StreamId = StreamId(u64::MAX - 1);

/// A container not written for longer than this may be taken over by a new stream.
pub(super) const IDLE_AFTER_MS: u64 = 5_000;

impl StreamId {
    /// Whether it is one of reclaiming, whose containers lie in rows.
    pub(super) fn is_arranged(self) -> bool {
        self == RECLAIM_STREAM || self == ACTIVE_STREAM
    }

    /// Whether this was a process that no longer exists.
    fn is_gone(self) -> bool {
        i32::try_from(self.0).is_ok_and(process::is_gone)
    }
}

/// The facts of an open container that [`choose`] needs.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    owner: StreamId,
    idle_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    TakeOver(usize),
    OpenNew,
}

fn choose(candidates: &[Candidate], open_limit: usize, is_gone: impl Fn(StreamId) -> bool) -> Choice {
    let longest_idle = |wanted: &dyn Fn(&Candidate) -> bool| {
        let wanted = candidates.iter().enumerate().filter(|(_, candidate)| wanted(candidate));
        wanted.max_by_key(|(_, candidate)| candidate.idle_ms).map(|(position, _)| Choice::TakeOver(position))
    };
    longest_idle(&|candidate| is_gone(candidate.owner))
        .or_else(|| longest_idle(&|candidate| candidate.idle_ms > IDLE_AFTER_MS))
        .or_else(|| if candidates.len() < open_limit.max(1) { None } else { longest_idle(&|_| true) })
        .unwrap_or(Choice::OpenNew)
}

/// The open containers that still take chunks, by stream.
#[derive(Default)]
pub(super) struct Streams {
    by_stream: HashMap<StreamId, Arc<OpenContainer>>,
    open: Vec<(StreamId, Arc<OpenContainer>)>,
}

impl Streams {
    /// Returns the stream's own container.
    pub(super) fn of(&self, stream: StreamId) -> Option<&Arc<OpenContainer>> {
        self.by_stream.get(&stream)
    }

    /// Gives the stream a container to take over. `None`: open a new one and [`insert`](Self::insert) it.
    pub(super) fn take_over(&mut self, stream: StreamId, now_ms: u64, open_limit: usize) -> Option<Arc<OpenContainer>> {
        let describe = |(owner, container): &(StreamId, Arc<OpenContainer>)| Candidate {
            owner: *owner,
            idle_ms: now_ms.saturating_sub(container.last_used_ms()),
        };
        let candidates: Vec<_> = self.open.iter().map(describe).collect();
        match choose(&candidates, open_limit, StreamId::is_gone) {
            Choice::OpenNew => None,
            Choice::TakeOver(position) => {
                let (owner, container) = self.open.get_mut(position)?;
                self.by_stream.remove(&std::mem::replace(owner, stream));
                self.by_stream.insert(stream, Arc::clone(container));
                Some(Arc::clone(container))
            }
        }
    }

    /// Gives a new container to the stream.
    pub(super) fn insert(&mut self, stream: StreamId, container: Arc<OpenContainer>) {
        self.by_stream.insert(stream, Arc::clone(&container));
        self.open.push((stream, container));
    }

    /// Removes a full container.
    pub(super) fn retire(&mut self, full: &Arc<OpenContainer>) {
        self.by_stream.retain(|_, container| !Arc::ptr_eq(container, full));
        self.open.retain(|(_, container)| !Arc::ptr_eq(container, full));
    }

    /// Removes and returns all containers.
    pub(super) fn retire_all(&mut self) -> Vec<Arc<OpenContainer>> {
        self.by_stream.clear();
        self.open.drain(..).map(|(_, container)| container).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Choice, IDLE_AFTER_MS, RECLAIM_STREAM, StreamId, choose};

    const ALIVE: fn(StreamId) -> bool = |_| false;

    fn candidates(list: &[(u64, u64)]) -> Vec<Candidate> {
        list.iter().map(|&(owner, idle_ms)| Candidate { owner: StreamId(owner), idle_ms }).collect()
    }

    #[test]
    fn a_living_busy_stream_keeps_its_container_while_there_is_room() {
        assert_eq!(choose(&candidates(&[(1, 0), (2, IDLE_AFTER_MS)]), 3, ALIVE), Choice::OpenNew);
        assert_eq!(choose(&[], 1, ALIVE), Choice::OpenNew);
    }

    #[test]
    fn a_gone_process_is_preferred_to_an_idle_one() {
        let list = candidates(&[(1, IDLE_AFTER_MS + 9_000), (2, 10), (3, 20)]);
        assert_eq!(choose(&list, 16, |stream| stream.0 >= 2), Choice::TakeOver(2));
        assert_eq!(choose(&list, 16, ALIVE), Choice::TakeOver(0));
    }

    #[test]
    fn at_the_limit_the_least_recently_used_is_shared() {
        assert_eq!(choose(&candidates(&[(1, 3), (2, 7), (3, 5)]), 3, ALIVE), Choice::TakeOver(1));
    }

    #[test]
    fn only_processes_can_be_gone() {
        assert!(!StreamId(u64::from(std::process::id())).is_gone());
        assert!(!StreamId(0).is_gone());
        assert!(!RECLAIM_STREAM.is_gone());
        assert!(!StreamId(1 << 32).is_gone());
        let mut child = std::process::Command::new("true").spawn().expect("a child starts");
        let pid = u64::from(child.id());
        child.wait().expect("the child ends");
        assert!(StreamId(pid).is_gone());
    }
}
