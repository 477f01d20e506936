//! The work of the fuzz targets, one function for each. `fuzz_targets/` has the programs.
//!
//! Bytes are tried in two ways. Raw bytes test the checks in front. Bytes inside a frame or record with valid checksums test the code
//! behind them. Bytes that decode must encode to the same bytes again, or decode to the same value.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use dedupfs_index::fuzzing as index;
use dedupfs_namespace::fuzzing as namespace;
use dedupfs_nbd::{Address, Agreed, BASE_ALLOCATION, Connection};
use dedupfs_store::codec::{ByteReader, ByteWriter, checksum, checksum_seeded};
use dedupfs_store::container::{
    Compression, ENTRY_BYTES, TableEntry, decode_region, decode_toc, encode_region, scan_table,
};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::frame::{Expect, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::node::Node;
use dedupfs_store::recipe::Root;
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_store::tree;
use dedupfs_store::{ContainerId, ContainerKind, PoolId};

const POOL: PoolId = PoolId([7; 16]);
const CONTAINER: ContainerId = ContainerId(0x0100_0000_0001);

/// Cuts bytes in two at the place that their first two bytes give.
fn split(data: &[u8]) -> (&[u8], &[u8]) {
    let Some((&[low, high], rest)) = data.split_first_chunk::<2>() else { return (data, &[]) };
    rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()))
}

fn number(data: &mut &[u8]) -> u64 {
    match data.split_first_chunk::<8>() {
        Some((bytes, rest)) => {
            *data = rest;
            u64::from_le_bytes(*bytes)
        }
        None => 0,
    }
}

/// Raw frames.
pub fn frame(data: &[u8]) {
    if let Ok(header) = FrameHeader::decode("fuzzed", data) {
        assert_eq!(header.encode()[..], data[..64]);
    }
    for kind in 0..=255 {
        let Some(kind) = FrameKind::from_u8(kind) else { continue };
        let expect = Expect { kind, pool: None, owner: None };
        if let Ok(frame) = decode_frame("fuzzed", data, &expect, 1 << 20) {
            let again = encode_frame(kind, &frame.header.pool, frame.header.owner, frame.meta, frame.payload);
            assert_eq!(again, data[..again.len()]);
        }
    }
}

/// Frames of arbitrary content.
pub fn frame_round_trip(data: &[u8]) {
    let (meta, payload) = split(data);
    let bytes = encode_frame(FrameKind::Region, &POOL, 5, meta, payload);
    let expect = Expect { kind: FrameKind::Region, pool: Some(&POOL), owner: Some(5) };
    let frame = decode_frame("fuzzed", &bytes, &expect, 1 << 30).expect("decodes");
    assert_eq!((frame.meta, frame.payload), (meta, payload));
    assert!(decode_frame("fuzzed", &bytes[..bytes.len() - 1], &expect, 1 << 30).is_err());
}

/// Regions, raw and with valid checksums of frame and list.
pub fn region(data: &[u8]) {
    let _ = decode_region(&POOL, CONTAINER, data);
    let (list, payload) = split(data);
    let mut meta = list.to_vec();
    meta.extend_from_slice(&checksum_seeded(list, CONTAINER.0).to_le_bytes());
    let bytes = encode_frame(FrameKind::Region, &POOL, CONTAINER.0, &meta, payload);
    if let Ok(region) = decode_region(&POOL, CONTAINER, &bytes) {
        let sum: u64 = region.entries.iter().map(|entry| u64::from(entry.len_bytes)).sum();
        assert_eq!(sum, region.raw.len() as u64);
        let again =
            encode_region(&POOL, CONTAINER, region.kind, region.entries.clone(), &region.raw, Compression::Zstd(1))
                .expect("encodes what was decoded");
        assert_eq!(decode_region(&POOL, CONTAINER, &again.frame(&region.raw)).expect("decodes again"), region);
    }
}

