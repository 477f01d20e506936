//! Maps keyed by fingerprint, that take little more memory than what is in them.
//!
//! Entries lie one after another in a vector; a table of 32-bit positions leads to them (hashbrown's, the standard library's
//! own, which that does not offer in this form). A fingerprint is uniformly distributed already, so its second word is its hash.
//!
//! Memory for each entry at most [`FingerprintMap::bytes_per_entry_max`]: the vector grows by an eighth, the table is at least 7/16
//! full. A plain hash table would double all of it at once.

use dedupfs_store::Fingerprint;
use hashbrown::HashTable;

/// Bytes of a place of the table with its control byte.
const PLACE_BYTES: usize = size_of::<u32>() + 1;

/// A map from fingerprints.
#[derive(Clone, Debug)]
pub(crate) struct FingerprintMap<V> {
    table: HashTable<u32>,
    entries: Vec<(Fingerprint, V)>,
}

impl<V> Default for FingerprintMap<V> {
    fn default() -> Self {
        Self { table: HashTable::new(), entries: Vec::new() }
    }
}

impl<V: Copy> FingerprintMap<V> {
    /// Bytes of memory for each entry at most, but for the first few.
    pub(crate) const fn bytes_per_entry_max() -> usize {
        size_of::<(Fingerprint, V)>() * 9 / 8 + PLACE_BYTES * 16 / 7 + 1
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let places = self.table.capacity() * 8 / 7;
        (places * PLACE_BYTES + self.entries.capacity() * size_of::<(Fingerprint, V)>()) as u64
    }

    fn position(&self, fingerprint: &Fingerprint) -> Option<u32> {
        let is_it = |at: &u32| self.entries[*at as usize].0 == *fingerprint;
        self.table.find(fingerprint.second_word(), is_it).copied()
    }

    /// The value of a fingerprint.
    pub(crate) fn get(&self, fingerprint: &Fingerprint) -> Option<&V> {
        self.position(fingerprint).map(|at| &self.entries[at as usize].1)
    }

    /// Whether a fingerprint is there.
    pub(crate) fn contains_key(&self, fingerprint: &Fingerprint) -> bool {
        self.position(fingerprint).is_some()
    }

    /// Sets the value of a fingerprint.
    pub(crate) fn insert(&mut self, fingerprint: Fingerprint, value: V) {
        if let Some(at) = self.position(&fingerprint) {
            self.entries[at as usize].1 = value;
            return;
        }
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 8 + 4);
        }
        let at = self.entries.len() as u32;
        self.entries.push((fingerprint, value));
        let entries = &self.entries;
        self.table.insert_unique(fingerprint.second_word(), at, |at| entries[*at as usize].0.second_word());
    }

    /// Removes a fingerprint and gives its value.
    pub(crate) fn remove(&mut self, fingerprint: &Fingerprint) -> Option<V> {
        let entries = &self.entries;
        let is_it = |at: &u32| entries[*at as usize].0 == *fingerprint;
        let found = self.table.find_entry(fingerprint.second_word(), is_it).ok()?;
        let (at, _) = found.remove();
        let (_, value) = self.entries.swap_remove(at as usize);
        // The last entry lies where the removed one lay.
        if let Some((moved, _)) = self.entries.get(at as usize) {
            let last = self.entries.len() as u32;
            if let Some(place) = self.table.find_mut(moved.second_word(), |place| *place == last) {
                *place = at;
            }
        }
        Some(value)
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Fingerprint, V)> {
        self.entries.iter()
    }

    /// All fingerprints, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Fingerprint> {
        self.entries.iter().map(|(fingerprint, _)| fingerprint)
    }

    /// Gives memory back that is not needed.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
        let entries = &self.entries;
        self.table.shrink_to_fit(|at| entries[*at as usize].0.second_word());
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
