//! The agent in a guest (qemu-ga): it writes out the guest's filesystems and holds their changes while a checkpoint is made.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

/// Time in which the agent answers: writing out may take that long.
const ANSWER_SECS: u64 = 60;
/// Letters of a message of the guest that are shown at most.
const WORDS_MAX: usize = 300;
/// Bytes of an answer at most.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The socket of an agent, as a plan names it: `qga:SOCKET`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Agent {
    socket: PathBuf,
}

impl TryFrom<String> for Agent {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Agent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("qga:").map(Path::new) {
            Some(socket) if socket.is_absolute() => Ok(Self { socket: socket.to_owned() }),
            _ => Err(format!("quiesce {text:?} names no agent: qga:SOCKET, with an absolute path")),
        }
    }
}

impl Agent {
    /// Holds the changes of the guest's filesystems.
    ///
    /// # Errors
    /// In words. Then nothing is held, as far as the agent answers.
    pub fn freeze(&self) -> Result<Frozen, String> {
        let mut frozen = Frozen { agent: self.clone(), stream: Some(self.connect(None)?), holds: true };
        match frozen.ask("guest-fsfreeze-freeze") {
            Ok(_) => Ok(frozen),
            Err(why) => Err(match frozen.thaw() {
                Ok(()) => why,
                Err(also) => format!("{why}; {also}"),
            }),
        }
    }

    /// Connects, and asks `command` if one is given: it comes behind what the agent still does, also if that takes longer than its answer is
    /// waited for.
    fn connect(&self, command: Option<&str>) -> Result<BufReader<UnixStream>, String> {
        let cannot = |error| format!("cannot reach the guest's agent at {}: {error}", self.socket.display());
        let stream = UnixStream::connect(&self.socket).map_err(cannot)?;
        let limit = Some(Duration::from_secs(ANSWER_SECS));
        stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)).map_err(cannot)?;
        let mut stream = BufReader::new(stream);
        // Answers to a client before this one may come first.
        let id =
            u64::from(std::process::id()) ^ u64::from(jiff::Timestamp::now().subsec_nanosecond().unsigned_abs()) << 20;
        send(&mut stream, &json!({ "execute": "guest-sync", "arguments": { "id": id } })).map_err(cannot)?;
        command.map_or(Ok(()), |command| send(&mut stream, &json!({ "execute": command }))).map_err(cannot)?;
        let begun = Instant::now();
        while receive(&mut stream).map_err(cannot)?["return"] != id {
            if begun.elapsed().as_secs() > ANSWER_SECS {
                return Err(format!("the guest's agent at {} does not answer", self.socket.display()));
            }
        }
        Ok(stream)
    }
}

/// A guest whose filesystems hold changes. They go on when it is dropped, at the latest.
#[derive(Debug)]
pub struct Frozen {
    agent: Agent,
    /// Connected anew behind an error.
    stream: Option<BufReader<UnixStream>>,
    holds: bool,
}

impl Frozen {
    /// Lets the guest go on.
    ///
    /// # Errors
    /// In words: somebody must look at the guest.
    pub fn thaw(mut self) -> Result<(), String> {
        self.release()
    }

