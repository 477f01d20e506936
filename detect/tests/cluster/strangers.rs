//! Machines of other rounds, and connections that are no machine's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::processes::{Ended, Machine, addresses, end, start, words};
use crate::role::job;

/// Runs two machines that do not fit. Both are refused, with both names.
fn refused(of_first: &str, of_second: &str, reason: &str) {
    let addresses = addresses(2);
    let more = |me: usize| format!("--chunks 100 {}", if me == 0 { of_first } else { of_second });
    for ended in end(&mut start(&addresses, more)) {
        let names = ended.told.contains("machine 0 at") && ended.told.contains("machine 1 at");
        assert!(!ended.is_committed && names && ended.told.contains(reason), "{ended:?}");
    }
}

#[test]
fn a_machine_of_another_job_is_refused() {
    refused("--job nightly", "--job weekly", "another job");
}

#[test]
fn a_machine_of_another_round_is_refused() {
    let more = |me: usize| format!("--chunks 100 --round {}", 3 + me);
    let ended = end(&mut start(&addresses(2), more));
    assert!(ended.iter().all(|ended| !ended.is_committed), "{ended:?}");
    assert!(ended[0].told.contains("machine 1 is at round 4, not 3"), "{ended:?}");
    assert!(ended[1].told.contains("machine 0 is at round 3, not 4"), "{ended:?}");
}

#[test]
fn a_machine_with_a_longer_list_is_refused() {
    let three = addresses(3);
    let first = Machine::start(&[], &words(&three[..2], 0, "--chunks 100"));
    let second = Machine::start(&[], &words(&three, 1, "--chunks 100"));
    let ended = end(&mut [first, second]);
    assert!(ended[0].told.contains("knows 3 machines, not 2"), "{ended:?}");
    assert!(ended[1].told.contains("knows 2 machines, not 3"), "{ended:?}");
}

#[test]
fn two_processes_of_one_machine_are_refused() {
    let three = addresses(3);
    let more = "--chunks 100 --join-secs 10";
    let mut machines = [0, 2, 2].map(|me| Machine::start(&[], &words(&three, me, more)));
    let ended = end(&mut machines);
    assert!(ended.iter().all(|ended| !ended.is_committed), "{ended:?}");
    assert!(ended.iter().any(|ended| ended.told.contains("machine 2")), "{ended:?}");
}

#[test]
fn a_machine_that_does_not_come_is_named() {
    let two = addresses(2);
    for me in [0, 1] {
        let ended = end(&mut [Machine::start(&[], &words(&two, me, "--join-secs 1"))]).remove(0);
        let name = format!("machine {} is lost: it did not come", 1 - me);
        assert!(!ended.is_committed && ended.told.contains(&name), "{ended:?}");
    }
}

/// Connects when the machine listens.
fn connect(address: SocketAddr) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn connections_that_say_nothing_or_nonsense_disturb_no_round() {
    let two = addresses(2);
    let first = Machine::start(&[], &words(&two, 0, "--chunks 500"));
    let silent = connect(two[0]);
    let mut loud = connect(two[0]);
    loud.write_all(&[0xff; 4096]).unwrap();
    drop(connect(two[0]));
    let second = Machine::start(&[], &words(&two, 1, "--chunks 500"));
    for ended in end(&mut [first, second]) {
        assert!(ended.is_committed, "{ended:?}");
    }
    drop((silent, loud));
}

/// The hello of machine 1 of 2.
fn hello() -> Vec<u8> {
    let numbers = [1_u32, 1, 2].map(u32::to_le_bytes).concat();
    [b"ddfsdtct".as_slice(), &numbers, &0_u64.to_le_bytes(), &0_u32.to_le_bytes(), &job("nightly")].concat()
}

/// Says the right hello, then these bytes. Returns the end of the other machine.
fn garbage(bytes: &[u8]) -> Ended {
    let two = addresses(2);
    let first = Machine::start(&[], &words(&two, 0, "--chunks 500"));
    let mut other = connect(two[0]);
    other.write_all(&hello()).unwrap();
    other.read_exact(&mut [0; 64]).unwrap();
    other.write_all(bytes).unwrap();
    end(&mut [first]).remove(0)
}

#[test]
fn nonsense_behind_a_right_hello_ends_the_round_with_a_message() {
    let data = |bytes: &[u8]| [&[1], (bytes.len() as u32).to_le_bytes().as_slice(), bytes].concat();
    let header = |fields: [u64; 6]| fields.map(u64::to_be_bytes).concat();
    for (bytes, reason) in [
        (vec![9; 100], "frames that no machine sends"),
        (vec![1, 0xff, 0xff, 0xff, 0xff], "frames that no machine sends"),
        // A message of a terabyte, and one of another machine.
        (data(&header([0, 1, 0, 1, 1 << 40, 0])), "messages that no machine sends"),
        (data(&header([0, 0, 0, 1, 8, 0])), "messages that no machine sends"),
    ] {
        let ended = garbage(&bytes);
        assert!(!ended.is_committed && ended.told.contains("machine 1 is lost"), "{ended:?}");
        assert!(ended.told.contains(reason), "{ended:?}");
    }
    // Messages within the rules that timely cannot read, on all of its channels.
    let message = |channel| [header([channel, 1, 0, 1, 64, 0]), vec![0xff; 64]].concat();
    let ended = garbage(&data(&(0..100).flat_map(message).collect::<Vec<_>>()));
    assert!(!ended.is_committed && ended.told.contains("machine 0:"), "{ended:?}");
}
