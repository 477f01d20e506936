#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::codec::checksum;
use crate::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use crate::device::{FileDevice, MemoryDevice, OpenMode};

const POOL: PoolId = PoolId([0x5a; 16]);

fn meta() -> Superblock {
    let properties = PoolProperties::default();
    Superblock { role: Role::Meta, pool: POOL, properties, data_root: b".".to_vec(), created_secs: 1_700_000_000 }
}

fn data() -> Superblock {
    Superblock { role: Role::Data, data_root: Vec::new(), ..meta() }
}

fn device_with(bytes: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new();
    device.open("dedupfs.meta", OpenMode::CreateNew).unwrap().write_at(bytes, 0).unwrap();
    device
}

fn message_of(bytes: &[u8]) -> String {
    Superblock::read(&device_with(bytes), Role::Meta).unwrap_err().to_string()
}

/// A file with a hand-changed body, framed again with sound checksums.
fn with_body(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let file = meta().encode();
    let expect = Expect { kind: FrameKind::Superblock, pool: None, owner: None };
    let mut body = decode_frame("test", &file, &expect, FILE_BYTES_MAX).unwrap().meta.to_vec();
    change(&mut body);
    let mut file = encode_frame(FrameKind::Superblock, &POOL, 0, &body, &[]);
    file.resize(file.len().next_multiple_of(SUPERBLOCK_ALIGNMENT_BYTES), 0);
    file
}

#[test]
fn byte_map_is_stable() {
    let file = meta().encode();
    assert_eq!(file.len(), 4096);
    let body = &file[64..];
    assert_eq!(body[..11], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "version, features, role");
    assert_eq!(body[11..27], [0x5a; 16]);
    assert_eq!(body[27..35], 1_700_000_000_u64.to_le_bytes());
    assert_eq!(body[35..43], [1, 0, 0x20, 0, 0, 1, 1, 1], "chunker, size, fingerprint, compression, level");
    assert_eq!(body[43..51], [0, 0, 0x40, 0, 0, 1, 0, 0], "container bytes, slots");
    assert_eq!(body[51..59], [0, 0, 0x10, 0, 0, 8, 0, 0], "tanker's cells, buckets");
    assert_eq!(body[59..62], [1, 0, b'.']);
    assert_eq!(file[48..56], checksum(&body[..62]).to_le_bytes());
}

#[test]
fn every_flipped_byte_is_an_error() {
    let file = meta().encode();
    for position in 0..file.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut damaged = file.clone();
            damaged[position] ^= mask;
            assert!(Superblock::decode("test", &damaged, Role::Meta).is_err(), "byte {position} ^ {mask:#x}");
        }
    }
    assert_eq!(Superblock::decode("test", &file, Role::Meta).unwrap(), meta());
}

#[test]
fn every_truncation_and_extension_is_an_error() {
    let long = Superblock { data_root: vec![b'x'; DATA_ROOT_BYTES_MAX], ..meta() };
    for file in [meta().encode(), long.encode()] {
        assert!(Superblock::decode("test", &file, Role::Meta).is_ok());
        for len in 0..file.len() {
            assert!(Superblock::decode("test", &file[..len], Role::Meta).is_err(), "length {len}");
        }
        for more in [1, 4096, 100_000] {
            let mut longer = file.clone();
            longer.resize(file.len() + more, 0);
            assert!(Superblock::decode("test", &longer, Role::Meta).is_err(), "{more} more");
        }
    }
    assert!(message_of(&meta().encode()[..4095]).contains("4095 bytes (cut off?)"));
    assert!(message_of(&[]).contains("0 bytes"));
    assert!(message_of(&[0; 4096]).contains("found zeros"));
    assert!(message_of(&vec![0; 1 << 20]).contains("at most"));
}

#[test]
fn what_is_not_known_is_refused_with_advice() {
    let message = message_of(&with_body(|body| body[0] = 2));
    assert!(message.contains("format version 2 is not supported") && message.contains("format 1"), "{message}");
    // The version comes first: another version may differ in everything behind it.
    let message = message_of(&with_body(|body| {
        body[0] = 9;
        body.truncate(2);
    }));
    assert!(message.contains("format version 9"), "{message}");
    let message = message_of(&with_body(|body| body[9] = 0x80));
    assert!(message.contains("feature flags 0x8000000000000000"), "{message}");
}

