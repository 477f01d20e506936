//! Commands of `dedupfs` that a batch runs, each in a process of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::commands::put::{LEAVE, READ};
use crate::exit;

/// Time between two looks whether a command is to give up.
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
///
/// A put says when its source was read, and gives the version its name if `check` then says yes. If this process dies, it does not.
pub(super) fn run(
    name: &str,
    words: &[String],
    gives_up: &(dyn Fn() -> bool + Sync),
    check: &mut dyn FnMut() -> bool,
) -> Result<Ended, String> {
    let cannot = |error: std::io::Error| format!("cannot run dedupfs: {error}");
    // The same program, also if another has been installed meanwhile.
    let mut command = Command::new("/proc/self/exe");
    let (first, rest) = words.split_first().ok_or("no command is given")?;
    command.arg0("dedupfs").arg(first).arg("--json").args(rest);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A signal of the terminal reaches the batch alone, which passes it on once: a second one would end the command at once.
    command.process_group(0);
    let mut child = command.spawn().map_err(cannot)?;
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let is_over = AtomicBool::new(false);
    let pid = Pid::from_child(&child);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| give_up_in_time(pid, gives_up, &is_over));
        scope.spawn(move || {
            for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok) {
                exit::tell(&format!("{name}: {}\n", line.strip_prefix("dedupfs: ").unwrap_or(&line)));
            }
        });
        let mut result = Value::Null;
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout.take(RESULT_BYTES_MAX)).lines());
        for line in lines.map_while(Result::ok) {
            if line != READ {
                result = serde_json::from_str(&line).unwrap_or(Value::Null);
            } else if let Some(mut stdin) = stdin.take().filter(|_| check()) {
                // A put that has ended meanwhile says so.
                let _ = stdin.write_all(LEAVE);
            }
        }
        // Its output is closed: it ends, and must not be signalled behind that.
        is_over.store(true, Ordering::Relaxed);
        result
    });
    let code = child.wait().map_err(cannot)?.code().and_then(|code| u8::try_from(code).ok());
    Ok(Ended { code, result })
}

/// Asks a command once to end, if there is no more time for it.
fn give_up_in_time(pid: Pid, gives_up: &(dyn Fn() -> bool + Sync), is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        if gives_up() {
            // It was not waited for, so the number is its own.
            let _ = kill_process(pid, Signal::TERM);
            return;
        }
        std::thread::sleep(STEP);
    }
}
