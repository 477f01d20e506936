//! The processes of a round: this program again, each as one machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::Parser as _;

use crate::role;

const ROLE: &str = "DEDUPFS_DETECT_ROLE";
/// Time for any round of these tests.
const ROUND: Duration = Duration::from_secs(50);

/// Becomes a machine, if this process was started as one.
#[test]
fn a_process_plays_the_role_that_it_is_given() {
    if let Ok(words) = std::env::var(ROLE) {
        let options = role::Options::parse_from(std::iter::once("machine").chain(words.split('\n')));
        std::process::exit(if role::play(&options) { 0 } else { 1 });
    }
}

/// A running machine. It is killed when this is dropped.
pub struct Machine {
    child: Child,
    /// Whether it committed, and the time of its end.
    status: Option<(bool, Instant)>,
}

/// The end of a machine.
#[derive(Clone, Debug)]
pub struct Ended {
    pub is_committed: bool,
    /// Its figures, as JSON.
    pub figures: serde_json::Value,
    /// Its message.
    pub told: String,
    pub at: Instant,
}

impl Machine {
    /// Starts a machine, by another program if one is given, such as `ip netns exec`.
    pub fn start(before: &[&str], words: &[String]) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut line: Vec<_> = before.iter().map(std::ffi::OsString::from).collect();
        line.push(exe.into());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).args([
            "--exact",
            "processes::a_process_plays_the_role_that_it_is_given",
            "--nocapture",
        ]);
        command.env(ROLE, words.join("\n")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), status: None }
    }

    /// Whether it has ended.
    fn has_ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        self.status.get_or_insert((status.success(), Instant::now()));
        true
    }

    /// Its end. It has ended.
    fn end(&mut self) -> Ended {
        let (is_committed, at) = self.status.unwrap();
        let text = |from: &mut dyn std::io::Read| {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        };
        let out = text(self.child.stdout.as_mut().unwrap());
        let told = text(self.child.stderr.as_mut().unwrap());
        let line = out.lines().find_map(|line| line.find('{').map(|begin| &line[begin..]));
        let figures = line.map_or(serde_json::Value::Null, |line| serde_json::from_str(line).unwrap());
        Ended { is_committed, figures, told, at }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory in memory, if there is one: other work on the disk does not count.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Addresses with free ports. Their hosts are this process's own, so others do not take the ports meanwhile.
pub fn addresses(machines: usize) -> Vec<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let host = Ipv4Addr::new(127, 1 + (process / 250 % 250) as u8, 1 + (process % 250) as u8, 1 + (number % 250) as u8);
    let listeners: Vec<_> = (0..machines).map(|_| TcpListener::bind((IpAddr::V4(host), 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

/// The options of one machine, and more for it.
pub fn words(addresses: &[SocketAddr], me: usize, more: &str) -> Vec<String> {
    let list = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let words = ["--machines".into(), list, "--me".into(), me.to_string()].into_iter();
    words.chain(more.split_whitespace().map(ToOwned::to_owned)).collect()
}

/// Starts all machines of a round on this host. `more` gives further options of each.
pub fn start(addresses: &[SocketAddr], more: impl Fn(usize) -> String) -> Vec<Machine> {
    let machine = |me| Machine::start(&[], &words(addresses, me, &more(me)));
    (0..addresses.len()).map(machine).collect()
}

/// Waits for the end of all machines.
pub fn end(machines: &mut [Machine]) -> Vec<Ended> {
    end_within(machines, ROUND)
}

/// Waits for the end of all machines. Panics when that takes too long.
pub fn end_within(machines: &mut [Machine], within: Duration) -> Vec<Ended> {
    let until = Instant::now() + within;
    // Each is asked, so that each end has its time.
    while !machines.iter_mut().fold(true, |have_ended, machine| machine.has_ended() & have_ended) {
        assert!(Instant::now() < until, "a machine does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    machines.iter_mut().map(Machine::end).collect()
}
