//! Caches whose misses are loaded once; in a world several tasks may load the same.

use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};

/// The same hashes in each run.
pub type CacheHasher = BuildHasherDefault<DefaultHasher>;

/// A cache bounded by the weight of its values.
pub type Cache<K, V, W> = quick_cache::sync::Cache<K, V, W, CacheHasher>;

/// Makes a cache of some `entries` that weigh `capacity` together at most.
///
/// # Panics
/// Never: all options are given.
pub fn weighing<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    entries: usize,
    capacity: u64,
    weighter: W,
) -> Cache<K, V, W> {
    // The number of shards must not show how many processors the machine has.
    let options = OptionsBuilder::new().weight_capacity(capacity).estimated_items_capacity(entries).shards(2).build();
    let options = options.expect("all options are given");
    Cache::with_options(options, weighter, CacheHasher::default(), DefaultLifecycle::default())
}

/// Returns the cached value, or loads it.
///
/// # Errors
/// As `load`.
pub fn get_or_load<K: Eq + Hash + Clone, V: Clone, W: Weighter<K, V> + Clone, E>(
    cache: &Cache<K, V, W>,
    key: &K,
    load: impl FnOnce() -> Result<V, E>,
) -> Result<V, E> {
    // A task that loads switches to others, which must not wait inside of the cache.
    if let Some(value) = cache.get(key) {
        return Ok(value);
    }
    let value = load()?;
    cache.insert(key.clone(), value.clone());
    Ok(value)
}
