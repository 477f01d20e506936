//! Answers from before a section: nobody refers to a chunk that the index has removed since.
//!
//! One chunk, which nothing refers to, in container 1, and perhaps a second copy in container 2. The rules are those of
//! `src/content/dedup/early.rs` and of reclaiming; the sections are the engine's own.

use std::sync::Arc;

use shuttle::thread;

use crate::sections::Sections;
use crate::sync::Mutex;
use crate::{explore, must_fail};

/// A step that is left out.
#[derive(Clone, Copy, PartialEq)]
enum Lacking {
    Nothing,
    /// That claims begin is not noted.
    Begins,
    /// That claims end is not noted.
    Ends,
    /// That claims end is noted behind the barrier.
    EndsBefore,
    /// Reclaiming does not wait for sections once it has claimed.
    Barrier,
}

#[derive(Default)]
struct State {
    /// The container in which the index places the chunk.
    place: Mutex<Option<usize>>,
    references: Mutex<u64>,
    claimed: Mutex<[bool; 3]>,
    times_gone: Mutex<u64>,
}

impl State {
    fn note_gone(&self) {
        *self.times_gone.lock() += 1;
    }

    /// Refers to the chunk, in a section, or stores it anew. Returns whether it is there.
    fn refer(&self, early: (u64, Option<usize>)) -> bool {
        let usable = |place: &usize| !self.claimed.lock()[*place];
        let holds = *self.times_gone.lock() == early.0;
        let found = if holds { early.1 } else { *self.place.lock() };
        if found.filter(usable).is_none() {
            *self.place.lock() = Some(0);
        }
        *self.references.lock() += 1;
        let place = *self.place.lock();
        place.is_some()
    }

    fn reclaim(&self, sections: &Sections, lacking: Lacking) {
        let Some(container) = *self.place.lock() else { return };
        self.claimed.lock()[container] = true;
        if lacking != Lacking::Begins {
            self.note_gone();
        }
        if lacking != Lacking::Barrier {
            sections.barrier();
        }
        if *self.references.lock() == 0 {
            // A removal names the container: a chunk that lies elsewhere by now stays.
            self.place.lock().take_if(|place| *place == container);
        }
        if !matches!(lacking, Lacking::Ends | Lacking::EndsBefore) {
            self.note_gone();
        }
        sections.barrier();
        self.claimed.lock()[container] = false;
        if lacking == Lacking::EndsBefore {
            self.note_gone();
        }
    }
}

/// A writer that looked up early, and a run of reclaiming. Before that, another writer may store a second copy to which nothing refers
/// in the end.
fn model(lacking: Lacking, has_second: bool) {
    let (state, sections) = (Arc::new(State::default()), Arc::new(Sections::default()));
    *state.place.lock() = Some(1);
    let writer = {
        let (state, sections) = (state.clone(), sections.clone());
        thread::spawn(move || {
            let times_gone = *state.times_gone.lock();
            let found = *state.place.lock();
            let section = sections.enter(|| ());
            let is_there = state.refer((times_gone, found));
            // A panic in a section would end it while the model is torn down.
            drop(section);
            assert!(is_there, "it refers to a chunk that is gone");
        })
    };
    let other = thread::spawn(move || {
        if has_second {
            let section = sections.enter(|| ());
            *state.place.lock() = Some(2);
            drop(section);
        }
        state.reclaim(&sections, lacking);
    });
    writer.join().expect("ends");
    other.join().expect("ends");
}

#[test]
fn nobody_refers_to_a_chunk_that_went_after_an_early_answer() {
    explore(|| model(Lacking::Nothing, false));
    explore(|| model(Lacking::Nothing, true));
}

#[test]
fn each_step_that_is_left_out_is_noticed() {
    must_fail("claims that begin", || model(Lacking::Begins, true));
    must_fail("claims that end", || model(Lacking::Ends, false));
    must_fail("claims that end, noted late", || model(Lacking::EndsBefore, false));
    must_fail("the barrier", || model(Lacking::Barrier, false));
}