/// Sound checksums around an unsound body: all of it must be refused.
#[test]
fn bodies_out_of_their_limits_are_damage() {
    let changes: [(&str, usize, u8); 12] = [
        ("role", 10, 3),
        ("other role", 10, 2),
        ("pool", 11, 0),
        ("chunker", 35, 0),
        ("chunk size", 38, 0x40),
        ("fingerprint", 40, 3),
        ("compression", 41, 2),
        ("level", 42, 20),
        ("negative level", 42, 0xff),
        ("container size", 43, 1),
        ("slots", 48, 0),
        ("data root", 53, 0),
    ];
    for (what, position, value) in changes {
        let file = with_body(|body| body[position] = value);
        let found = Superblock::read(&device_with(&file), Role::Meta);
        assert!(matches!(found, Err(StoreError::Corrupt { .. })), "{what}: {found:?}");
    }
    for file in [with_body(|body| body.push(0)), with_body(|body| body.truncate(53)), with_body(Vec::clear)] {
        assert!(Superblock::decode("test", &file, Role::Meta).is_err());
    }
}

#[test]
fn a_missing_superblock_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let device = FileDevice::open(root.path()).unwrap();
    let place = device.describe();
    assert_eq!(
        Superblock::read(&device, Role::Meta).unwrap_err().to_string(),
        format!(
            "{place} is not a dedupfs pool (no dedupfs.meta): format one with `dedupfs mkfs {place}`, but only if it is empty; else \
             see `dedupfs fsck --repair` and `dedupfs recover`"
        )
    );
    let message = Superblock::read(&device, Role::Data).unwrap_err().to_string();
    assert!(message.contains("no dedupfs.data") && message.contains("mounted?"), "{message}");
    meta().write_new(&device).unwrap();
    data().write_new(&device).unwrap();
    assert_eq!(Superblock::read(&device, Role::Meta).unwrap(), meta());
    assert_eq!(Superblock::read(&device, Role::Data).unwrap(), data());
}

#[test]
fn a_pool_is_never_formatted_twice() {
    let device = MemoryDevice::new();
    meta().write_new(&device).unwrap();
    let other = Superblock { pool: PoolId([1; 16]), ..meta() };
    let message = other.write_new(&device).unwrap_err().to_string();
    assert!(message.contains("holds a dedupfs pool already"), "{message}");
    assert_eq!(Superblock::read(&device, Role::Meta).unwrap(), meta());
    assert_eq!(Superblock::read(&device.crash(0), Role::Meta).unwrap(), meta(), "durable without further syncs");
}

#[test]
fn a_failed_or_cut_off_format_leaves_no_half_superblock() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    meta().write_new(&faulty).unwrap();
    let steps = faulty.operations_of(&Operation::CHANGING);
    assert!(steps >= 5);
    for position in 0..steps {
        for fault in [Fault::Io, Fault::NoSpace, Fault::ShortWrite] {
            let memory = MemoryDevice::new();
            let faulty = FaultyDevice::over_memory(&memory);
            let plan = FaultPlan::new(fault, position).on(&Operation::CHANGING).lasting();
            faulty.add(plan);
            assert!(meta().write_new(&faulty).is_err(), "{fault:?} at {position}");
            for seed in 0..20 {
                let after = memory.crash(seed);
                match Superblock::read(&after, Role::Meta) {
                    Ok(found) => assert_eq!(found, meta()),
                    Err(error) => assert!(error.to_string().contains("is not a dedupfs pool"), "{error}"),
                }
                if !after.exists("dedupfs.meta").unwrap() {
                    meta().write_new(&after).unwrap();
                    assert_eq!(Superblock::read(&after.crash(0), Role::Meta).unwrap(), meta());
                }
            }
        }
    }
}

#[test]
fn roots_of_two_pools_are_told_apart() {
    assert!(Superblock::check_pair(&meta(), &data()).is_ok());
    let other = Superblock { pool: PoolId([1; 16]), ..data() };
    let message = Superblock::check_pair(&meta(), &other).unwrap_err().to_string();
    assert!(message.contains(&other.pool.to_string()) && message.contains(&POOL.to_string()), "{message}");
    assert!(Superblock::check_pair(&data(), &meta()).is_err());
    let mut changed = data();
    changed.properties.slots_per_file += 1;
    assert!(matches!(Superblock::check_pair(&meta(), &changed), Err(StoreError::Corrupt { .. })));
}

