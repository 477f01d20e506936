//! Running tools: with their output, and with a time limit.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine;

/// The program under test, and its companions.
pub const DEDUPFS: &str = env!("CARGO_BIN_EXE_dedupfs");
pub const STATS: &str = env!("CARGO_BIN_EXE_dedupfs-stats");
pub const GC: &str = env!("CARGO_BIN_EXE_dedupfs-gc");

/// A tool that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// A command line to run.
pub struct Tool {
    command: Command,
    limit: Duration,
}

impl Tool {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("LC_ALL", "C").env("PATH", machine::search_path());
        Self { command, limit: LIMIT }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the tool to its end.
    #[track_caller]
    pub fn run(self) -> Ran {
        self.try_run().unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Runs it and expects success.
    #[track_caller]
    pub fn ok(self) -> Ran {
        self.run().expect(0, &[])
    }

    /// Runs it to its end, or returns the problem that prevented that.
    pub fn try_run(mut self) -> Result<Ran, String> {
        let line = format!("{:?}", self.command);
        // Files need no reader in the meantime, and a daemon that keeps one open blocks nothing.
        let file = || tempfile::tempfile().map_err(|error| format!("no temporary file: {error}"));
        let (mut out, mut err) = (file()?, file()?);
        let clone = |file: &File| file.try_clone().map_err(|error| error.to_string());
        self.command.stdout(clone(&out)?).stderr(clone(&err)?);
        let child = self.command.spawn().map_err(|error| format!("{line} cannot be run: {error}"))?;
        let code = Running { child, line: line.clone() }.wait(self.limit);
        let (out, err) = (read_all(&mut out)?, read_all(&mut err)?);
        match code {
            Some(code) => Ok(Ran { line, code, out, err: String::from_utf8_lossy(&err).into_owned() }),
            None => Err(format!("{line} does not end; it said: {}", String::from_utf8_lossy(&err))),
        }
    }
}

/// Makes a tool that runs a script of sh in its own mount namespace. Added arguments become its `$0`, `$1`, ...
///
/// A namespace begins with a copy of all mounts, so mounts of concurrent tests would live on in it.
pub fn in_namespace(script: &str) -> Tool {
    let script = format!(
        "findmnt --noheadings --raw --types fuse.dedupfs --output TARGET | \
         while read -r other; do umount -i -l \"$(printf '%b' \"$other\")\"; done\n{script}"
    );
    Tool::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script])
}

fn read_all(file: &mut File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// A child that is killed when dropped.
struct Running {
    child: Child,
    line: String,
}

impl Running {
    /// Returns the exit code (128 + N for signal N), or `None` if it takes longer.
    fn wait(mut self, limit: Duration) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt as _;
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.code().or_else(|| status.signal().map(|signal| 128 + signal)),
                Ok(None) if begun.elapsed() < limit => std::thread::sleep(pause),
                Ok(None) => return None,
                Err(error) => panic!("{}: {error}", self.line),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The result of a tool.
pub struct Ran {
    pub line: String,
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    /// Checks the exit code, and that the output has these words.
    #[track_caller]
    pub fn expect(self, code: i32, words: &[&str]) -> Self {
        let said = self.said();
        assert_eq!(self.code, code, "{} said: {said}", self.line);
        for word in words {
            assert!(said.contains(word), "{} does not say {word:?}: {said}", self.line);
        }
        self
    }

    /// Both outputs.
    pub fn said(&self) -> String {
        format!("{}{}", self.text(), self.err)
    }

    /// Standard output.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}
