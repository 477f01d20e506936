//! The message from the daemon to the command that started it: the mount serves, or why it does not.
//!
//! The command starts itself again with one end of a pipe as standard output. The new process writes one line of JSON there. No line means
//! that it died. The command does not fork, because a process with threads must not.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use crate::control::Failure;

const LINE_BYTES_MAX: u64 = 64 * 1024;

#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Serving { notice: Option<String> },
    Failed(Failure),
}

pub(crate) struct ReadySender(File);

impl ReadySender {
    pub(crate) fn from_stdout() -> io::Result<Self> {
        let pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        Ok(Self(pipe))
    }

    /// Sends the message. A reader that is gone is no error: nobody waits any more.
    pub(crate) fn send(mut self, outcome: &Outcome) {
        if let Ok(mut line) = serde_json::to_vec(outcome) {
            line.push(b'\n');
            let _ = self.0.write_all(&line);
        }
    }
}

pub(crate) fn receive(from: impl Read) -> io::Result<Option<Outcome>> {
    let mut line = Vec::new();
    // Read only one line: the daemon's children (fusermount3) may keep the pipe open.
    let mut bytes = io::BufReader::new(from.take(LINE_BYTES_MAX));
    io::BufRead::read_until(&mut bytes, b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(serde_json::from_slice(&line).ok()),
        _ => Ok(None),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::control::FailureKind;

    use super::*;

    #[test]
    fn outcomes_cross_the_pipe() {
        let failed = Outcome::Failed(FailureKind::PoolInUse.because("taken\nby another"));
        for outcome in [Outcome::Serving { notice: Some("recovered".to_owned()) }, failed] {
            let (reader, writer) = io::pipe().unwrap();
            ReadySender(File::from(std::os::fd::OwnedFd::from(writer))).send(&outcome);
            assert_eq!(receive(reader).unwrap(), Some(outcome));
        }
    }

    #[test]
    fn silence_and_garbage_are_no_outcome() {
        for bytes in [&b""[..], b"\"serving\"", b"nonsense\n", b"\xff\n"] {
            assert_eq!(receive(bytes).unwrap(), None, "{bytes:?}");
        }
    }
}
