//! The byte compare filter, with a hash that is easy to collide and chunks in memory.

use std::collections::HashMap;
use std::io;

use dedupfs_store::StoreError;
use parking_lot::Mutex;

use super::*;
use crate::filter::{FilterChain, FilterPlan, Query, Reads, StoredChunks, Verdict};

/// A fingerprint of eight bits: the sum of all bytes, and not zero.
fn weak(bytes: &[u8]) -> Fingerprint {
    fingerprint(u64::from(bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte))))
}

/// A container's answer for a fingerprint.
#[derive(Clone)]
enum Held {
    Bytes(Vec<u8>),
    Fails(StoreError),
}

#[derive(Clone, Default)]
struct Chunks(Arc<Mutex<HashMap<(u64, Fingerprint), Held>>>);

impl Chunks {
    fn hold(&self, container: u64, print: Fingerprint, held: Held) {
        self.0.lock().insert((container, print), held);
    }
}

impl StoredChunks for Chunks {
    fn read(
        &self,
        container: ContainerId,
        print: &Fingerprint,
        look: &mut dyn FnMut(&[u8]),
    ) -> dedupfs_store::Result<bool> {
        match self.0.lock().get(&(container.0, *print)) {
            Some(Held::Bytes(bytes)) => look(bytes),
            Some(Held::Fails(error)) => return Err(error.clone()),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn fingerprint_of(&self, bytes: &[u8]) -> Fingerprint {
        weak(bytes)
    }

    fn reads_of_this_thread(&self) -> Reads {
        Reads { reads: 3, bytes: 30 }
    }
}

/// An index with `data` in container 1, sealed, and a chain over it.
fn with_chunk(data: &[u8], plan: &str) -> (Arc<Index>, Chunks, FilterChain) {
    let (_, index) = empty(TINY);
    let location = Location::new(ContainerId(1), data.len() as u32);
    index.apply(1, &[Change::Insert { fingerprint: weak(data), location }]).unwrap();
    index.checkpoint(1).unwrap();
    let (index, chunks) = (Arc::new(index), Chunks::default());
    chunks.hold(1, weak(data), Held::Bytes(data.to_vec()));
    let stored = chunks.clone();
    let chain = plan.parse::<FilterPlan>().unwrap().chain(&index, || Arc::new(stored));
    (index, chunks, chain)
}

fn verdict(chain: &FilterChain, data: &[u8]) -> dedupfs_store::Result<(Verdict, bool)> {
    let (prints, lengths, data) = ([weak(data)], [data.len() as u32], [data]);
    let mut query = Query::with_data(&prints, &lengths, &data);
    chain.run(&mut query, &[])?;
    Ok((query.verdicts[0], query.damage_seen()))
}

const ALL: &str = "block,open,bloom,locality,sealed,compare";

fn at(container: u64, data: &[u8]) -> Verdict {
    Verdict::Existing(Location::new(ContainerId(container), data.len() as u32))
}

#[test]
fn equal_bytes_exist_and_others_with_their_fingerprint_are_a_collision() {
    let data = [1, 2, 3];
    for plan in [ALL, "sealed,compare", "open,locality,sealed,compare"] {
        let (_, _, chain) = with_chunk(&data, plan);
        assert_eq!(verdict(&chain, &data).unwrap(), (at(1, &data), false), "{plan}");
        assert_eq!(verdict(&chain, &[7]).unwrap(), (Verdict::NonExisting, false), "{plan}");
        // Of the same length and of another one.
        for colliding in [&[3, 2, 1][..], &[6]] {
            let error = verdict(&chain, colliding).unwrap_err();
            assert!(matches!(error, StoreError::Collision { .. }), "{error}");
            assert!(error.to_string().starts_with("hash collision: "), "{error}");
        }
    }
}

#[test]
fn what_is_damaged_does_not_exist_and_what_cannot_be_read_now_is_an_error() {
    let data = [1, 2, 3];
    let (_, chunks, chain) = with_chunk(&data, ALL);
    for held in [
        Held::Bytes(vec![1, 2, 4]),
        Held::Fails(StoreError::corrupt("region", 1, 2)),
        Held::Fails(StoreError::NotFound { path: "a file".to_owned() }),
    ] {
        chunks.hold(1, weak(&data), held);
        assert_eq!(verdict(&chain, &data).unwrap(), (Verdict::NonExisting, true));
    }
    chunks.0.lock().clear();
    assert_eq!(verdict(&chain, &data).unwrap().0, Verdict::NonExisting, "a cell that names the wrong container");
    chunks.hold(1, weak(&data), Held::Fails(StoreError::from_io("read", "a file", io::Error::other("cable"))));
    assert!(matches!(verdict(&chain, &data), Err(StoreError::Io { .. })));
}

/// A place from outside of the index is tried first, and the index's after it.
#[test]
fn the_index_is_asked_where_the_chunk_is_now() {
    let data = [1, 2, 3];
    let (index, chunks, chain) = with_chunk(&data, ALL);
    let presumed = |container: u64| {
        let compared = chain.compare().unwrap().compare(&weak(&data), &data, ContainerId(container)).unwrap();
        (compared.place.map_or(Verdict::NonExisting, Verdict::Existing), compared.damage_seen)
    };
    assert_eq!(presumed(9), (at(1, &data), false), "moved since");
    chunks.hold(9, weak(&data), Held::Bytes(vec![9, 9, 9]));
    assert_eq!(presumed(9), (at(1, &data), true), "readers of that place must be told");
    chunks.hold(9, weak(&data), Held::Bytes(data.to_vec()));
    assert_eq!(presumed(9), (at(9, &data), false));
    // Stored again while the old place is damaged.
    chunks.hold(1, weak(&data), Held::Bytes(vec![0, 0, 0]));
    index.stage(&weak(&data), Location::new(ContainerId(5), 3));
    chunks.hold(5, weak(&data), Held::Bytes(data.to_vec()));
    assert_eq!(presumed(1), (at(5, &data), true));
}

#[test]
fn others_say_strong_maybe_at_most_and_each_is_counted() {
    let data = [1, 2, 3];
    let (_, _, chain) = with_chunk(&data, ALL);
    let zeros = [0; 3];
    let prints = [weak(&data), Fingerprint::ZERO, weak(&[50])];
    let bytes = [&data[..], &zeros, &[50]];
    let mut query = Query::with_data(&prints, &[3, 3, 1], &bytes);
    chain.run(&mut query, &[]).unwrap();
    let zero = Verdict::BuiltIn;
    assert_eq!(query.verdicts, [at(1, &data), zero, Verdict::NonExisting]);
    let stats = chain.stats();
    let figures: Vec<_> = stats.iter().map(|f| (f.name, f.asked, f.existing, f.non_existing)).collect();
    assert_eq!(
        figures,
        [("open", 3, 1, 0), ("bloom", 2, 0, 1), ("locality", 1, 0, 0), ("sealed", 1, 1, 0), ("compare", 1, 1, 0)]
    );
    let without_data = chain.run(&mut Query::new(&prints[..1], &[3]), &[]);
    assert!(matches!(without_data, Err(StoreError::Usage(_))), "nothing gets round the comparison");
}
