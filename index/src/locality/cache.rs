//! The cache itself. The module's head explains why its answers are right.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::RwLock;

use crate::cell::Location;

/// Words of a set of the table: one cache line.
const WAYS: usize = 8;

/// Words of the table for each fingerprint: half of them may be dead.
const WORDS_PER_PRINT: u64 = 2;

/// Bytes for each fingerprint: itself with its length, its words, and a share of its container's slot.
const BYTES_PER_PRINT: u64 = size_of::<Print>() as u64 + WORDS_PER_PRINT * 8 + SLOT_BYTES / PRINTS_PER_SLOT;

/// Fingerprints for each slot: containers of fewer chunks waste memory.
const PRINTS_PER_SLOT: u64 = 64;

/// Bytes of a slot with its turn, its place in the directory and its tankers.
const SLOT_BYTES: u64 = 192;

/// A cached container at most this far before a hit one counts as the same stream: concurrent streams take containers
/// in turns.
const STREAM_WINDOW: u64 = 4;

/// Remembered containers that were hit once and may be hit again soon.
const RECENT: usize = 64;

const INDEX_BITS: u32 = 24;
const SLOT_BITS: u32 = 20;
const TURN_BITS: u32 = u8::BITS;
const TAG_BITS: u32 = u64::BITS - INDEX_BITS - TURN_BITS - SLOT_BITS;

type Print = (Fingerprint, u32);

/// A container with its fingerprints. One without fingerprints is remembered as useless.
#[derive(Debug)]
struct Slot {
    container: ContainerId,
    prints: Box<[Print]>,
    /// Ids of the sealed tankers that have its cells.
    tankers: Box<[u64]>,
    used: AtomicU64,
    answers: AtomicU64,
}

impl Slot {
    /// Whether a stream went through it: chance does not answer an eighth of a container.
    fn is_followed(&self) -> bool {
        self.answers.load(Ordering::Relaxed) * 8 >= (self.prints.len() as u64).max(8)
    }
}

#[derive(Debug)]
struct CachedContainers {
    /// Number of the set of tankers that all entries were checked against, or that did not affect them.
    epoch: u64,
    table: Vec<u64>,
    slots: Vec<Option<Slot>>,
    /// For each slot the number of containers that have left it, modulo 256: words of an earlier turn are dead.
    turns: Vec<u8>,
    /// Slots without a container.
    free: Vec<u32>,
    by_container: HashMap<ContainerId, u32>,
    prints: u64,
    recent: [ContainerId; RECENT],
    next_recent: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct LocalitySizes {
    pub(crate) bytes: u64,
    pub(crate) containers: u64,
    /// Tables read so far.
    pub(crate) tables_read: u64,
}

#[derive(Debug)]
pub(crate) struct LocalityCache {
    limit_prints: u64,
    state: RwLock<CachedContainers>,
    clock: AtomicU64,
    tables: AtomicU64,
}

/// Returns the numbers of a fingerprint's two sets, and the tag that tells fingerprints in a set apart. With a choice
/// of two sets, a half-full table has space for nearly every fingerprint.
fn place_of(fingerprint: &Fingerprint, sets: usize) -> ([usize; 2], u64) {
    let words = [fingerprint.second_word(), fingerprint.prefix()];
    let set = |word: u64| ((u128::from(word) * sets as u128) >> u64::BITS) as usize;
    (words.map(set), words[0] & ((1 << TAG_BITS) - 1))
}

const fn word((slot, turn): (u32, u8), index: u32, tag: u64) -> u64 {
    // Slots count from 1 here, so that no word is 0, the empty word.
    let slot_and_turn = ((slot as u64 + 1) << TURN_BITS) | turn as u64;
    (slot_and_turn << (INDEX_BITS + TAG_BITS)) | ((index as u64) << TAG_BITS) | tag
}

impl CachedContainers {
    fn find(&self, fingerprint: &Fingerprint) -> Option<(&Slot, Location)> {
        let sets = self.table.len() / WAYS;
        let (places, tag) = place_of(fingerprint, sets);
        let ways = places.into_iter().flat_map(|set| &self.table[set * WAYS..(set + 1) * WAYS]);
        let same_tag = ways.filter(|word| **word & ((1 << TAG_BITS) - 1) == tag);
        let mut prints = same_tag.filter_map(|word| self.follow(*word));
        let (slot, (_, len_bytes)) = prints.find(|(_, (found, _))| found == fingerprint)?;
        Some((slot, Location::new(slot.container, *len_bytes)))
    }

