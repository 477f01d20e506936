//! The client against a server of this crate, good and bad.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::testing::{BITMAP, Export, Kind, Server, UNIT_BYTES};
use super::*;

const CONTEXTS: [&str; 2] = [BASE_ALLOCATION, BITMAP];
const CONTENT_BYTES: usize = 5 * (1 << 20) + 512;

fn content() -> Vec<u8> {
    let byte = |at: usize| if at.is_multiple_of(4096) { 0 } else { (at / 512 * 31 + at % 251) as u8 };
    let mut content: Vec<u8> = (0..CONTENT_BYTES).map(byte).collect();
    content[1 << 20..2 << 20].fill(0);
    content
}

fn wait() -> bool {
    true
}

fn export() -> Export {
    Export { name: "disk 1".to_owned(), content: content(), dirty_units: vec![0..1, 5..17, 80..81] }
}

fn connected(kind: Kind) -> (Server, Result<Connection>) {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("nbd");
    let server = Server::at(&path, export(), kind);
    let address = Address::parse(&format!("nbd+unix:///disk%201?socket={}", path.display())).expect("is good");
    (server, connect(&address, &CONTEXTS, &wait))
}

#[test]
fn addresses_are_read_or_refused_with_the_form_to_give() {
    let good = |text: &str| Address::parse(text).expect("is good");
    let tcp = |host: &str, port| address::Server::Tcp { host: host.to_owned(), port };
    assert_eq!(good("nbd://kvm1/vda").server, tcp("kvm1", 10809));
    assert_eq!(good("nbd://[::1]:99/").server, tcp("::1", 99));
    assert_eq!(good("nbd+unix:///a%20b?socket=/run/x%3Fy").server, address::Server::Unix("/run/x?y".into()));
    let names = ["nbd://h", "nbd://h/", "nbd://h/a/b", "nbd+unix:///a%20b?socket=/s"].map(|text| good(text).export);
    assert_eq!(names, ["", "", "a/b", "a b"]);
    for (text, why) in [
        ("nbd:///vda", "lacks a host"),
        ("nbd+unix:///vda", "lacks ?socket"),
        ("nbd+unix://host/vda?socket=/s", "three slashes"),
        ("nbd+unix:///vda?socket=", "unknown, empty"),
        ("nbd+unix:///vda?socket=/a&socket=/b", "twice"),
        ("nbd://h/vda?tls-certificates=/x", "tls-certificates"),
        ("nbd://user@h/vda", "user"),
        ("nbd://h:99999/vda", "port"),
        ("nbds://h/vda", "TLS"),
        ("http://h/vda", "`http:` is unknown"),
        ("nbd://h/%ff", "no text"),
        ("vda", "nbd://HOST"),
    ] {
        let error = Address::parse(text).expect_err(text).to_string();
        assert!(error.contains(why) && error.contains("nbd+unix:///EXPORT?socket=PATH"), "{error}");
    }
    assert!(Address::is_meant("nbds+unix://x") && Address::is_meant("nbd://x"));
    assert!(!Address::is_meant("/nbd/x") && !Address::is_meant("nbdx://x") && !Address::is_meant("nbd"));
}

#[test]
fn content_is_read_at_any_place_by_many_threads() {
    let content = content();
    for kind in [Kind::Good, Kind::Old, Kind::InParts] {
        let (_server, connection) = connected(kind);
        let connection = connection.expect("connects");
        assert_eq!(connection.agreed().size_bytes, content.len() as u64);
        assert_eq!(connection.agreed().contexts.len(), if kind == Kind::Old { 0 } else { 2 });
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (connection, content) = (&connection, &content);
                scope.spawn(move || {
                    for step in 0..8 {
                        let from = (thread * 700_001 + step * 400_003) % content.len();
                        let to = (from + 1 + step * 250_007).min(content.len());
                        let mut bytes = vec![1; to - from];
                        connection.read(from as u64, &mut bytes, &wait).expect("reads");
                        assert!(bytes == content[from..to], "{kind:?}, {from}..{to}");
                    }
                });
            }
        });
        let beyond = connection.read(content.len() as u64 - 1, &mut [0; 2], &wait);
        assert!(matches!(beyond, Err(Error::Limit(_))));
        connection.read(0, &mut [], &wait).expect("reads nothing");
    }
}

#[test]
fn extents_of_a_context_are_told_and_joined() {
    let (_server, connection) = connected(Kind::Good);
    let connection = connection.expect("connects");
    let (end, export) = (CONTENT_BYTES as u64, export());
    for name in CONTEXTS {
        let context = connection.agreed().context(name).expect("is there");
        let extents = connection.extents(context, 100..end, 1000, &wait).expect("are told");
        assert_eq!((extents[0].from, extents.last().map(|extent| extent.to)), (100, Some(end)));
        assert!(extents.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].flags != pair[1].flags));
        for unit in 0..end / UNIT_BYTES {
            let at = unit * UNIT_BYTES + 100;
            let extent = extents.iter().find(|extent| (extent.from..extent.to).contains(&at)).expect("is covered");
            assert_eq!(extent.flags, export.flags(name, unit));
        }
        let error = connection.extents(context, 0..end, 2, &wait).expect_err("are too many").to_string();
        assert!(error.contains("more than 2 extents"), "{error}");
    }
}

