//! A store that fails where a test says, around any other store.
//!
//! Every request is counted, per kind. A [`FaultPlan`] picks one of them (or all from a position on) and says how it fails: as networks and
//! stores do, which lose answers, repeat requests, and perform them after the sender has given up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use dedupfs_sync::Mutex;

use super::{Class, Created, Head, Key, ObjectError, Objects, Removed, Result};

/// The kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "named after the operations of Objects")]
pub enum Request {
    Create,
    Read,
    Head,
    Remove,
    List,
}

impl Request {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Create, Self::Read, Self::Head, Self::Remove, Self::List];

    const fn verb(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::Head => "look up",
            Self::Remove => "remove",
            Self::List => "list",
        }
    }
}

/// How a request fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It does not reach the store.
    Lost,
    /// It happens, and the answer is lost.
    AnswerLost,
    /// There is no answer, and it happens before the request that comes so many requests later.
    Late(u64),
    /// It reaches the store twice. The sender gets the second answer.
    Twice,
    /// The answer is cut, and the sender is told: nothing comes of a read, and half of a listing.
    Cut,
    /// Half of the bytes of a read come, and nobody is told; of a listing as well.
    CutUnseen,
    /// A byte of a read is another one.
    Damaged,
    /// The store is full.
    Full,
    /// The store does not allow it.
    Refused,
    /// A listing lacks what was created by the last so many requests, and tells what they removed.
    ListLate(u64),
}

/// Which requests fail, and how.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    fault: Fault,
    requests: Vec<Request>,
    key_part: String,
    position: u64,
    is_lasting: bool,
    seen: u64,
}

impl FaultPlan {
    /// Makes one request fail: the one at `position` among those that the plan concerns. Positions start at 0 and are counted from the
    /// moment when the plan is added.
    pub fn new(fault: Fault, position: u64) -> Self {
        let requests = match fault {
            Fault::Cut | Fault::CutUnseen => vec![Request::Read, Request::List],
            Fault::Damaged => vec![Request::Read],
            Fault::Full => vec![Request::Create],
            Fault::ListLate(_) => vec![Request::List],
            Fault::Late(_) | Fault::Twice => vec![Request::Create, Request::Remove],
            Fault::Lost | Fault::AnswerLost | Fault::Refused => Request::ALL.to_vec(),
        };
        Self { fault, requests, key_part: String::new(), position, is_lasting: false, seen: 0 }
    }

    /// Lets the plan concern requests of these kinds, instead of all kinds that can fail so.
    #[must_use]
    pub fn on(mut self, requests: &[Request]) -> Self {
        self.requests = requests.to_vec();
        self
    }

    /// Restricts the plan to keys (of a listing: prefixes) that contain `part`.
    #[must_use]
    pub fn key_contains(mut self, part: &str) -> Self {
        part.clone_into(&mut self.key_part);
        self
    }

    /// Makes every later request that the plan concerns fail as well.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.is_lasting = true;
        self
    }

    fn strikes(&mut self, request: Request, key: &str) -> bool {
        if !self.requests.contains(&request) || !key.contains(&self.key_part) {
            return false;
        }
        let position = self.seen;
        self.seen += 1;
        position == self.position || (self.is_lasting && position > self.position)
    }
}

/// A store that fails where a test says; clones share counts and plans.
#[derive(Clone, Debug)]
pub struct FaultyObjects {
    inner: Arc<dyn Objects>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    plans: Vec<FaultPlan>,
    count: u64,
    injected: u64,
    late: Vec<(u64, Change)>,
    /// What changed, by the number of the request, for listings that are late.
    recent: VecDeque<(u64, Recent)>,
}

/// A change that is still on its way.
#[derive(Clone, Debug)]
enum Change {
    Create(Key, Vec<u8>, Class),
    Remove(Key),
}

#[derive(Clone, Debug)]
enum Recent {
    Created(Key),
    Removed(Key, Head),
}

/// Changes that are remembered for late listings.
const RECENT_MAX: usize = 1024;

impl FaultyObjects {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// Adds a plan. Several can be active; the first that strikes decides.
    pub fn add(&self, plan: FaultPlan) {
        self.state.lock().plans.push(plan);
    }

