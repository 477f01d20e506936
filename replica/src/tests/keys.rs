//! Key files, and replicas with other keys.

use std::sync::Arc;

use dedupfs_store::PoolId;
use dedupfs_store::objects::{MemoryObjects, Objects};

use crate::{KeyFile, KeyFileError, Replica, ReplicaError, Secret};

#[test]
fn any_passphrase_of_a_key_file_opens_it() {
    let mut file = KeyFile::new("first", b"correct horse").expect("makes a key");
    file.add(b"correct horse", "safe", b"battery staple").expect("adds");
    let file = KeyFile::parse(file.to_text().expect("writes").as_bytes()).expect("reads");
    assert_eq!(file.names(), ["first", "safe"]);
    let id = |passphrase: &[u8]| file.secret(passphrase).map(|secret| secret.id().expect("has one"));
    assert_eq!(id(b"correct horse").expect("opens"), id(b"battery staple").expect("opens"));
    assert_eq!(id(b"wrong").expect_err("is wrong"), KeyFileError::WrongPassphrase);
    assert!(!format!("{file:?}").contains(&file.to_text().expect("writes")[60..]));
}

#[test]
fn wrappings_are_added_removed_and_replaced() {
    let mut file = KeyFile::new("first", b"one").expect("makes a key");
    let id = file.key_id().to_owned();
    assert!(matches!(file.remove("first"), Err(KeyFileError::Usage(_))), "the last one stays");
    assert_eq!(file.add(b"wrong", "second", b"two").expect_err("is wrong"), KeyFileError::WrongPassphrase);
    file.add(b"one", "second", b"two").expect("adds");
    assert!(matches!(file.add(b"one", "second", b"three"), Err(KeyFileError::Usage(_))), "the name is taken");
    assert!(matches!(file.add(b"one", "third", b""), Err(KeyFileError::Usage(_))), "an empty passphrase");
    assert_eq!(file.rotate(b"one", b"uno").expect("replaces"), "first");
    assert!(file.secret(b"one").is_err() && file.secret(b"uno").is_ok() && file.secret(b"two").is_ok());
    file.remove("second").expect("removes");
    assert!(file.secret(b"two").is_err() && file.secret(b"uno").is_ok());
    assert!(matches!(file.remove("second"), Err(KeyFileError::Usage(_))));
    assert_eq!((file.key_id(), file.names()), (id.as_str(), vec!["first"]));
}

#[test]
fn other_files_are_refused() {
    let text = KeyFile::new("first", b"one").expect("makes a key").to_text().expect("writes");
    for bad in [
        String::new(),
        "{}".to_owned(),
        text.replace("\"dedupfs_key\": 1", "\"dedupfs_key\": 2"),
        text.replace("65536", "99999999"),
        text.replace("\"passes\": 3", "\"passes\": 4000000000"),
        text.replace("\"passes\": 3", "\"passes\": 0"),
        "x".repeat(100_000),
    ] {
        let parsed = KeyFile::parse(bad.as_bytes());
        let expected = if bad.contains("_key\": 2") { "newer" } else { "not a key file" };
        assert!(parsed.is_err_and(|error| error.to_string().contains(expected)), "{bad:.80}");
    }
    let id = &text[text.find("key_id").expect("is there") + 10..][..4];
    let other = text.replacen(id, "zz00", 1);
    let opened = KeyFile::parse(other.as_bytes()).and_then(|file| file.secret(b"one"));
    assert!(matches!(opened, Err(KeyFileError::Damaged { .. })));
}

#[test]
fn a_replica_is_opened_with_its_own_key_only() {
    let pool = PoolId([7; 16]);
    let (one, other) = (Secret::new(&[1; 32]), Secret::new(&[2; 32]));
    let encrypted: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let plain: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    assert!(matches!(Replica::open(&plain, None), Err(ReplicaError::Absent { .. })));
    assert!(Replica::init(&encrypted, &pool, Some(&one)).expect("makes one").is_encrypted());
    assert!(!Replica::init(&plain, &pool, None).expect("makes one").is_encrypted());
    assert!(Replica::open(&encrypted, Some(&one)).is_ok() && Replica::open(&plain, None).is_ok());
    for (store, secret) in [(&encrypted, Some(&other)), (&encrypted, None), (&plain, Some(&one))] {
        assert!(matches!(Replica::open(store, secret), Err(ReplicaError::WrongKey { .. })));
    }
}
