//! The states in which each file may be found: by a reader now, and after a power loss.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A file's content and its one extended attribute.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Seen {
    pub content: Arc<Vec<u8>>,
    pub mark: Option<u8>,
}

/// `None`: there is no such file.
pub type State = Option<Seen>;

/// A file's possible states.
#[derive(Clone)]
struct File {
    /// States that a reader may see.
    live: Vec<State>,
    /// States that a reader may see after the last close of a file whose changes failed.
    published: Vec<State>,
    /// States that a power loss may leave.
    possible: Vec<State>,
}

impl Default for File {
    fn default() -> Self {
        Self { live: vec![None], published: vec![None], possible: vec![None] }
    }
}

fn add(states: &mut Vec<State>, more: &[State]) {
    for state in more {
        if !states.contains(state) {
            states.push(state.clone());
        }
    }
}

/// All files.
#[derive(Clone, Default)]
pub struct Expected(BTreeMap<&'static str, File>);

impl Expected {
    fn file(&mut self, name: &'static str) -> &mut File {
        self.0.entry(name).or_default()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.0.keys().copied().collect()
    }

    /// Returns the state that a reader sees, if it is certain.
    pub fn live(&mut self, name: &'static str) -> State {
        self.file(name).live.last().cloned().flatten()
    }

    pub fn is_certain(&mut self, name: &'static str) -> bool {
        self.file(name).live.len() == 1
    }

    /// Notes that a change of the content of an open file was acknowledged.
    pub fn written(&mut self, name: &'static str, state: Seen) {
        let file = self.file(name);
        file.live = vec![Some(state)];
        let live = file.live.clone();
        add(&mut file.possible, &live);
    }

    /// Notes that a change of a name, or of a file that is not open, was acknowledged.
    pub fn changed(&mut self, name: &'static str, state: State) {
        let file = self.file(name);
        file.live = vec![state];
        file.published = file.live.clone();
        let live = file.live.clone();
        add(&mut file.possible, &live);
    }

    /// Notes that a change failed: it may have taken place, or not.
    pub fn in_doubt(&mut self, name: &'static str, state: State) {
        let file = self.file(name);
        let state = [state];
        add(&mut file.live, &state);
        add(&mut file.possible, &state);
    }

    /// Notes that a file with changes was closed or synced without an error.
    pub fn closed(&mut self, name: &'static str) {
        let file = self.file(name);
        file.published = file.live.clone();
    }

    /// Notes that an error told the file's users that its changes may be lost.
    pub fn lost(&mut self, name: &'static str) {
        let file = self.file(name);
        let published = file.published.clone();
        add(&mut file.live, &published);
        add(&mut file.published, &file.live.clone());
    }

    /// Notes that the state that a reader sees now was acknowledged as durable.
    pub fn synced(&mut self, name: &'static str) {
        let file = self.file(name);
        file.possible = file.live.clone();
    }

    pub fn synced_all(&mut self) {
        for file in self.0.values_mut() {
            file.possible = file.live.clone();
        }
    }

    /// Notes that the pool was opened anew: everything that may have become durable may be seen.
    pub fn reopened(&mut self) {
        for file in self.0.values_mut() {
            file.live = file.possible.clone();
            file.published = file.possible.clone();
        }
    }

    /// Notes that a reader sees `state`; from here on others must see it, too.
    pub fn see(&mut self, name: &'static str, state: &State) -> Result<(), String> {
        let file = self.file(name);
        if !file.live.contains(state) {
            let allowed: Vec<String> = file.live.iter().map(describe).collect();
            return Err(format!("{name:?} has {}, and may have {}", describe(state), allowed.join(" or ")));
        }
        file.live = vec![state.clone()];
        if !file.published.contains(state) {
            file.published.push(state.clone());
        }
        Ok(())
    }
}

fn describe(state: &State) -> String {
    match state {
        None => "no file".to_owned(),
        Some(Seen { content, mark }) => {
            let sum = content.iter().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
            format!("{} bytes ({sum:08x}) with mark {mark:?}", content.len())
        }
    }
}