    fn release(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.holds) {
            return Ok(());
        }
        let thawed = self.ask("guest-fsfreeze-thaw").or_else(|_| self.ask("guest-fsfreeze-thaw"));
        thawed.map(drop).map_err(|why| {
            format!(
                "the guest may hold its changes still ({why}): send guest-fsfreeze-thaw to {}",
                self.agent.socket.display()
            )
        })
    }

    fn ask(&mut self, command: &str) -> Result<Value, String> {
        let cannot =
            |error| format!("the guest's agent at {} does not answer {command}: {error}", self.agent.socket.display());
        let mut stream = match self.stream.take() {
            Some(mut stream) => {
                send(&mut stream, &json!({ "execute": command })).map_err(cannot)?;
                stream
            }
            None => self.agent.connect(Some(command))?,
        };
        let mut answer = receive(&mut stream).map_err(cannot)?;
        self.stream = Some(stream);
        match answer.get_mut("return") {
            Some(result) => Ok(result.take()),
            None => {
                // Nothing that a guest says may steer a terminal.
                let why = answer["error"]["desc"].as_str().unwrap_or("it says not why");
                let why: String = why.chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect();
                Err(format!("the guest's agent refuses {command}: {why}"))
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

fn send(stream: &mut BufReader<UnixStream>, question: &Value) -> std::io::Result<()> {
    stream.get_mut().write_all(format!("{question}\n").as_bytes())
}

fn receive(stream: &mut BufReader<UnixStream>) -> std::io::Result<Value> {
    let (begun, mut line) = (Instant::now(), Vec::new());
    while line.last() != Some(&b'\n') {
        // A guest may send a byte now and then.
        if begun.elapsed().as_secs() > ANSWER_SECS || line.len() > LINE_BYTES_MAX {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let told = stream.fill_buf()?;
        let len = told.iter().position(|byte| *byte == b'\n').map_or(told.len(), |end| end + 1);
        if len == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(told.get(..len).unwrap_or_default());
        stream.consume(len);
    }
    serde_json::from_slice(&line).map_err(std::io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use super::*;

    /// An agent that serves clients until one asks for `end`. It returns what it was asked, but for `guest-sync`.
    fn agent(directory: &Path, refuses: &'static str, drops: &'static str) -> (Agent, JoinHandle<Vec<String>>) {
        let socket = directory.join("qga");
        let listener = UnixListener::bind(&socket).expect("binds");
        let serve = move || {
            let (mut asked, mut drops) = (Vec::new(), drops);
            'clients: loop {
                let (client, _) = listener.accept().expect("accepts");
                let mut client = BufReader::new(client);
                // Left over by a client before this one.
                send(&mut client, &json!({ "return": 7 })).expect("sends");
                while let Ok(question) = receive(&mut client) {
                    let command = question["execute"].as_str().expect("is a question").to_owned();
                    if command == "guest-sync" {
                        send(&mut client, &json!({ "return": question["arguments"]["id"] })).expect("sends");
                        continue;
                    }
                    if command == "end" {
                        return asked;
                    }
                    asked.push(command.clone());
                    if command == drops {
                        drops = "";
                        continue 'clients;
                    }
                    let refused = json!({ "error": { "desc": "not\u{1b}[2J now" } });
                    let answer = if command == refuses { refused } else { json!({ "return": 2 }) };
                    send(&mut client, &answer).expect("sends");
                }
            }
        };
        (format!("qga:{}", socket.display()).parse().expect("is one"), std::thread::spawn(serve))
    }

    fn asked(agent: &Agent, thread: JoinHandle<Vec<String>>) -> Vec<String> {
        send(&mut agent.connect(None).expect("connects"), &json!({ "execute": "end" })).expect("sends");
        thread.join().expect("ends")
    }

    const FREEZE: &str = "guest-fsfreeze-freeze";
    const THAW: &str = "guest-fsfreeze-thaw";

    #[test]
    fn a_guest_goes_on_once_whatever_happens() {
        let directory = tempfile::tempdir().expect("makes");
        for (refuses, drops, expected) in [
            ("", "", &[FREEZE, THAW][..]),
            ("", THAW, &[FREEZE, THAW, THAW]),
            ("", FREEZE, &[FREEZE, THAW]),
            (FREEZE, "", &[FREEZE, THAW]),
        ] {
            let (agent, thread) = agent(directory.path(), refuses, drops);
            match agent.freeze() {
                Ok(frozen) => frozen.thaw().expect("goes on"),
                Err(why) => assert!(why.contains(FREEZE) && !why.contains("still"), "{why}"),
            }
            assert_eq!(asked(&agent, thread), expected, "{refuses} {drops}");
            std::fs::remove_file(directory.path().join("qga")).expect("removes");
        }
        let (agent, thread) = agent(directory.path(), "", "");
        drop(agent.freeze().expect("is held"));
        assert_eq!(asked(&agent, thread), [FREEZE, THAW], "by dropping it");
    }

    #[test]
    fn a_guest_that_may_not_go_on_is_told() {
        let directory = tempfile::tempdir().expect("makes");
        let (agent, thread) = agent(directory.path(), THAW, "");
        let why = agent.freeze().expect("is held").thaw().expect_err("is refused");
        assert!(why.contains("not[2J now") && why.contains("may hold its changes still"), "{why}");
        assert_eq!(asked(&agent, thread), [FREEZE, THAW, THAW]);
        let nobody: Agent = "qga:/none/such".parse().expect("is one");
        assert!(nobody.freeze().expect_err("is not there").contains("cannot reach"));
        assert!("qga:relative".parse::<Agent>().is_err() && "/socket".parse::<Agent>().is_err());
    }
}
