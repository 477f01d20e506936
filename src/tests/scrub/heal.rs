//! Lost content is stored again from another pool that has it.

use dedupfs::scrub::{decode_copies, decode_lost, encode_copies, encode_lost};
use dedupfs_store::container::Compression;

use super::{affected, change, check, formatted, open, reclaim, scrub, spoil_copies};
use crate::tests::common::{content, read, write};

/// Damages all data containers, and recipe containers with their copies, so that their content is lost.
#[test]
fn lost_chunks_and_nodes_come_back_from_another_pool() {
    let (device, other) = (formatted(Compression::None), formatted(Compression::None));
    let data = content(1, 2 << 20);
    for device in [&device, &other] {
        let pool = open(device);
        write(&pool, "file", &data);
        write(&pool, "small", &data[..5000]);
        pool.close().expect("closes");
    }
    let flip_each = |bytes: &mut Vec<u8>, step: usize| {
        (step / 2..bytes.len()).step_by(step).for_each(|at| bytes[at] ^= 4);
    };
    change(&device, "containers", &mut |bytes| flip_each(bytes, 40_000));
    change(&device, "recipes", &mut |bytes| flip_each(bytes, 3000));
    spoil_copies(&device);
    let (pool, other) = (open(&device), open(&other));
    let found = scrub(&pool);
    assert!(found.lost_chunks > 5 && found.lost_nodes > 0 && !affected(&found).is_empty(), "{found:?}");
    let lost = pool.lost_content(1000).expect("tells");
    assert_eq!(lost.len() as u64, found.lost_chunks + found.lost_nodes);
    assert_eq!(decode_lost(&encode_lost(&lost)).expect("decodes"), lost);
    assert_eq!(pool.lost_content(3).expect("tells").len(), 3);
    assert!(lost.iter().all(|one| pool.stored_content(one).expect("looks").is_none()));
    let copies: Vec<_> =
        lost.iter().map(|one| (*one, other.stored_content(one).expect("reads").expect("has it"))).collect();
    // Others' bytes are not believed.
    let wrong: Vec<_> = copies.iter().map(|(one, bytes)| (*one, [&bytes[1..], &[7]].concat())).collect();
    let wrong: Vec<_> = wrong.iter().map(|(one, bytes)| (*one, bytes.as_slice())).collect();
    assert_eq!(pool.heal(&wrong).expect("refuses"), 0);
    let encoded = encode_copies(&copies);
    assert!((1..40).all(|cut| decode_copies(&encoded[..encoded.len() - cut]).is_err()));
    let copies = decode_copies(&encoded).expect("decodes");
    assert_eq!(pool.heal(&copies).expect("heals"), lost.len() as u64);
    assert_eq!(pool.heal(&copies).expect("has nothing to do"), 0);
    assert_eq!(pool.lost_content(1000).expect("tells"), Vec::new());
    assert!(read(&pool, "file").as_deref() == Some(data.as_slice()));
    // Counts are as before: reclaiming frees nothing that is needed.
    reclaim(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    assert!(read(&pool, "small").as_deref() == Some(&data[..5000]));
    assert!(scrub(&pool).is_clean());
}
