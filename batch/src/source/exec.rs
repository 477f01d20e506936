//! A program that brings a disk to a point in time: `PROGRAM [ARGUMENT] begin [TOKEN]`, `… check`, `… stored`, `… failed`.
//!
//! TOKEN is that of the newest version. `begin` prints one object of JSON with the members of [`Point`]; an empty text is none. The other
//! verbs get that object on standard input.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{Driver, Point, Verdict, is_token};

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 32 << 10;
/// Time of a program at most: it may wait for the guest.
const PROGRAM_SECS_MAX: u64 = 3600;
/// Time within which a program ends that is asked to, before it is killed.
const ENDS_WITHIN_SECS: u64 = 10;
/// Time between two looks whether a program has ended.
const STEP: Duration = Duration::from_millis(50);

/// A program.
#[derive(Debug)]
pub struct Exec {
    program: PathBuf,
    argument: Option<String>,
    /// The object that `begin` printed. A pipe takes it at once.
    answer: Vec<u8>,
}

impl Exec {
    /// A program with an argument.
    #[must_use]
    pub fn new(program: PathBuf, argument: Option<String>) -> Self {
        Self { program, argument, answer: Vec::new() }
    }

    /// Runs the program, and returns its answer. It may leave programs behind, which serve the disk.
    fn run(&self, words: &[&str], gives_up: &dyn Fn() -> bool) -> Result<Vec<u8>, String> {
        let shown = format!("{} {}", self.program.display(), words.join(" "));
        let cannot = |error: std::io::Error| format!("cannot run {shown}: {error}");
        // No pipe: a program that it leaves behind would hold it.
        let answer =
            File::from(rustix::fs::memfd_create("answer", MemfdFlags::CLOEXEC).map_err(|errno| cannot(errno.into()))?);
        let mut command = Command::new(&self.program);
        command.args(&self.argument).args(words).stdin(Stdio::piped());
        command.stdout(answer.try_clone().map_err(cannot)?);
        // A signal of the terminal reaches the batch alone, which then lets go in order.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| format!("cannot start {shown}: {error}"))?;
        // A program that does not read it closes the pipe.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&self.answer));
        let status = wait(&mut child, gives_up).map_err(cannot)?;
        let status = status.ok_or_else(|| {
            format!("{shown} was given up: it took an hour, the window is over, or the batch was interrupted")
        })?;
        if !status.success() {
            return Err(format!("{shown} ended with {status}"));
        }
        let len_bytes = answer.metadata().map_err(cannot)?.len();
        if len_bytes > ANSWER_BYTES_MAX {
            return Err(format!("the answer of {shown} has more than {ANSWER_BYTES_MAX} bytes"));
        }
        // The place in the file is that of programs left behind, too.
        let mut text = vec![0; len_bytes as usize];
        answer.read_exact_at(&mut text, 0).map_err(cannot)?;
        Ok(text)
    }
}

/// Waits for the end of a program; `None` if it was ended, with all that it has started.
fn wait(child: &mut Child, gives_up: &dyn Fn() -> bool) -> std::io::Result<Option<ExitStatus>> {
    let (begun, mut asked) = (Instant::now(), None::<Instant>);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(asked.is_none().then_some(status));
        }
        if asked.is_none() && (gives_up() || begun.elapsed().as_secs() > PROGRAM_SECS_MAX) {
            asked = Some(Instant::now());
            let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
        }
        if asked.is_some_and(|asked| asked.elapsed().as_secs() >= ENDS_WITHIN_SECS) {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        }
        std::thread::sleep(STEP);
    }
}