#[test]
fn another_process_goes_on_with_a_connection() {
    let (_server, connection) = connected(Kind::Good);
    let connection = connection.expect("connects");
    connection.read(3, &mut [0; 10_000], &wait).expect("reads");
    let (socket, agreed) = connection.into_parts().expect("gives up");
    let impossible = Agreed { block_bytes: 0, ..agreed.clone() };
    assert!(Connection::resume(socket.try_clone().expect("clones"), impossible).is_err());
    let connection = Connection::resume(socket, agreed).expect("goes on");
    let mut bytes = vec![0; 300_000];
    connection.read(12_345, &mut bytes, &wait).expect("reads");
    assert!(bytes == content()[12_345..][..300_000]);
    let context = connection.agreed().context(BITMAP).expect("is there");
    assert!(!connection.extents(context, 0..1 << 20, 1000, &wait).expect("are told").is_empty());
}

#[test]
fn servers_that_refuse_are_named_with_their_reason() {
    for (kind, why) in [
        (Kind::DemandsTls, "TLS"),
        (Kind::LacksExport, "the export \"disk 1\": there is no such export (not here)"),
        (Kind::OddBlocks, "3 to"),
        (Kind::HugeExport, "18446744073709551615"),
        (Kind::HugeReply, "4294967295 bytes"),
        (Kind::UnaskedContext, "other:context"),
    ] {
        let (_server, connection) = connected(kind);
        let error = connection.expect_err("refuses").to_string();
        assert!(error.contains(why), "{kind:?}: {error}");
    }
    let (_server, connection) = connected(Kind::LacksContexts);
    assert_eq!(connection.expect("connects").agreed().contexts, []);
    let directory = tempfile::tempdir().expect("makes");
    let address = format!("nbd+unix:///?socket={}", directory.path().join("none").display());
    let error = connect(&Address::parse(&address).expect("is good"), &[], &wait).expect_err("nobody listens");
    assert!(matches!(error, Error::Connect { .. }));
}

#[test]
fn servers_that_lie_are_found_out() {
    for (kind, why) in [
        (Kind::ForeignCookie, "what nobody asked"),
        (Kind::DataBeyond, "nobody asked for"),
        (Kind::DataTwice, "nobody asked for"),
        (Kind::DataMissing, "sent less"),
        (Kind::RefusesReading, "badsector (Input/output error"),
        (Kind::Leaves, "broke"),
    ] {
        let (_server, connection) = connected(kind);
        let connection = connection.expect("connects");
        let mut bytes = vec![0; 700_000];
        let error = connection.read(0, &mut bytes, &wait).expect_err("is found").to_string();
        assert!(error.contains(why), "{kind:?}: {error}");
        // Nothing is read by a connection that failed.
        assert!(connection.read(0, &mut bytes, &wait).is_err());
        assert!(connection.into_parts().is_err());
    }
    for kind in [Kind::EmptyExtent, Kind::ExtentsBehind, Kind::NoExtents] {
        let (_server, connection) = connected(kind);
        let connection = connection.expect("connects");
        let context = connection.agreed().context(BITMAP).expect("is there");
        let error = connection.extents(context, 0..1 << 20, 1000, &wait).expect_err("is found").to_string();
        assert!(error.contains("extents"), "{kind:?}: {error}");
    }
}

#[test]
fn a_silent_server_is_waited_for_as_long_as_the_caller_wants() {
    let (_server, connection) = connected(Kind::IsSilent);
    let connection = connection.expect("connects");
    let asked = AtomicUsize::new(0);
    let patience = || asked.fetch_add(1, Ordering::Relaxed) < 2;
    let outcomes = std::thread::scope(|scope| {
        let read = || connection.read(0, &mut [0; 100], &patience);
        [scope.spawn(read), scope.spawn(read)].map(|thread| thread.join().expect("ends"))
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::GivenUp | Error::Failed(_)))), "{outcomes:?}");
    assert!(asked.load(Ordering::Relaxed) >= 2);
}

proptest! {
    /// Whatever a server sends behind the negotiation, the client ends, and takes no more memory than replies may have.
    #[test]
    fn any_bytes_are_borne(bytes in proptest::collection::vec(any::<u8>(), 0..300), heads in proptest::collection::vec((0..3_u64, any::<u16>(), 0..9_u16, 0..40_u32), 0..6)) {
        let (mut server, client) = UnixStream::pair().expect("makes");
        let mut sent = Vec::new();
        for (cookie, flags, kind, len_bytes) in heads {
            sent.extend(wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
            sent.extend((flags & 1).to_be_bytes());
            sent.extend((kind | (flags & wire::CHUNK_IS_ERROR)).to_be_bytes());
            sent.extend(cookie.to_be_bytes());
            sent.extend(len_bytes.to_be_bytes());
            sent.extend(bytes.iter().cycle().take(if bytes.is_empty() { 0 } else { len_bytes as usize }));
        }
        sent.extend(&bytes);
        server.write_all(&sent).expect("fits");
        server.shutdown(std::net::Shutdown::Write).expect("shuts");
        let agreed = Agreed { size_bytes: 1 << 20, block_bytes: 1, payload_bytes_max: 1 << 20, is_structured: true, contexts: Vec::new() };
        let connection = Connection::resume(client.into(), agreed).expect("goes on");
        let _ = connection.extents(7, 0..1 << 20, 100, &wait);
        let _ = connection.read(0, &mut [0; 1000], &wait);
    }
}
