//! Maps keyed by fingerprint or by container, with little memory beyond the entries.
//!
//! Entries lie one after another in a vector. A table of 32-bit positions leads to them (hashbrown's; the standard
//! library uses it too, but does not offer this form). A fingerprint is uniformly distributed already, so its second
//! word is its hash.
//!
//! Memory for each entry is at most [`CompactMap::bytes_per_entry_max`]: the vector grows by an eighth, and the table
//! is at least 7/16 full. A plain hash table would double everything at once.

use dedupfs_store::{ContainerId, Fingerprint};
use hashbrown::HashTable;

/// Bytes of a place of the table with its control byte.
const PLACE_BYTES: usize = size_of::<u32>() + 1;

pub(crate) trait Key: Copy + Eq {
    /// A hash that is uniformly distributed, also in its lowest and highest bits.
    fn hash(&self) -> u64;
}

impl Key for Fingerprint {
    fn hash(&self) -> u64 {
        self.second_word()
    }
}

impl Key for ContainerId {
    /// Ids are consecutive: the last step of splitmix64 spreads them.
    fn hash(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

pub(crate) type FingerprintMap<V> = CompactMap<Fingerprint, V>;

pub(crate) type ContainerMap<V> = CompactMap<ContainerId, V>;

/// A map of fewer than 2^32 entries.
#[derive(Clone, Debug)]
pub(crate) struct CompactMap<K, V> {
    table: HashTable<u32>,
    entries: Vec<(K, V)>,
}

impl<K, V> Default for CompactMap<K, V> {
    fn default() -> Self {
        Self { table: HashTable::new(), entries: Vec::new() }
    }
}

impl<K: Key, V: Copy> CompactMap<K, V> {
    /// Most bytes of memory for each entry, except for the first few entries.
    pub(crate) const fn bytes_per_entry_max() -> usize {
        size_of::<(K, V)>() * 9 / 8 + PLACE_BYTES * 16 / 7 + 1
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let places = self.table.capacity() * 8 / 7;
        (places * PLACE_BYTES + self.entries.capacity() * size_of::<(K, V)>()) as u64
    }

    fn position(&self, key: &K) -> Option<u32> {
        let is_it = |at: &u32| self.entries[*at as usize].0 == *key;
        self.table.find(key.hash(), is_it).copied()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.position(key).map(|at| &self.entries[at as usize].1)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.position(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(at) = self.position(&key) {
            self.entries[at as usize].1 = value;
            return;
        }
        self.push(key, value);
    }

    fn push(&mut self, key: K, value: V) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 8 + 4);
        }
        let at = self.entries.len() as u32;
        self.entries.push((key, value));
        let entries = &self.entries;
        self.table.insert_unique(key.hash(), at, |at| entries[*at as usize].0.hash());
    }

    /// Returns the value of a key; inserts the default value if the key is absent.
    pub(crate) fn entry(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.position(&key).unwrap_or_else(|| {
            self.push(key, V::default());
            self.entries.len() as u32 - 1
        });
        &mut self.entries[at as usize].1
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let entries = &self.entries;
        let is_it = |at: &u32| entries[*at as usize].0 == *key;
        let found = self.table.find_entry(key.hash(), is_it).ok()?;
        let (at, _) = found.remove();
        let (_, value) = self.entries.swap_remove(at as usize);
        // The last entry moved to the removed one's position.
        if let Some((moved, _)) = self.entries.get(at as usize) {
            let last = self.entries.len() as u32;
            if let Some(place) = self.table.find_mut(moved.hash(), |place| *place == last) {
                *place = at;
            }
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.entries.iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
        let entries = &self.entries;
        self.table.shrink_to_fit(|at| entries[*at as usize].0.hash());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::tests::fingerprint;

    proptest! {
        #[test]
        fn behaves_like_the_standard_one(steps in proptest::collection::vec((0_u64..80, any::<Option<u32>>()), 0..600)) {
            let (mut map, mut model) = (FingerprintMap::default(), HashMap::new());
            for (number, value) in steps {
                let print = fingerprint(number);
                match value {
                    Some(value) => {
                        map.insert(print, value);
                        model.insert(print, value);
                    }
                    None => prop_assert_eq!(map.remove(&print), model.remove(&print)),
                }
                prop_assert_eq!(map.get(&print), model.get(&print));
                prop_assert_eq!(map.len(), model.len());
            }
            map.shrink_to_fit();
            prop_assert_eq!(&map.iter().copied().collect::<HashMap<_, _>>(), &model);
            for number in 0..80 {
                prop_assert_eq!(map.contains_key(&fingerprint(number)), model.contains_key(&fingerprint(number)));
            }
        }
    }

    #[test]
    fn memory_stays_within_the_bound_for_each_entry() {
        let mut map = FingerprintMap::default();
        for number in 0..40_000_u64 {
            map.insert(fingerprint(number), [number; 3]);
            if map.len() >= 500 {
                let bound = map.len() * FingerprintMap::<[u64; 3]>::bytes_per_entry_max();
                assert!(map.memory_bytes() <= bound as u64, "{} bytes for {number}", map.memory_bytes());
            }
        }
    }
}
