//! Files with several names: copied once, and linked for every further name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use dedupfs_sync::Mutex;

/// The first copy of a file, and the number of names still to come.
struct First<V> {
    value: V,
    left: u64,
}

/// One file. Locked while it is copied, so that its next name finds it complete.
type Slot<V> = Arc<Mutex<Option<First<V>>>>;

/// The files that have further names to come.
pub(super) struct SeveralNames<K, V> {
    slots: Mutex<HashMap<K, Slot<V>>>,
}

impl<K, V> Default for SeveralNames<K, V> {
    fn default() -> Self {
        Self { slots: Mutex::default() }
    }
}

impl<K: Hash + Eq + Copy, V> SeveralNames<K, V> {
    /// Gives `key`, a file with `names` names, one more name. Uses `link` if the file was copied already. If there is no copy yet, or
    /// `link` returns `false` because it cannot link, uses `copy`.
    pub(super) fn with<E>(
        &self,
        key: K,
        names: u64,
        link: impl FnOnce(&V) -> Result<bool, E>,
        copy: impl FnOnce() -> Result<V, E>,
    ) -> Result<(), E> {
        let slot = self.slots.lock().entry(key).or_default().clone();
        let mut first = slot.lock();
        let left = match &mut *first {
            Some(first) if link(&first.value)? => {
                first.left = first.left.saturating_sub(1);
                first.left
            }
            first => {
                let value = copy()?;
                first.insert(First { value, left: names.saturating_sub(1) }).left
            }
        };
        if left == 0
            && let Entry::Occupied(entry) = self.slots.lock().entry(key)
            && Arc::ptr_eq(entry.get(), &slot)
        {
            entry.remove();
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn each_file_is_copied_once_whoever_comes_first() {
        let names = SeveralNames::<u64, u64>::default();
        let (copies, links) = (AtomicU64::new(0), AtomicU64::new(0));
        dedupfs_sync::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for key in 0..100 {
                        let link = |value: &u64| {
                            assert_eq!(*value, key + 7);
                            links.fetch_add(1, Ordering::Relaxed);
                            Ok::<_, ()>(true)
                        };
                        let copy = || {
                            copies.fetch_add(1, Ordering::Relaxed);
                            Ok(key + 7)
                        };
                        names.with(key, 8, link, copy).unwrap();
                    }
                });
            }
        });
        assert_eq!((copies.into_inner(), links.into_inner()), (100, 700));
        assert!(names.slots.into_inner().is_empty(), "what is complete is forgotten");
    }

    #[test]
    fn what_cannot_be_linked_is_copied_anew_and_what_fails_is_tried_again() {
        let names = SeveralNames::<u64, u64>::default();
        assert_eq!(names.with(1, 3, |_| Ok(true), || Err("damaged")), Err("damaged"));
        names.with(1, 3, |_| -> Result<bool, &str> { panic!("nothing is there") }, || Ok(5)).unwrap();
        names.with(1, 3, |_| Ok::<_, &str>(false), || Ok(6)).unwrap();
        let mut seen = 0;
        let link = |value: &u64| {
            seen = *value;
            Ok::<_, &str>(true)
        };
        names.with(1, 3, link, || Err("copied again")).unwrap();
        assert_eq!(seen, 6);
    }
}
