//! Commands of `dedupfs` that a batch runs, each in a process of its own.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::exit;

/// Time between two looks whether a command has ended.
const STEP: Duration = Duration::from_millis(100);
/// Bytes of a result at most.
const RESULT_BYTES_MAX: u64 = 16 << 20;

/// The end of a command.
pub(super) struct Ended {
    /// `None` if a signal killed it.
    pub(super) code: Option<u8>,
    /// Its last line of JSON.
    pub(super) result: Value,
}

impl Ended {
    /// Returns its message about a failure.
    pub(super) fn message(&self) -> String {
        match (self.result["message"].as_str(), self.code) {
            (Some(message), _) => message.to_owned(),
            (None, Some(code)) => format!("it ended with code {code}"),
            (None, None) => "a signal killed it".to_owned(),
        }
    }
}

/// Runs `dedupfs` with these words and `--json`. Its messages appear behind `name`. Asked to give up, it ends the command in order.
pub(super) fn run<S: AsRef<OsStr>>(name: &str, words: &[S], gives_up: &dyn Fn() -> bool) -> Result<Ended, String> {
    let cannot = |error: std::io::Error| format!("cannot run dedupfs: {error}");
    let program = std::env::current_exe().map_err(cannot)?;
    let mut command = Command::new(program);
    let (first, rest) = words.split_first().ok_or("no command is given")?;
    command.arg(first).arg("--json").args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A signal of the terminal reaches the batch alone, which passes it on once: a second one would end the command at once.
    command.process_group(0);
    let mut child = command.spawn().map_err(cannot)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (code, result) = std::thread::scope(|scope| {
        let result = scope.spawn(move || {
            let mut text = String::new();
            let read = stdout.map(|stdout| stdout.take(RESULT_BYTES_MAX).read_to_string(&mut text));
            let line = read.and_then(|_| text.lines().last().map(str::to_owned));
            line.and_then(|line| serde_json::from_str(&line).ok()).unwrap_or(Value::Null)
        });
        scope.spawn(move || {
            for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok) {
                exit::tell(&format!("{name}: {}\n", line.strip_prefix("dedupfs: ").unwrap_or(&line)));
            }
        });
        let code = wait(&mut child, gives_up);
        (code, result.join().unwrap_or(Value::Null))
    });
    let code = code.map_err(cannot)?.and_then(|code| u8::try_from(code).ok());
    Ok(Ended { code, result })
}

fn wait(child: &mut Child, gives_up: &dyn Fn() -> bool) -> std::io::Result<Option<i32>> {
    let mut is_asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if !is_asked && gives_up() {
            is_asked = true;
            // It may have ended meanwhile.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        std::thread::sleep(STEP);
    }
}
