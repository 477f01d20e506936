//! Assigns streams to open containers (stream locality as in MAD2 and DDFS).
//!
//! 1. A stream keeps its container until that is full.
//! 2. A stream without a container takes over one whose processes are gone, or one that has been idle for long: if a
//!    process has it, [`PATIENCE_MS`]. Otherwise it opens a new one.
//! 3. At the limit of open containers it joins those that have the container with the fewest streams. They stay: if each
//!    took the container of another, all streams would soon be mixed in all containers.
//!
//! So the chunks of two living streams mix in one container only when there are more streams than open containers, or
//! when one was idle; and then they are as few as possible. [`choose`] is pure; one short lock guards the streams (second
//! in the order of [`super`]).

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

/// A container of writers that are no processes may be taken over by a new stream after this time without a write.
const IDLE_AFTER_MS: u64 = 5_000;
/// The same of a living process: slow clients pause.
const PATIENCE_MS: u64 = 60_000;

impl StreamId {
    /// Whether it is one of reclaiming, whose containers lie in rows.
    pub(super) fn is_arranged(self) -> bool {
        self == RECLAIM_STREAM || self == ACTIVE_STREAM
    }

    fn pid(self) -> Option<i32> {
        i32::try_from(self.0).ok()
    }

    /// Whether this was a process that no longer exists.
    fn is_gone(self) -> bool {
        self.pid().is_some_and(process::is_gone)
    }
}

/// The facts of an open container that [`choose`] needs.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    members: &'a [StreamId],
    idle_ms: u64,
}

impl Candidate<'_> {
    fn is_idle(&self) -> bool {
        let is_process = self.members.iter().any(|stream| stream.pid().is_some());
        self.idle_ms > if is_process { PATIENCE_MS } else { IDLE_AFTER_MS }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    TakeOver(usize),
    Join(usize),
    OpenNew,
}