/// Arbitrary compressed bytes in a region with a valid list, such as a decompression bomb.
pub fn region_payload(mut data: &[u8]) {
    let len_bytes = (number(&mut data) % (1 << 20)) as u32 + 1;
    let mut list = vec![1, 1, 0, 0];
    list.extend_from_slice(&1_u32.to_le_bytes());
    list.extend_from_slice(&len_bytes.to_le_bytes());
    list.extend_from_slice(&[3; 32]);
    list.extend_from_slice(&len_bytes.to_le_bytes());
    let sum = checksum_seeded(&list, CONTAINER.0);
    list.extend_from_slice(&sum.to_le_bytes());
    let bytes = encode_frame(FrameKind::Region, &POOL, CONTAINER.0, &list, data);
    if let Ok(region) = decode_region(&POOL, CONTAINER, &bytes) {
        assert_eq!(region.raw.len(), len_bytes as usize);
    }
}

/// Tables of contents, raw and with a valid checksum.
pub fn table(data: &[u8]) {
    let _ = decode_toc(&POOL, CONTAINER, data);
    let (meta, payload) = split(data);
    let bytes = encode_frame(FrameKind::Toc, &POOL, CONTAINER.0, meta, payload);
    if let Ok(table) = decode_toc(&POOL, CONTAINER, &bytes) {
        assert!(table.entries.len() * ENTRY_BYTES <= payload.len());
        for region in &table.regions {
            let _entries = table.region_entries(region);
        }
        for entry in &table.entries {
            assert!(table.find(&entry.fingerprint).is_some());
        }
    }
}

/// Containers found by scanning. Pieces of data become regions, padding, or raw bytes.
pub fn scan(mut data: &[u8]) {
    let mut container = Vec::new();
    let mut sound = 0;
    while let Some((&what, rest)) = data.split_first() {
        let (piece, rest) = rest.split_at(rest.len().min(1 + usize::from(what)));
        data = rest;
        match what % 4 {
            0 => {
                let entry = TableEntry {
                    fingerprint: dedupfs_store::Fingerprint([what | 1; 32]),
                    len_bytes: piece.len() as u32,
                };
                let region =
                    encode_region(&POOL, CONTAINER, ContainerKind::Data, vec![entry], piece, Compression::None);
                container.extend_from_slice(&region.map(|region| region.frame(piece)).unwrap_or_default());
                sound += 1;
            }
            1 => container.resize(container.len().next_multiple_of(4096), 0),
            2 => {
                let frame = encode_frame(FrameKind::Region, &POOL, CONTAINER.0, piece, piece);
                container.extend_from_slice(&frame);
            }
            _ => container.extend_from_slice(piece),
        }
        if container.len() > 1 << 20 {
            return;
        }
    }
    let len = container.len() as u64;
    let mut read = |offset: u64, len: usize| Ok(container[offset as usize..offset as usize + len].to_vec());
    let scanned = scan_table(&POOL, CONTAINER, ContainerKind::Data, len, &mut read).expect("reading does not fail");
    assert!(scanned.table.regions.len() <= sound && scanned.table.used_bytes() <= len);
}

/// Nodes of recipes and of frozen trees, raw and with a valid checksum.
pub fn node(data: &[u8]) {
    let _ = Node::decode(data);
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(&checksum(data).to_le_bytes());
    if let Ok(node) = Node::decode(&bytes) {
        assert_eq!(node.encode(), bytes);
        assert_eq!(Node::is_tree(node.level()), matches!(node, Node::Tree(_)));
        assert!(node.len_bytes().expect("was checked") > 0);
        assert!(node.references().iter().all(|reference| !reference.fingerprint().is_zero()));
        let _ = node.identity_bytes();
    }
}

