//! Runs a command, counts the system calls that it makes on the files of a pool, and lets one of them fail.
//!
//! ```text
//! fail_syscall --pool POOL --counts FILE -- dedupfs mount --foreground POOL MNT
//! fail_syscall --pool POOL --counts FILE --fail fdatasync:namespace:3:EIO -- dedupfs mount --foreground POOL MNT
//! ```
//!
//! Calls are counted over all threads and children, by name and by kind of file. So the third `fdatasync` of `namespace.redb` is one call,
//! by any thread. (strace counts for each thread.) The kernel passes each call on before it is made (seccomp's user notification). All
//! other calls go on; a call that failed was not made.
//!
//! FILE gets a line `CALL KIND COUNT` for each call that came, and `failed CALL KIND NUMBER ERROR PATH` for the one that failed. The exit
//! code is the command's, or 128 plus the number of the signal that ended it.

mod calls;
mod filter;
mod places;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

use clap::Parser;

use filter::{Answer, Listener};
use places::Roots;

/// Runs a command, counts the system calls that it makes on the files of a pool, and lets one of them fail.
#[derive(Parser)]
struct Arguments {
    /// Meta root of the pool
    #[arg(long)]
    pool: PathBuf,
    /// Data root, if it is elsewhere
    #[arg(long)]
    data: Option<PathBuf>,
    /// File that gets the counts
    #[arg(long)]
    counts: PathBuf,
    /// The call that fails, and its error: CALL:KIND:NUMBER:ERROR
    #[arg(long, value_parser = Failure::parse)]
    fail: Option<Failure>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Clone)]
struct Failure {
    call: String,
    kind: String,
    /// Counted from 1.
    number: u64,
    error: String,
    errno: i32,
}

impl Failure {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let [call, kind, number, error] = parts[..] else { return Err("expected CALL:KIND:NUMBER:ERROR".into()) };
        let number = number.parse().map_err(|_| format!("{number} is no number"))?;
        let errno = calls::errno(error).ok_or_else(|| format!("unknown error {error}"))?;
        calls::number_of(call).ok_or_else(|| format!("unknown call {call}"))?;
        Ok(Self { call: call.into(), kind: kind.into(), number, error: error.into(), errno })
    }
}

#[derive(Default)]
struct Seen {
    counts: BTreeMap<(&'static str, &'static str), u64>,
    failed: Option<String>,
}

impl Seen {
    /// Counts a call and chooses the answer.
    fn note(&mut self, call: &'static str, kind: &'static str, path: &Path, failure: Option<&Failure>) -> Answer {
        let count = self.counts.entry((call, kind)).or_default();
        *count += 1;
        let Some(failure) =
            failure.filter(|failure| failure.call == call && failure.kind == kind && failure.number == *count)
        else {
            return Answer::GoOn;
        };
        self.failed = Some(format!("failed {call} {kind} {count} {} {}\n", failure.error, path.display()));
        Answer::Fail(failure.errno)
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let mut text = self.failed.clone().unwrap_or_default();
        for ((call, kind), count) in &self.counts {
            let _ = writeln!(text, "{call} {kind} {count}");
        }
        fs::write(file, text)
    }
}

fn run(arguments: &Arguments) -> io::Result<u8> {
    let roots = Roots::new(&arguments.pool, arguments.data.as_deref())?;
    let (sender, receiver) = std::os::unix::net::UnixStream::pair()?;
    let program = filter::program(&calls::numbers());
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    // SAFETY: between fork and exec it makes system calls only, on memory that was allocated before.
    unsafe { command.pre_exec(move || filter::install_and_send(&program, &sender)) };
    let mut child = command.spawn()?;
    // The command's copy of the sender would keep the socket open.
    drop(command);
    let listener = Listener::receive(&receiver)?;
    let mut seen = Seen::default();
    while let Some(call) = listener.next()? {
        let answer = match calls::describe(call.pid, call.number, &call.arguments)
            .and_then(|(name, path)| Some((name, roots.kind(&path)?, path)))
        {
            Some((name, kind, path)) => seen.note(name, kind, &path, arguments.fail.as_ref()),
            None => Answer::GoOn,
        };
        // Written before the answer: a command that hangs afterwards is killed, and then the counts are needed most.
        if matches!(answer, Answer::Fail(_)) {
            seen.write(&arguments.counts)?;
        }
        listener.answer(call.id, answer)?;
    }
    let status = child.wait()?;
    seen.write(&arguments.counts)?;
    Ok(status.code().or_else(|| Some(128 + status.signal()?)).and_then(|code| u8::try_from(code).ok()).unwrap_or(255))
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("fail_syscall: {error}");
            ExitCode::from(255)
        }
    }
}