    /// Returns the fingerprint that a word leads to, and its slot.
    fn follow(&self, word: u64) -> Option<(&Slot, &Print)> {
        let slot = self.slots.get(self.slot_of(word)?)?.as_ref()?;
        let index = (word >> TAG_BITS) & ((1 << INDEX_BITS) - 1);
        Some((slot, slot.prints.get(index as usize)?))
    }

    /// Returns the slot of a word, unless its container has left it. A dead word looks alive again at each 256th turn: then
    /// it takes room in its set, and never answers, because the whole fingerprint is compared.
    fn slot_of(&self, word: u64) -> Option<usize> {
        let slot_and_turn = word >> (INDEX_BITS + TAG_BITS);
        let slot = (slot_and_turn >> TURN_BITS).checked_sub(1)? as usize;
        self.turns.get(slot).is_some_and(|turn| *turn == slot_and_turn as u8).then_some(slot)
    }

    fn dead_way(&self, set: usize) -> Option<usize> {
        self.table[set * WAYS..(set + 1) * WAYS].iter().rposition(|word| self.slot_of(*word).is_none())
    }

    fn remove(&mut self, slot: u32) {
        if let Some(old) = self.slots.get_mut(slot as usize).and_then(Option::take) {
            self.prints -= old.prints.len() as u64;
            self.by_container.remove(&old.container);
            self.free.push(slot);
            let turn = &mut self.turns[slot as usize];
            *turn = turn.wrapping_add(1);
        }
    }

    fn oldest(&self) -> Option<u32> {
        let used =
            |(number, slot): (usize, &Option<Slot>)| Some((slot.as_ref()?.used.load(Ordering::Relaxed), number as u32));
        self.slots.iter().enumerate().filter_map(used).min().map(|(_, number)| number)
    }
}

impl LocalityCache {
    /// Makes an empty cache of at most `limit_bytes`; below some 10 KiB it keeps nothing.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let limit_prints = limit_bytes / BYTES_PER_PRINT;
        let slots = (limit_prints / PRINTS_PER_SLOT).min((1 << SLOT_BITS) - 1);
        let sets = (limit_prints * WORDS_PER_PRINT) as usize / WAYS;
        let limit_prints = if slots == 0 { 0 } else { limit_prints };
        Self {
            limit_prints,
            state: RwLock::new(CachedContainers {
                epoch: 0,
                table: if limit_prints == 0 { Vec::new() } else { vec![0; sets * WAYS] },
                slots: (0..slots).map(|_| None).collect(),
                turns: vec![0; slots as usize],
                free: (0..slots as u32).rev().collect(),
                by_container: HashMap::with_capacity(slots as usize),
                prints: 0,
                recent: [ContainerId::NONE; RECENT],
                next_recent: 0,
            }),
            clock: AtomicU64::new(0),
            tables: AtomicU64::new(0),
        }
    }

    pub(crate) fn count_table(&self) {
        self.tables.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the cache keeps anything.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.limit_prints > 0
    }

    /// Calls `found` with number and location of each of `wanted` that is in the cache.
    pub(crate) fn find_many<'f>(
        &self,
        wanted: impl Iterator<Item = (u32, &'f Fingerprint)>,
        mut found: impl FnMut(u32, Location),
    ) {
        if !self.is_enabled() {
            return;
        }
        let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        let state = self.state.read();
        for (number, fingerprint) in wanted {
            if let Some((slot, location)) = state.find(fingerprint) {
                slot.used.store(now, Ordering::Relaxed);
                slot.answers.fetch_add(1, Ordering::Relaxed);
                found(number, location);
            }
        }
    }