impl Driver for Exec {
    fn begin(&mut self, last: &[Option<String>], gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        self.answer.clear();
        let mut words = vec!["begin"];
        words.extend(last.first().and_then(Option::as_deref).filter(|token| is_token(token)));
        let answer = self.run(&words, gives_up);
        let parsed = answer.and_then(|answer| {
            self.answer = answer;
            if self.answer.trim_ascii().is_empty() {
                return Err(format!(
                    "{} begin printed nothing: its answer is an object of JSON",
                    self.program.display()
                ));
            }
            serde_json::from_slice::<Point>(&self.answer)
                .map_err(|error| format!("the answer of {} is not understood: {error}", self.program.display()))
        });
        let point = parsed.and_then(|mut point| {
            for text in [&mut point.map, &mut point.token, &mut point.token_from, &mut point.without_map] {
                text.take_if(|text| text.is_empty());
            }
            let wrong = |why| format!("the answer of {} is not understood: {why}", self.program.display());
            point.check().map(|()| point).map_err(wrong)
        });
        point.map(|point| vec![point]).inspect_err(|_| {
            // It may hold something.
            let _ = self.run(&["failed"], &|| false);
        })
    }

    fn check(&mut self, _disk: usize, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.run(&["check"], gives_up).map(drop)
    }

    fn end(&mut self, _disk: usize, verdict: Verdict) -> Result<(), String> {
        self.run(&[if verdict == Verdict::Stored { "stored" } else { "failed" }], &|| false).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> (tempfile::TempDir, Exec) {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("program");
        std::fs::write(&path, text).expect("writes");
        let exec = Exec::new("/bin/sh".into(), Some(path.display().to_string()));
        (directory, exec)
    }

    fn never() -> bool {
        false
    }

    #[test]
    fn a_program_is_called_at_the_beginning_and_at_the_end() {
        let (directory, mut exec) = program(
            r#"case $1 in
                begin) sleep 20 2>/dev/null & echo "{\"source\":\"/dev/x\",\"token\":\"t2\",\"token_from\":\"$2\",\"map\":\"\"}" ;;
                *) cat >"${0%/*}/$1" ;;
            esac"#,
        );
        let points = exec.begin(&[Some("t1".to_owned())], &never).expect("begins, although something is left behind");
        let expected = Point {
            source: "/dev/x".to_owned(),
            token: Some("t2".to_owned()),
            token_from: Some("t1".to_owned()),
            ..Point::default()
        };
        assert_eq!(points, [expected]);
        exec.check(0, &never).expect("stands still");
        exec.end(0, Verdict::Stored).expect("ends");
        let told = std::fs::read_to_string(directory.path().join("stored")).expect("is there");
        assert!(told.contains("\"token\":\"t2\""), "{told}");
        assert!(directory.path().join("check").exists() && !directory.path().join("failed").exists());
        // A token that the program did not make is no word for it.
        let points = exec.begin(&[Some("-rf".to_owned())], &never).expect("begins");
        assert_eq!(points.first().map(|point| &point.token_from), Some(&None));
    }

    #[test]
    fn programs_that_fail_are_named() {
        for (text, why) in [
            ("exit 3", "exit status: 3"),
            ("echo nonsense", "not understood"),
            ("true", "printed nothing"),
            (r#"echo '{"source":"x"}'"#, "absolute"),
            ("echo '{\"source\":\"\"}'", "names no source"),
            ("echo '{\"source\":\"--live\"}'", "names no source"),
            ("echo '{\"source\":\"/x\",\"token\":\"a b\"}'", "a b"),
            ("echo '{\"source\":\"/x\",\"colour\":1}'", "colour"),
            ("head -c 2000000 /dev/zero", "more than"),
        ] {
            let (_directory, mut exec) = program(text);
            let error = exec.begin(&[None], &never).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Exec::new("/none/such".into(), None).begin(&[None], &never).expect_err("is not there");
        assert!(error.contains("cannot start /none/such begin"), "{error}");
        let (_directory, mut exec) = program("case $1 in begin) exec sleep 20 ;; esac");
        let error = exec.begin(&[None], &|| true).expect_err("takes too long");
        assert!(error.contains("given up"), "{error}");
    }

    #[test]
    fn a_map_without_the_state_at_which_it_begins_is_left_out() {
        let point = |from: Option<&str>| {
            let (map, token_from) = (Some("/map".to_owned()), from.map(str::to_owned));
            Point { map, token_from, ..Point::default() }.with_known_beginning()
        };
        assert!(point(Some("t1")).map.is_some() && point(Some("t1")).without_map.is_none());
        assert!(point(None).map.is_none() && point(None).without_map.is_some());
    }
}