#[test]
fn properties_have_limits() {
    let check = |change: fn(&mut PoolProperties)| {
        let mut properties = PoolProperties::default();
        change(&mut properties);
        let written = Superblock { properties, ..meta() }.write_new(&MemoryDevice::new());
        assert_eq!(written.is_ok(), properties.check().is_ok());
        written.is_ok()
    };
    assert!(check(|_| {}));
    assert!(check(|properties| properties.compression = Compression::None));
    assert!(check(|properties| properties.chunk_size_bytes = 65_536));
    assert!(!check(|properties| properties.chunk_size_bytes = 65_537));
    assert!(!check(|properties| properties.chunk_size_bytes = 4095));
    assert!(check(|properties| properties.container_bytes = 65_536));
    assert!(!check(|properties| properties.container_bytes = 65_536 - 4096));
    assert!(!check(|properties| properties.container_bytes = (4 << 20) + 1));
    assert!(!check(|properties| (properties.container_bytes, properties.chunk_size_bytes) = (65_536, 65_536)));
    assert!(!check(|properties| properties.slots_per_file = 0));
    assert!(!check(|properties| properties.tanker_cells = 63));
    assert!(!check(|properties| properties.tanker_buckets = 1000));
    assert!(!check(|properties| properties.compression = Compression::Zstd(20)));
    assert!(!check(|properties| properties.compression = Compression::Zstd(0)));
    for root in [Vec::new(), vec![b'x'; DATA_ROOT_BYTES_MAX + 1], b"a\0b".to_vec()] {
        let superblock = Superblock { data_root: root, ..meta() };
        assert!(superblock.write_new(&MemoryDevice::new()).is_err());
    }
}

#[test]
fn data_roots_are_relative_to_the_meta_root() {
    let path = |root: &[u8]| Superblock { data_root: root.to_vec(), ..meta() }.data_root_path(Path::new("/pool"));
    assert_eq!(path(b"."), Path::new("/pool"));
    assert_eq!(path(b"data"), Path::new("/pool/data"));
    assert_eq!(path(b"/disk"), Path::new("/disk"));
    assert_eq!(path(b"\xff"), Path::new("/pool").join(std::ffi::OsStr::from_bytes(b"\xff")));
}

#[test]
fn names_round_trip() {
    for kind in [ChunkerKind::MinCdc, ChunkerKind::FastCdc] {
        assert_eq!(kind.to_string().parse::<ChunkerKind>().unwrap(), kind);
    }
    for algorithm in [FingerprintAlgorithm::Blake3, FingerprintAlgorithm::Sha1] {
        assert_eq!(algorithm.to_string().parse::<FingerprintAlgorithm>().unwrap(), algorithm);
    }
    assert!("rabin".parse::<ChunkerKind>().unwrap_err().to_string().contains("mincdc or fastcdc"));
    assert!("md5".parse::<FingerprintAlgorithm>().unwrap_err().to_string().contains("blake3 or sha1"));
}

proptest! {
    #[test]
    fn superblocks_round_trip(
        pool: [u8; 16],
        created_secs: u64,
        chunk_size_bytes in CHUNK_SIZE_BYTES,
        container_pages in 128_u32..=16_384,
        slots_per_file in properties::SLOTS_PER_FILE,
        level in 0_i32..=19,
        is_fast: bool,
        is_sha1: bool,
        data_root in prop::collection::vec(1_u8.., 1..=DATA_ROOT_BYTES_MAX),
    ) {
        let properties = PoolProperties {
            chunker: if is_fast { ChunkerKind::FastCdc } else { ChunkerKind::MinCdc },
            chunk_size_bytes,
            fingerprint: if is_sha1 { FingerprintAlgorithm::Sha1 } else { FingerprintAlgorithm::Blake3 },
            compression: if level == 0 { Compression::None } else { Compression::Zstd(level) },
            container_bytes: container_pages * 4096,
            slots_per_file,
            ..PoolProperties::default()
        };
        let superblock = Superblock { role: Role::Meta, pool: PoolId(pool), properties, data_root, created_secs };
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        superblock.write_new(&*device).unwrap();
        prop_assert_eq!(Superblock::read(&*device, Role::Meta).unwrap(), superblock);
    }

    #[test]
    fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..200), is_known: bool) {
        let file = with_body(|old| {
            old.truncate(if is_known { 10 } else { 0 });
            old.extend(&body);
        });
        let _ = Superblock::decode("test", &file, Role::Meta);
    }
}