/// Nodes of frozen trees, raw and with a valid checksum behind each level.
pub fn tree_node(data: &[u8]) {
    let _ = tree::Node::decode(data);
    let Some((&level, rest)) = data.split_first() else { return };
    // Version and level are right, so that more of the inputs reach the rows.
    let mut bytes = vec![1, tree::LEAF_LEVEL + level % (tree::TOP_LEVEL - tree::LEAF_LEVEL + 1)];
    bytes.extend_from_slice(rest);
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    if let Ok(node) = tree::Node::decode(&bytes) {
        assert_eq!(node.encode(), bytes);
        let identity = node.identity_bytes();
        let hints = node.without_hints();
        assert_eq!(hints.identity_bytes(), identity);
        // Each reference has one hint of at least one byte.
        let references = node.references().len();
        let body_bytes = identity.len() - "dedupfs tree node v1 ".len();
        assert_eq!(hints.encode().len(), 1 + body_bytes + references + 8);
        let below = node.below().expect("was checked");
        assert!(below.linked <= below.entries && node.rows() > 0 && node.memory_bytes() > 0);
    }
}

/// Sets of attributes of frozen trees.
pub fn tree_attributes(data: &[u8]) {
    if let Ok(set) = tree::decode_attributes(data) {
        assert_eq!(tree::encode_attributes(&set), data);
    }
}

/// Roots, raw and with a valid checksum.
pub fn root(data: &[u8]) {
    let mut reader = ByteReader::new(data, "fuzzed");
    let _ = Root::decode_from(&mut reader);
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(&(checksum(data) as u32).to_le_bytes());
    let mut reader = ByteReader::new(&bytes, "fuzzed");
    if let Ok(root) = Root::decode_from(&mut reader)
        && reader.remaining() == 0
    {
        let mut writer = ByteWriter::new();
        root.encode_into(&mut writer);
        assert_eq!(writer.into_vec(), bytes);
    }
}

/// Superblocks, raw and with a valid checksum.
pub fn superblock(data: &[u8]) {
    let read = |bytes: &[u8], role: Role| {
        let device = MemoryDevice::new();
        device.replace_file("", role.file_name(), bytes).expect("is memory");
        Superblock::read(&device, role)
    };
    for role in [Role::Meta, Role::Data] {
        let _ = read(data, role);
        let mut bytes = encode_frame(FrameKind::Superblock, &POOL, 0, data, &[]);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        if let Ok(superblock) = read(&bytes, role) {
            assert_eq!(superblock.encode(), bytes);
        }
    }
}

/// Manifests, raw and with the directory's tag.
pub fn manifest(data: &[u8]) {
    let (meta, payload) = split(data);
    index::decode(index::Decoder::Manifest(meta), payload);
}

/// Open tankers.
pub fn open_tanker(mut data: &[u8]) {
    let (generation, cells) = (number(&mut data), number(&mut data));
    let (meta, payload) = split(data);
    index::decode(index::Decoder::OpenTanker(generation, cells as u32, meta), payload);
}

/// Files of sealed tankers: cells, counts, filters, containers.
pub fn tanker(mut data: &[u8]) {
    let (kind, generation) = (number(&mut data), number(&mut data));
    let (directory, pages) = split(data);
    let (meta, payload) = directory.split_at(directory.len().min(24));
    index::decode(index::Decoder::SealedTanker(kind as u8, generation, meta, pages), payload);
}

/// Lists of the containers of a tanker.
pub fn tanker_containers(data: &[u8]) {
    index::decode(index::Decoder::Containers, data);
}

/// Lists of a tanker's cells in containers, raw and with valid fields and the right number of cells.
pub fn tanker_occupancy(data: &[u8]) {
    let (meta, payload) = split(data);
    index::decode(index::Decoder::Occupancy(meta), payload);
}

/// Files of guides.
pub fn tanker_guide(mut data: &[u8]) {
    let generation = number(&mut data);
    let (directory, parts) = split(data);
    let (meta, payload) = directory.split_at(directory.len().min(16));
    index::decode(index::Decoder::Guide(generation, parts, meta), payload);
}

/// Progress files of a rebuild, and the notes in them.
pub fn progress(mut data: &[u8]) {
    dedupfs::check::rebuild::fuzzing::notes(data);
    let file_number = number(&mut data);
    let (meta, payload) = split(data);
    index::decode(index::Decoder::Progress(file_number, meta), payload);
}