    /// Removes all plans. Changes that are on their way still happen, before the next request.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.plans.clear();
        state.late.iter_mut().for_each(|(due, _)| *due = 0);
    }

    /// Requests so far, including failed ones.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        self.state.lock().injected
    }

    /// Lets late changes happen that are due, counts the request, and returns the fault if it fails.
    fn begin(&self, request: Request, key: &str) -> Option<Fault> {
        let due = {
            let mut state = self.state.lock();
            let count = state.count;
            let (due, later) = std::mem::take(&mut state.late).into_iter().partition(|(at, _)| *at <= count);
            state.late = later;
            due
        };
        let due: Vec<(u64, Change)> = due;
        due.iter().for_each(|(_, change)| self.perform(change));
        let mut state = self.state.lock();
        state.count += 1;
        let mut struck = None;
        for plan in &mut state.plans {
            if plan.strikes(request, key) {
                struck = struck.or(Some(plan.fault));
            }
        }
        state.injected += u64::from(struck.is_some());
        struck
    }

    /// A change whose sender has gone: nobody hears whether it fails.
    fn perform(&self, change: &Change) {
        let _unheard = match change {
            Change::Create(key, body, class) => self.create_now(key, &[body], *class).map(drop),
            Change::Remove(key) => self.remove_now(key).map(drop),
        };
    }

    fn create_now(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let created = self.inner.create(key, body, class)?;
        if created == Created::New {
            self.remember(Recent::Created(key.clone()));
        }
        Ok(created)
    }

    fn remove_now(&self, key: &Key) -> Result<Removed> {
        let head = self.inner.head(key)?;
        let removed = self.inner.remove(key)?;
        if let (Some(head), Removed::Gone) = (head, removed) {
            self.remember(Recent::Removed(key.clone(), head));
        }
        Ok(removed)
    }

    fn remember(&self, change: Recent) {
        let mut state = self.state.lock();
        let count = state.count;
        state.recent.push_back((count, change));
        if state.recent.len() > RECENT_MAX {
            state.recent.pop_front();
        }
    }

    /// Fails or repeats a request that may change the store.
    fn change<T>(
        &self,
        request: Request,
        key: &Key,
        change: impl FnOnce() -> Change,
        now: impl Fn() -> Result<T>,
    ) -> Result<T> {
        match self.begin(request, key.as_str()) {
            None => now(),
            Some(Fault::AnswerLost) => {
                let _unheard = now();
                Err(error(Fault::Lost, request, key.as_str()))
            }
            Some(Fault::Late(requests)) => {
                let mut state = self.state.lock();
                let due = state.count.saturating_add(requests);
                state.late.push((due, change()));
                Err(error(Fault::Lost, request, key.as_str()))
            }
            Some(Fault::Twice) => {
                let _first = now();
                now()
            }
            Some(Fault::Full) => Err(ObjectError::Full { key: key.clone() }),
            Some(fault) => Err(error(fault, request, key.as_str())),
        }
    }
}

fn error(fault: Fault, request: Request, key: &str) -> ObjectError {
    let (operation, key) = (request.verb(), key.to_owned());
    match fault {
        Fault::Refused => ObjectError::Refused { operation, key, reason: "a test does not allow it".to_owned() },
        _ => ObjectError::Unreachable { operation, key, reason: "a test lost the request or the answer".to_owned() },
    }
}

impl Objects for FaultyObjects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let change = || Change::Create(key.clone(), body.concat(), class);
        self.change(Request::Create, key, change, || self.create_now(key, body, class))
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let fault = self.begin(Request::Read, key.as_str());
        let before = into.len();
        match fault {
            None => self.inner.read(key, range, into),
            Some(fault @ (Fault::CutUnseen | Fault::Damaged)) => {
                self.inner.read(key, range, into)?;
                let half = before + (into.len() - before) / 2;
                match fault {
                    Fault::Damaged => into.get_mut(half).into_iter().for_each(|byte| *byte ^= 1),
                    _ => into.truncate(half),
                }
                Ok(())
            }
            Some(fault) => Err(error(fault, Request::Read, key.as_str())),
        }
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        match self.begin(Request::Head, key.as_str()) {
            None => self.inner.head(key),
            Some(fault) => Err(error(fault, Request::Head, key.as_str())),
        }
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        self.change(Request::Remove, key, || Change::Remove(key.clone()), || self.remove_now(key))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        let fault = self.begin(Request::List, prefix);
        if let Some(fault @ (Fault::Lost | Fault::AnswerLost | Fault::Refused)) = fault {
            return Err(error(fault, Request::List, prefix));
        }
        let mut listed = BTreeMap::new();
        self.inner.list(prefix, after, &mut |key, head| {
            listed.insert(key, head);
            Ok(())
        })?;
        if let Some(Fault::ListLate(requests)) = fault {
            let state = self.state.lock();
            let is_recent = |at: u64| at.saturating_add(requests) >= state.count;
            for (_, change) in state.recent.iter().rev().filter(|(at, _)| is_recent(*at)) {
                match change {
                    Recent::Created(key) => drop(listed.remove(key)),
                    Recent::Removed(key, head)
                        if key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after) =>
                    {
                        listed.insert(key.clone(), *head);
                    }
                    Recent::Removed(..) => {}
                }
            }
        }
        let half = if matches!(fault, Some(Fault::Cut | Fault::CutUnseen)) { listed.len() / 2 } else { listed.len() };
        listed.into_iter().take(half).try_for_each(|(key, head)| visit(key, head))?;
        if fault == Some(Fault::Cut) { Err(error(Fault::Cut, Request::List, prefix)) } else { Ok(()) }
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
#[path = "faulty_tests.rs"]
mod tests;
