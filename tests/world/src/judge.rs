//! The judge: an in-memory model of everything that was acknowledged.
//!
//! Each file belongs to one client, so its states have an order. After a crash a file must be in a state at or behind the
//! last durable one; the state of an unanswered request is allowed, too.

use std::sync::Arc;
use std::time::Duration;

use crate::content::Content;

/// A state of a file: `None` if there is none of that name.
pub type State = Option<Arc<Content>>;

/// The states of one file that are possible, oldest first.
#[derive(Debug)]
pub struct File {
    states: Vec<State>,
    /// All states since the pool was last closed or opened: a lost meta root may bring any of them back.
    older: Vec<State>,
    /// Whether the last request was answered.
    is_answered: bool,
    /// The time at which the file was closed in its present state; `None` while it is open.
    closed_at: Option<Duration>,
}

impl Default for File {
    fn default() -> Self {
        Self { states: vec![None], older: Vec::new(), is_answered: true, closed_at: None }
    }
}

impl File {
    /// The state that a reader sees.
    pub fn current(&self) -> &State {
        self.states.last().expect("there is a state")
    }

    /// The state before the last request.
    pub fn before(&self) -> &State {
        self.states.iter().rev().nth(1).expect("a request was begun")
    }

    /// Notes a state that a request is about to make. The caller answers it with [`answered`](Self::answered).
    pub fn begin(&mut self, state: State) {
        self.states.push(state);
        self.is_answered = false;
        self.closed_at = None;
    }

    pub fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Notes that a request failed.
    pub fn failed(&mut self) {
        self.is_answered = false;
    }

    /// Whether a request was left unanswered, or failed: then the present state is not known.
    pub fn is_unsure(&self) -> bool {
        !self.is_answered
    }

    /// Notes that the file was closed at this time, in its present state.
    pub fn closed(&mut self, at: Duration) {
        self.closed_at = Some(at);
    }

    /// Notes the end of a life. A later one promises nothing for files that were closed in it.
    pub fn life_ended(&mut self) {
        self.closed_at = None;
    }

    /// Notes a crash: a state that was closed before `durable_before` is durable without being asked for.
    pub fn crashed(&mut self, durable_before: Duration) {
        if self.is_answered && self.closed_at.is_some_and(|at| at < durable_before) {
            self.durable();
        }
    }

    /// Notes that the present state is durable: nothing older may be seen again. Only the client itself changes it.
    pub fn durable(&mut self) {
        let current = self.current().clone();
        let older = std::mem::replace(&mut self.states, vec![current]);
        self.older.extend(older);
    }

    /// Notes that the pool was closed: nothing older may be seen again, whatever is lost.
    pub fn settled(&mut self) {
        self.durable();
        self.older.clear();
    }

    /// Notes that the meta root is lost: names may be as old as the last closing.
    pub fn go_back(&mut self) {
        let newer = std::mem::take(&mut self.states);
        self.states = std::mem::take(&mut self.older);
        self.states.extend(newer);
    }

    /// Notes what a repair left, if it is part of a possible state.
    pub fn repaired(&mut self, seen: &State, is_part: impl Fn(&Content, &Content) -> bool) {
        let Some(left) = seen else { return };
        if self.states.iter().flatten().any(|state| is_part(left, state)) {
            self.begin(seen.clone());
        }
    }

    /// Judges what is seen behind a request that failed, and takes it as the present state. A crash may still bring an older one back.
    pub fn look(&mut self, seen: &State) -> Result<(), String> {
        if !self.states.iter().any(|state| state == seen) {
            let possible = self.states.iter().map(text).collect::<Vec<_>>().join(", ");
            return Err(format!("shows {}, and may show {possible}", text(seen)));
        }
        self.states.push(seen.clone());
        self.is_answered = true;
        Ok(())
    }

    /// Judges what is seen at the start of a life, and takes it as the present state.
    pub fn judge(&mut self, seen: &State) -> Result<(), String> {
        self.look(seen)?;
        // What was older stays possible until the pool is closed.
        let mut older = std::mem::take(&mut self.older);
        older.append(&mut self.states);
        *self = Self { states: vec![seen.clone()], older, is_answered: true, closed_at: None };
        Ok(())
    }
}

/// Describes a state for messages.
pub fn text(state: &State) -> String {
    match state {
        None => "nothing".to_owned(),
        Some(content) => format!("{} bytes ({:08x})", content.len_bytes(), content.sum()),
    }
}