fn choose(candidates: &[Candidate<'_>], open_limit: usize, is_gone: impl Fn(StreamId) -> bool) -> Choice {
    let longest_idle = |wanted: &dyn Fn(&Candidate<'_>) -> bool| {
        let wanted = candidates.iter().enumerate().filter(|(_, candidate)| wanted(candidate));
        wanted.max_by_key(|(_, candidate)| candidate.idle_ms).map(|(position, _)| position)
    };
    let free = longest_idle(&|candidate| candidate.members.iter().all(|stream| is_gone(*stream)))
        .or_else(|| longest_idle(&|candidate| candidate.is_idle()));
    if let Some(free) = free {
        return Choice::TakeOver(free);
    }
    if candidates.len() < open_limit.max(1) {
        return Choice::OpenNew;
    }
    let fewest = candidates.iter().map(|candidate| candidate.members.len()).min();
    longest_idle(&|candidate| Some(candidate.members.len()) == fewest).map_or(Choice::OpenNew, Choice::Join)
}

/// A container that still takes chunks, and the streams that it is for.
struct Taking {
    container: Arc<OpenContainer>,
    members: Vec<StreamId>,
}

/// The open containers that still take chunks, by stream.
#[derive(Default)]
pub(super) struct Streams {
    by_stream: HashMap<StreamId, Arc<OpenContainer>>,
    open: Vec<Taking>,
}

impl Streams {
    /// Returns the stream's own container.
    pub(super) fn of(&self, stream: StreamId) -> Option<&Arc<OpenContainer>> {
        self.by_stream.get(&stream)
    }

    /// Gives the stream, which has none, a container that is open. `None`: open a new one and [`insert`](Self::insert) it.
    pub(super) fn share(&mut self, stream: StreamId, now_ms: u64, open_limit: usize) -> Option<Arc<OpenContainer>> {
        let idle_ms = |container: &OpenContainer| now_ms.saturating_sub(container.last_used_ms());
        let open = self.open.iter();
        let candidates: Vec<_> =
            open.map(|taking| Candidate { members: &taking.members, idle_ms: idle_ms(&taking.container) }).collect();
        let (position, takes_over) = match choose(&candidates, open_limit, StreamId::is_gone) {
            Choice::OpenNew => return None,
            Choice::TakeOver(position) => (position, true),
            Choice::Join(position) => (position, false),
        };
        let Taking { container, members } = self.open.get_mut(position)?;
        // Also of those that were joined: short processes would make the list long.
        let leaves = |member: &mut StreamId| takes_over || member.is_gone();
        members.extract_if(.., leaves).for_each(|member| drop(self.by_stream.remove(&member)));
        members.push(stream);
        self.by_stream.insert(stream, Arc::clone(container));
        Some(Arc::clone(container))
    }

    /// Gives a new container to the stream.
    pub(super) fn insert(&mut self, stream: StreamId, container: Arc<OpenContainer>) {
        self.by_stream.insert(stream, Arc::clone(&container));
        self.open.push(Taking { container, members: vec![stream] });
    }

    /// Removes a full container.
    pub(super) fn retire(&mut self, full: &Arc<OpenContainer>) {
        self.by_stream.retain(|_, container| !Arc::ptr_eq(container, full));
        self.open.retain(|taking| !Arc::ptr_eq(&taking.container, full));
    }

    /// Removes and returns all containers.
    pub(super) fn retire_all(&mut self) -> Vec<Arc<OpenContainer>> {
        self.by_stream.clear();
        self.open.drain(..).map(|taking| taking.container).collect()
    }

    /// Returns all containers.
    pub(super) fn all(&self) -> Vec<Arc<OpenContainer>> {
        self.open.iter().map(|taking| Arc::clone(&taking.container)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::{ContainerId, ContainerKind, PoolId};

    use super::{
        Candidate, Choice, IDLE_AFTER_MS, OpenContainer, PATIENCE_MS, RECLAIM_STREAM, StreamId, Streams, choose,
    };
    use crate::containers::open_container::Limits;

    const ALIVE: fn(StreamId) -> bool = |_| false;
    const NO_PROCESS: u64 = 1 << 32;

    /// Chooses among containers with these streams, that were idle for so long.
    fn chosen(list: &[(&[u64], u64)], open_limit: usize, is_gone: fn(StreamId) -> bool) -> Choice {
        let members: Vec<Vec<_>> =
            list.iter().map(|(streams, _)| streams.iter().copied().map(StreamId).collect()).collect();
        let idle = list.iter().map(|(_, idle_ms)| *idle_ms);
        let candidates: Vec<_> =
            members.iter().zip(idle).map(|(members, idle_ms)| Candidate { members, idle_ms }).collect();
        choose(&candidates, open_limit, is_gone)
    }

    #[test]
    fn a_living_busy_stream_keeps_its_container_while_there_is_room() {
        assert_eq!(chosen(&[(&[1], 0), (&[2], PATIENCE_MS)], 3, ALIVE), Choice::OpenNew);
        assert_eq!(chosen(&[(&[NO_PROCESS], IDLE_AFTER_MS)], 3, ALIVE), Choice::OpenNew);
        assert_eq!(chosen(&[], 1, ALIVE), Choice::OpenNew);
        assert_eq!(chosen(&[], 0, ALIVE), Choice::OpenNew);
    }

    #[test]
    fn an_idle_container_is_taken_over_sooner_from_what_is_no_process() {
        let list: &[(&[u64], u64)] = &[(&[1], IDLE_AFTER_MS + 1), (&[2], IDLE_AFTER_MS + 2), (&[3], 0)];
        assert_eq!(chosen(list, 4, ALIVE), Choice::OpenNew);
        assert_eq!(chosen(&[(&[1], PATIENCE_MS + 1)], 4, ALIVE), Choice::TakeOver(0));
        assert_eq!(chosen(&[(&[NO_PROCESS], IDLE_AFTER_MS + 1)], 4, ALIVE), Choice::TakeOver(0));
    }

    #[test]
    fn a_gone_process_is_preferred_to_an_idle_one() {
        let list: &[(&[u64], u64)] = &[(&[1], PATIENCE_MS + 9_000), (&[2], 10), (&[3, 4], 20)];
        assert_eq!(chosen(list, 16, |stream| stream.0 >= 2), Choice::TakeOver(2));
        assert_eq!(chosen(list, 16, |stream| stream.0 == 2 || stream.0 == 3), Choice::TakeOver(1));
        assert_eq!(chosen(list, 16, ALIVE), Choice::TakeOver(0));
    }

    #[test]
    fn at_the_limit_streams_join_where_the_fewest_are() {
        assert_eq!(chosen(&[(&[1], 3), (&[2], IDLE_AFTER_MS + 1), (&[3], 5)], 3, ALIVE), Choice::Join(1));
        assert_eq!(chosen(&[(&[1], 3), (&[2, 4], 7), (&[3], 5)], 3, ALIVE), Choice::Join(2));
    }

    #[test]
    fn regression_processes_that_ended_leave_a_container_that_others_have() {
        let owed = std::sync::Arc::<dedupfs_base::Gauge>::default();
        let limits = Limits { container_bytes: 1 << 16, region_raw_bytes: 1 << 13 };
        let of = (None, owed.hold(0, 1), owed.hold(0, 1));
        let container = OpenContainer::new(ContainerId(1), ContainerKind::Data, PoolId([1; 16]), limits, 0, of);
        let mut streams = Streams::default();
        streams.insert(StreamId(u64::from(std::process::id())), container);
        for _ in 0..20 {
            let mut child = std::process::Command::new("true").spawn().expect("a child starts");
            assert!(streams.share(StreamId(u64::from(child.id())), 0, 1).is_some());
            child.wait().expect("the child ends");
        }
        assert_eq!((streams.open[0].members.len(), streams.by_stream.len()), (2, 2));
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