/// Records of inodes.
pub fn inode(mut data: &[u8]) {
    namespace::decode(namespace::Decoder::Raw(b"key"), data);
    namespace::decode(namespace::Decoder::Inode(number(&mut data)), data);
}

/// Records of names, of places in the order, and of extended attributes.
pub fn names(data: &[u8]) {
    let (key, body) = split(data);
    namespace::decode(namespace::Decoder::Entry(key), body);
    namespace::decode(namespace::Decoder::Xattr(key), body);
    if let Some((key, body)) = data.split_first_chunk::<16>() {
        namespace::decode(namespace::Decoder::Order(key), body);
    }
}

/// Parts of the log's rows, with valid checksums of roots.
pub fn log(mut data: &[u8]) {
    let (row, part) = (number(&mut data), number(&mut data) as u32);
    namespace::decode(namespace::Decoder::LogPart(row, part), data);
    // Operations, made one by one.
    let mut body = Vec::new();
    let mut count = 0_u32;
    let mut operations = Vec::new();
    while let Some((&tag, rest)) = data.split_first() {
        let (fields, rest) = rest.split_at(rest.len().min(1 + usize::from(tag) % 64));
        data = rest;
        operations.push(tag % 9);
        operations.extend_from_slice(fields);
        if matches!(tag % 9, 2 | 3) {
            operations.extend_from_slice(&(checksum(fields) as u32).to_le_bytes());
        }
        count += 1;
    }
    body.extend_from_slice(&part.saturating_add(1).to_le_bytes());
    body.extend_from_slice(&count.to_le_bytes());
    body.extend_from_slice(&operations);
    namespace::decode(namespace::Decoder::LogPart(row, part), &body);
}

/// Records of containers, and the header.
pub fn container_record(mut data: &[u8]) {
    namespace::decode(namespace::Decoder::Header, data);
    namespace::decode(namespace::Decoder::Container(number(&mut data)), data);
}

/// The checksums beside the namespace store.
pub fn page_sums(data: &[u8]) {
    let mut header = vec![0; 320];
    let (fields, rest) = data.split_at(data.len().min(64));
    header[8..8 + fields.len()].copy_from_slice(fields);
    let (first, second) = split(rest);
    namespace::decode(namespace::Decoder::PageSums(second, &header), first);
    // With frames around the sums.
    let framed = |bytes: &[u8]| {
        let mut file = Vec::new();
        let mut sequence = 9;
        let mut rest = bytes;
        while !rest.is_empty() && file.len() < 1 << 18 {
            let (piece, more) = split(rest);
            let (meta, payload) = piece.split_at(piece.len().min(28));
            let mut meta = meta.to_vec();
            if let Some(version) = meta.get_mut(..2) {
                version.copy_from_slice(&[1, 0]);
            }
            file.extend_from_slice(&encode_frame(FrameKind::PageSums, &PoolId([0; 16]), sequence, &meta, payload));
            file.resize(file.len().next_multiple_of(4096), 0);
            sequence += 1;
            rest = more;
        }
        file
    };
    namespace::decode(namespace::Decoder::PageSums(&framed(second), &header), &framed(first));
}

/// Lines of the control socket.
pub fn control(data: &[u8]) {
    dedupfs_tools::fuzz_control_lines(data);
}

/// Files and connections of rounds of several machines.
pub fn rounds(data: &[u8]) {
    dedupfs_detect::fuzzing::fuzz_bytes(data);
}

/// POSIX access lists, which come from clients.
pub fn acl(data: &[u8]) {
    use dedupfs_service::acl::{self, Acl};
    if let Ok(list) = Acl::parse(data) {
        let bytes = list.to_bytes();
        assert_eq!(Acl::parse(&bytes).expect("parses again").to_bytes(), bytes);
        assert!(list.mode() <= 0o777);
        for mode in [0, 0o777, 0o2750, 0o7777] {
            let _ = acl::set_access(data, mode, mode & 1 == 0);
            if let Ok(changed) = acl::chmod(data, mode) {
                let found = Acl::parse(&changed).expect("is an access list").mode();
                assert_eq!(found & 0o777, mode & 0o777);
            }
        }
    }
}

