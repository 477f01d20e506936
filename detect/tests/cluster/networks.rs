//! Machines in network namespaces on a bridge, whose links are cut. As root alone.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::processes::{Machine, end_within, words};

const MACHINES: usize = 3;

/// Namespaces of machines, and one with their bridge. They go when this is dropped.
struct Network {
    name: String,
    namespaces: Vec<String>,
}

fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

impl Network {
    /// None if this machine cannot have one; then that is told.
    fn make(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !ip("-V") {
            println!("left out, needs root and ip: {test}");
            return None;
        }
        let name = format!("ddfs-{}-{test}", std::process::id());
        let mut network = Self { name, namespaces: Vec::new() };
        let bridge = network.add("b");
        if !ip(&format!("-n {bridge} link add br0 type bridge forward_delay 0")) {
            println!("left out, namespaces cannot have bridges here: {test}");
            return None;
        }
        assert!(ip(&format!("-n {bridge} link set br0 up")));
        for machine in 0..MACHINES {
            let here = network.add(&machine.to_string());
            let link = format!("link add eth0 netns {here} type veth peer name v{machine} netns {bridge}");
            assert!(ip(&link));
            assert!(ip(&format!("-n {bridge} link set v{machine} master br0 up")));
            assert!(ip(&format!("-n {here} addr add 10.77.0.{}/24 dev eth0", machine + 1)));
            assert!(ip(&format!("-n {here} link set eth0 up")));
            assert!(ip(&format!("-n {here} link set lo up")));
        }
        Some(network)
    }

    fn add(&mut self, part: &str) -> String {
        let namespace = format!("{}-{part}", self.name);
        assert!(ip(&format!("netns add {namespace}")));
        self.namespaces.push(namespace.clone());
        namespace
    }

    fn set(&self, machine: usize, state: &str) {
        assert!(ip(&format!("-n {}-b link set v{machine} {state}", self.name)));
    }

    /// Starts machines whose round takes some seconds.
    fn start(&self) -> Vec<Machine> {
        let addresses: Vec<SocketAddr> =
            (0..MACHINES).map(|machine| format!("10.77.0.{}:7000", machine + 1).parse().unwrap()).collect();
        let machine = |me| {
            let namespace = format!("{}-{me}", self.name);
            let words = words(&addresses, me, "--disks 3 --chunks 20480 --slow-millis 100");
            Machine::start(&["ip", "netns", "exec", &namespace], &words)
        };
        (0..MACHINES).map(machine).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            ip(&format!("netns del {namespace}"));
        }
    }
}

/// Time in which all machines have come and read.
const READS: Duration = Duration::from_millis(1500);

#[test]
fn a_link_that_is_down_for_a_second_ends_no_round() {
    let Some(network) = Network::make("short") else { return };
    let mut machines = network.start();
    std::thread::sleep(READS);
    network.set(1, "down");
    std::thread::sleep(Duration::from_secs(1));
    network.set(1, "up");
    for ended in end_within(&mut machines, Duration::from_secs(30)) {
        assert!(ended.is_committed, "{ended:?}");
    }
}

#[test]
fn a_link_that_stays_down_ends_the_round_at_both_of_its_sides() {
    let Some(network) = Network::make("long") else { return };
    let mut machines = network.start();
    std::thread::sleep(READS);
    network.set(1, "down");
    let ended = end_within(&mut machines, Duration::from_secs(15));
    for (machine, ended) in ended.iter().enumerate() {
        let lost = if machine == 1 { ["machine 0 is lost", "machine 2 is lost"] } else { ["machine 1 is lost"; 2] };
        assert!(!ended.is_committed && lost.iter().any(|lost| ended.told.contains(lost)), "{machine}: {ended:?}");
    }
}
