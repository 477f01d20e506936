//! A store in memory, which keeps to the contract exactly: the model of tests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use dedupfs_sync::Mutex;

use super::{Class, Created, Head, Key, ObjectError, Objects, Removed, Result, check_len, within};

/// A store in memory; clones are handles of the same store.
#[derive(Clone, Debug, Default)]
pub struct MemoryObjects {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Object>,
    now_secs: u64,
    retain_secs: u64,
    capacity_bytes: Option<u64>,
    is_content_cold: bool,
}

#[derive(Debug)]
struct Object {
    body: Arc<[u8]>,
    class: Class,
    written_secs: u64,
}

impl MemoryObjects {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the store's clock, in seconds since 1970.
    pub fn set_now(&self, secs: u64) {
        self.state.lock().now_secs = secs;
    }

    /// Keeps each object for this time, whoever wants to remove it.
    pub fn retain(&self, secs: u64) {
        self.state.lock().retain_secs = secs;
    }

    /// Holds at most so many bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = Some(bytes);
    }

    /// Whether objects of [`Class::Content`] must be brought back before they are read.
    pub fn set_content_cold(&self, is_cold: bool) {
        self.state.lock().is_content_cold = is_cold;
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<Key> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Puts bytes in the place of an object, as damage or a hostile store does.
    pub fn replace(&self, key: &Key, body: &[u8]) {
        let mut state = self.state.lock();
        let written_secs = state.now_secs;
        state.objects.insert(key.clone(), Object { body: body.into(), class: Class::Metadata, written_secs });
    }

    /// Removes an object past all rules, as an operator does in the store's own files.
    pub fn remove_by_hand(&self, key: &Key) {
        self.state.lock().objects.remove(key);
    }
}

impl Object {
    fn head(&self) -> Head {
        Head { len_bytes: self.body.len() as u64, written_secs: Some(self.written_secs) }
    }
}

impl Objects for MemoryObjects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let len_bytes = check_len(key, body)?;
        let mut state = self.state.lock();
        if let Some(found) = state.objects.get(key) {
            let is_same = *found.body == *body.concat();
            return if is_same { Ok(Created::Same) } else { Err(ObjectError::Foreign { key: key.clone() }) };
        }
        let used_bytes: u64 =
            state.capacity_bytes.map_or(0, |_| state.objects.values().map(|object| object.head().len_bytes).sum());
        if state.capacity_bytes.is_some_and(|capacity| used_bytes.saturating_add(len_bytes) > capacity) {
            return Err(ObjectError::Full { key: key.clone() });
        }
        let written_secs = state.now_secs;
        state.objects.insert(key.clone(), Object { body: body.concat().into(), class, written_secs });
        Ok(Created::New)
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let state = self.state.lock();
        let object = state.objects.get(key).ok_or_else(|| ObjectError::Absent { key: key.clone() })?;
        if state.is_content_cold && object.class == Class::Content {
            return Err(ObjectError::Cold { key: key.clone(), reason: "content is kept cold".to_owned() });
        }
        let Range { start, end } = within(range, object.head().len_bytes);
        into.extend_from_slice(object.body.get(start as usize..end as usize).unwrap_or_default());
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        Ok(self.state.lock().objects.get(key).map(Object::head))
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        let mut state = self.state.lock();
        let (now_secs, retain_secs) = (state.now_secs, state.retain_secs);
        if state.objects.get(key).is_some_and(|object| now_secs < object.written_secs.saturating_add(retain_secs)) {
            return Ok(Removed::Retained);
        }
        state.objects.remove(key);
        Ok(Removed::Gone)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        let is_listed = |key: &Key| key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after);
        let listed: Vec<(Key, Head)> = {
            let state = self.state.lock();
            let listed = state.objects.iter().filter(|(key, _)| is_listed(key));
            listed.map(|(key, object)| (key.clone(), object.head())).collect()
        };
        listed.into_iter().try_for_each(|(key, head)| visit(key, head))
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}