    /// Notes that a sealed tanker named this container. Returns the containers to read now.
    pub(crate) fn note_hit(&self, container: ContainerId) -> [Option<ContainerId>; 2] {
        let mut state = self.state.write();
        if state.by_container.contains_key(&container) {
            return [None; 2];
        }
        let followed = |back: u64| {
            let near = ContainerId(container.0.checked_sub(back)?);
            state.slots.get(*state.by_container.get(&near)? as usize)?.as_ref().map(Slot::is_followed)
        };
        if (1..=STREAM_WINDOW).filter_map(followed).any(|followed| followed) {
            let next = container.0.checked_add(1).map(ContainerId);
            return [Some(container), next.filter(|next| !state.by_container.contains_key(next))];
        }
        if state.recent.contains(&container) {
            return [Some(container), None];
        }
        let place = state.next_recent;
        state.recent[place] = container;
        state.next_recent = (place + 1) % RECENT;
        [None; 2]
    }

    /// Adds a container whose cells in set number `epoch` are all in `tankers`. Without fingerprints, or with more than half of the
    /// cache holds, it is remembered as useless. Ignored if another set was published meanwhile.
    pub(crate) fn insert(&self, epoch: u64, container: ContainerId, prints: Vec<Print>, tankers: Vec<u64>) {
        if !self.is_enabled() {
            return;
        }
        // One that would push out most others is useless, too. It must be remembered, or each hit reads its table.
        let is_too_large = prints.len() as u64 > self.limit_prints / 2 || prints.len() >= 1 << INDEX_BITS;
        let prints = if is_too_large { Vec::new() } else { prints };
        let many = prints.len() as u64;
        let mut guard = self.state.write();
        let state = &mut *guard;
        if state.epoch != epoch || state.by_container.contains_key(&container) {
            return;
        }
        while state.prints + many > self.limit_prints || state.by_container.len() == state.slots.len() {
            let Some(oldest) = state.oldest() else { return };
            state.remove(oldest);
        }
        let Some(number) = state.free.pop() else { return };
        state.prints += many;
        state.by_container.insert(container, number);
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed) + 1);
        let places: Vec<_> = prints.iter().map(|(print, _)| place_of(print, state.table.len() / WAYS)).collect();
        // The slot first: from then on its words are alive.
        let answers = AtomicU64::new(0);
        let slot = Slot { container, prints: prints.into(), tankers: tankers.into(), used, answers };
        state.slots[number as usize] = Some(slot);
        let turn = state.turns[number as usize];
        for (index, ([first, second], tag)) in (0_u32..).zip(places) {
            // Replaces a dead word, or else the oldest.
            let dead = |set: usize| Some((set, state.dead_way(set)?));
            let (set, way) = dead(first).or_else(|| dead(second)).unwrap_or((first, WAYS - 1));
            let ways = &mut state.table[set * WAYS..=set * WAYS + way];
            ways.rotate_right(1);
            ways[0] = word((number, turn), index, tag);
        }
    }

    /// Begins the epoch of a new set: forgets every container with cells in a tanker for which `changed` is true.
    pub(crate) fn begin_epoch(&self, epoch: u64, changed: impl Fn(u64) -> bool) {
        let mut state = self.state.write();
        state.epoch = epoch;
        // Useless containers may be useful now.
        let gone = |slot: &Slot| slot.prints.is_empty() || slot.tankers.iter().any(|tanker| changed(*tanker));
        let gone: Vec<u32> =
            (0..).zip(&state.slots).filter(|(_, s)| s.as_ref().is_some_and(gone)).map(|(n, _)| n).collect();
        for slot in gone {
            state.remove(slot);
        }
    }

    pub(crate) fn sizes(&self) -> LocalitySizes {
        let state = self.state.read();
        let fixed = state.table.len() * 8 + state.slots.len() * SLOT_BYTES as usize;
        LocalitySizes {
            bytes: fixed as u64 + state.prints * size_of::<Print>() as u64,
            containers: state.by_container.len() as u64,
            tables_read: self.tables.load(Ordering::Relaxed),
        }
    }
}
