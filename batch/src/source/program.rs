//! Programs that drivers run. Their complaints and their time are bounded, and so are their answers, but for those that go to a file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use super::Tell;

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Time of a program at most: it may wait for the guest.
const PROGRAM_SECS_MAX: u64 = 3600;
/// Time within which a program ends that is asked to, before it is killed.
const ENDS_WITHIN_SECS: u64 = 10;
/// Time between two looks whether a program has ended.
const STEP: Duration = Duration::from_millis(50);
/// Bytes of a line of a complaint that are told, and of all of it in an error.
const COMPLAINT_BYTES_MAX: u64 = 2000;
/// Time for the rest of the complaint of a program that has ended. One that it left behind may go on.
const REST: Duration = Duration::from_secs(1);

/// A program and its words.
pub(super) struct Program<'a> {
    name: &'a OsStr,
    words: Vec<&'a str>,
    input: &'a [u8],
    answer_bytes_max: u64,
    tell: Option<&'a Tell>,
    may_be_killed: bool,
}

impl<'a> Program<'a> {
    pub(super) fn new(name: &'a (impl AsRef<OsStr> + ?Sized), words: &[&'a str]) -> Self {
        let (name, words) = (name.as_ref(), words.to_vec());
        Self { name, words, input: &[], answer_bytes_max: ANSWER_BYTES_MAX, tell: None, may_be_killed: true }
    }

    /// Bytes for its standard input. A pipe takes them at once.
    pub(super) fn with_input(self, input: &'a [u8]) -> Self {
        Self { input, ..self }
    }

    /// Bytes of the answer at most.
    pub(super) fn with_answer_up_to(self, answer_bytes_max: u64) -> Self {
        Self { answer_bytes_max, ..self }
    }

    /// Its complaints are told as they come. Else the last ones are in the error, if it fails.
    pub(super) fn with_complaints_told(self, tell: &'a Tell) -> Self {
        Self { tell: Some(tell), ..self }
    }

    /// It is asked to end, and never killed.
    pub(super) fn never_killed(self) -> Self {
        Self { may_be_killed: false, ..self }
    }

    /// Runs it, and returns its answer. It may leave programs behind, which serve the disk.
    ///
    /// # Errors
    /// In words: it does not start, fails, takes too long, or cannot write its answer because it is too long.
    pub(super) fn run(&self, gives_up: &dyn Fn() -> bool) -> Result<Vec<u8>, String> {
        let cannot = |error: std::io::Error| self.cannot(&error);
        // No pipe: a program that it leaves behind would hold it. It cannot write more than the file has.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let answer = memfd_create("answer", flags).map(File::from).map_err(|errno| cannot(errno.into()))?;
        ftruncate(&answer, self.answer_bytes_max)
            .and_then(|()| fcntl_add_seals(&answer, SealFlags::GROW))
            .map_err(|errno| cannot(errno.into()))?;
        let outcome = self.run_into(answer.try_clone().map_err(cannot)?, gives_up);
        let mut text = vec![0; self.answer_bytes_max as usize];
        answer.read_exact_at(&mut text, 0).map_err(cannot)?;
        // No text has such bytes.
        text.truncate(text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        let may_be_cut = text.len() as u64 > self.answer_bytes_max / 2;
        let hint = || format!(" (its answer has {} bytes at most)", self.answer_bytes_max);
        outcome.map(|()| text).map_err(|why| if may_be_cut { why + &hint() } else { why })
    }

    /// Runs it with a file for its answer.
    ///
    /// # Errors
    /// In words.
    pub(super) fn run_into(&self, answer: File, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let (shown, cannot) = (self.shown(), |error: std::io::Error| self.cannot(&error));
        let mut command = Command::new(self.name);
        command.args(&self.words).stdin(Stdio::piped()).stdout(answer).stderr(Stdio::piped());
        // A signal of the terminal reaches the batch alone, which then lets go in order.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| format!("cannot start {shown}: {error}"))?;
        let complaint = child.stderr.take().map(|stderr| Complaint::listen(stderr, self.tell.cloned()));
        // A program that does not read it closes the pipe.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(self.input));
        let status = wait(&mut child, gives_up, self.may_be_killed).map_err(cannot)?;
        let complaint = complaint.map(Complaint::rest).filter(|complaint| !complaint.is_empty());
        let complaint = complaint.map_or_else(String::new, |complaint| format!(": {complaint}"));
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{shown} ended with {status}{complaint}")),
            None => Err(format!(
                "{shown} was given up: it took too long, the window is over, or the batch was interrupted{complaint}"
            )),
        }
    }

    fn shown(&self) -> String {
        format!("{} {}", self.name.display(), self.words.join(" "))
    }

    fn cannot(&self, error: &std::io::Error) -> String {
        format!("cannot run {}: {error}", self.shown())
    }
}

/// The complaint of a program, read by a thread that ends when nothing can write there any more.
pub(super) struct Complaint {
    /// The last lines that are not told yet, as one.
    untold: Arc<Mutex<String>>,
    /// Closed at the end.
    end: Receiver<()>,
}

impl Complaint {
    pub(super) fn listen(stderr: ChildStderr, tell: Option<Tell>) -> Self {
        let untold = Arc::new(Mutex::new(String::new()));
        let (open, end) = channel::<()>();
        let kept = Arc::clone(&untold);
        std::thread::spawn(move || {
            let _open = open;
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            while matches!(stderr.by_ref().take(COMPLAINT_BYTES_MAX).read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(line.trim_ascii()).into_owned();
                line.clear();
                match &tell {
                    Some(tell) => tell.line(&text),
                    None => append(&mut kept.lock().unwrap_or_else(PoisonError::into_inner), &text),
                }
            }
        });
        Self { untold, end }
    }

    /// Returns what is not told when the program has ended.
    pub(super) fn rest(self) -> String {
        let _ = self.end.recv_timeout(REST);
        std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Appends a line to the last ones.
fn append(lines: &mut String, line: &str) {
    if !lines.is_empty() {
        lines.push(' ');
    }
    lines.push_str(line);
    let surplus = lines.len().saturating_sub(COMPLAINT_BYTES_MAX as usize);
    lines.drain(..lines.ceil_char_boundary(surplus));
}

/// Waits for the end of a program; `None` if it was ended, with all that it has started.
fn wait(child: &mut Child, gives_up: &dyn Fn() -> bool, may_be_killed: bool) -> std::io::Result<Option<ExitStatus>> {
    let (begun, mut asked) = (Instant::now(), None::<Instant>);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(asked.is_none().then_some(status));
        }
        if asked.is_none() && (gives_up() || begun.elapsed().as_secs() > PROGRAM_SECS_MAX) {
            asked = Some(Instant::now());
            let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
        }
        if may_be_killed && asked.is_some_and(|asked| asked.elapsed().as_secs() >= ENDS_WITHIN_SECS) {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        }
        std::thread::sleep(STEP);
    }
}