/// Frames of exports, raw and with valid checksums around the content.
pub fn export(data: &[u8]) {
    dedupfs::export::fuzzing::frame(data, &POOL, 3);
    dedupfs::export::fuzzing::small(data, &POOL);
    let (fields, raw) = split(data);
    let mut meta = vec![1, 0];
    meta.extend_from_slice(fields);
    let packed = zstd::bulk::compress(raw, 1).expect("packs");
    meta.resize(44, 0);
    // The fields: last frame or not, number of items, their length.
    meta[2] &= 1;
    meta[3] = 0;
    meta[12..16].copy_from_slice(&(raw.len() as u32).to_le_bytes());
    meta[16..20].fill(0);
    let bytes = encode_frame(FrameKind::Export, &POOL, 3, &meta, &packed);
    dedupfs::export::fuzzing::frame(&bytes, &POOL, 3);
    for kind in [FrameKind::ExportCurrent, FrameKind::ExportOwner, FrameKind::ExportReached, FrameKind::ExportKept] {
        let mut meta = vec![1, 0];
        meta.extend_from_slice(fields);
        dedupfs::export::fuzzing::small(&encode_frame(kind, &POOL, 0, &meta, &[]), &POOL);
    }
    dedupfs::export::fuzzing::small(&encode_frame(FrameKind::ExportKept, &POOL, 0, &[1, 0], raw), &POOL);
}

/// The credit of arranging.
pub fn arranging(data: &[u8]) {
    use dedupfs::reclaim::{CREDIT_FILE, Credit};
    let read = |bytes: &[u8]| {
        let device = MemoryDevice::new();
        device.replace_file("", CREDIT_FILE, bytes).expect("is memory");
        if let Ok(credit) = Credit::read(&device, &POOL) {
            credit.write(&device, &POOL).expect("is memory");
            assert_eq!(Credit::read(&device, &POOL).expect("decodes again"), credit);
        }
    };
    read(data);
    let mut meta = vec![1, 0];
    meta.extend_from_slice(data);
    read(&encode_frame(FrameKind::Arranging, &POOL, 0, &meta, &[]));
}

/// Forwarding notes.
pub fn forwarding(data: &[u8]) {
    use dedupfs::reclaim::{FORWARDING_FILE, ForwardingNotes};
    let read = |bytes: &[u8]| {
        let device = MemoryDevice::new();
        device.replace_file("", FORWARDING_FILE, bytes).expect("is memory");
        if let Ok(notes) = ForwardingNotes::read(&device, &POOL) {
            notes.write(&device, &POOL).expect("is memory");
            assert_eq!(ForwardingNotes::read(&device, &POOL).expect("decodes again"), notes);
            assert!(notes.data.iter().chain(&notes.recipes).all(|note| note.to().count() <= 65));
        }
    };
    read(data);
    let mut meta = vec![1, 0];
    meta.extend_from_slice(data);
    read(&encode_frame(FrameKind::Forwarding, &POOL, 0, &meta, &[]));
}

/// Results of the last reclaiming.
pub fn last_reclaim(data: &[u8]) {
    let read = |bytes: &[u8]| {
        let device = MemoryDevice::new();
        device.replace_file("", dedupfs::reclaim::HISTORY_FILE, bytes).expect("is memory");
        if let Ok(Some(last)) = dedupfs::reclaim::LastRun::read(&device, &POOL) {
            last.write(&device, &POOL).expect("is memory");
            assert_eq!(dedupfs::reclaim::LastRun::read(&device, &POOL).expect("decodes again"), Some(last));
        }
    };
    read(data);
    let mut meta = vec![1, 0];
    meta.extend_from_slice(data);
    read(&encode_frame(FrameKind::Reclaim, &POOL, 0, &meta, &[]));
}

/// Positions of a scrub.
pub fn scrub_position(data: &[u8]) {
    let read = |bytes: &[u8]| {
        let device = MemoryDevice::new();
        device.replace_file("", dedupfs::scrub::POSITION_FILE, bytes).expect("is memory");
        if let Ok(Some(position)) = dedupfs::scrub::ScrubPosition::read(&device, &POOL) {
            position.write(&device, &POOL).expect("is memory");
            assert_eq!(dedupfs::scrub::ScrubPosition::read(&device, &POOL).expect("decodes again"), Some(position));
        }
    };
    read(data);
    let mut meta = vec![1, 0];
    meta.extend_from_slice(data);
    read(&encode_frame(FrameKind::Scrub, &POOL, 0, &meta, &[]));
}

/// Retention rules, raw and of the known version.
pub fn retention_rules(data: &[u8]) {
    for bytes in [data.to_vec(), [&[1], data].concat()] {
        if let Ok(rules) = dedupfs::retention::Rules::decode(&bytes) {
            assert_eq!(rules.encode(), bytes);
        }
    }
}

/// Records of series, raw and around arbitrary rules of the known version.
pub fn series_record(data: &[u8]) {
    let rules = &data[..data.len().min(1024)];
    let around = [&[1], &(rules.len() as u16).to_le_bytes()[..], rules].concat();
    for bytes in [data.to_vec(), around] {
        if let Ok(record) = dedupfs::SeriesRecord::decode(&bytes) {
            assert_eq!(record.encode(), bytes);
        }
    }
}

/// Records of versions.
pub fn version_record(data: &[u8]) {
    dedupfs::fuzzing::version_record(data);
}

/// Notes of puts.
pub fn put_notes(data: &[u8]) {
    dedupfs::fuzzing::put_notes(data);
}

/// Commits of replicas.
pub fn replica_commit(data: &[u8]) {
    dedupfs_replica::fuzzing::commit(data);
}

/// Formats of replicas, and lists of their containers.
pub fn replica_format(data: &[u8]) {
    dedupfs_replica::fuzzing::format(data);
}

/// Packs of tables of replicas.
pub fn replica_pack(data: &[u8]) {
    dedupfs_replica::fuzzing::pack(data);
}

/// Slots of views of replicas.
pub fn replica_slots(data: &[u8]) {
    dedupfs_replica::fuzzing::slots(data);
}

/// Notes of replicas.
pub fn replica_note(data: &[u8]) {
    dedupfs_replica::fuzzing::note(data);
}

/// Key files of replicas.
pub fn key_file(data: &[u8]) {
    dedupfs_replica::fuzzing::key_file(data);
}

/// Encrypted objects.
pub fn encrypted_object(data: &[u8]) {
    dedupfs_replica::fuzzing::encrypted(data);
}

/// Maps of changes of images.
pub fn changes(data: &[u8]) {
    dedupfs_tools::fuzz_map(data);
}

/// A server of network block devices: its words in the negotiation, and behind it.
pub fn nbd(data: &[u8]) {
    let said = |bytes: &[u8]| {
        let (mut server, client) = UnixStream::pair().expect("makes");
        // More would wait for the client.
        server.write_all(&bytes[..bytes.len().min(32 << 10)]).expect("fits");
        server.shutdown(Shutdown::Write).expect("shuts");
        // Dropped later: what the client sends goes nowhere.
        (server, OwnedFd::from(client))
    };
    let use_it = |connection: &Connection| {
        let _ = connection.extents(7, 0..1 << 20, 100, &|| true);
        let _ = connection.read(0, &mut [0; 1000], &|| true);
    };
    let address = Address::parse("nbd://host/export").expect("is good");
    let (_server, client) = said(&[b"NBDMAGICIHAVEOPT\0\x03", data].concat());
    if let Ok(connection) = dedupfs_nbd::negotiate(client, &address, &[BASE_ALLOCATION], &|| true) {
        use_it(&connection);
    }
    let (_server, client) = said(data);
    let agreed = Agreed {
        size_bytes: 1 << 20,
        block_bytes: 1,
        payload_bytes_max: 1 << 20,
        is_structured: true,
        contexts: Vec::new(),
    };
    use_it(&Connection::resume(client, agreed).expect("goes on"));
}
