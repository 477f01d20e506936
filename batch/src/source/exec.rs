//! A program that brings a disk to a point in time: `PROGRAM [ARGUMENT] begin [TOKEN]`, `… check`, `… stored`, `… failed`.
//!
//! TOKEN is that of the newest version. `begin` prints one object of JSON with the members of [`Point`]; an empty text is none. The other
//! verbs get that object on standard input.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Driver, Point, Verdict};

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A program.
#[derive(Debug)]
pub struct Exec {
    program: PathBuf,
    argument: Option<String>,
    /// What it printed at the beginning.
    answer: Vec<u8>,
}

impl Exec {
    /// A program with an argument.
    #[must_use]
    pub fn new(program: PathBuf, argument: Option<String>) -> Self {
        Self { program, argument, answer: Vec::new() }
    }

    fn run(&self, words: &[&str]) -> Result<Vec<u8>, String> {
        let shown = format!("{} {}", self.program.display(), words.join(" "));
        let mut command = Command::new(&self.program);
        command.args(&self.argument).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start {shown}: {error}"))?;
        // A program that does not read it closes the pipe.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&self.answer));
        let ended = child.wait_with_output().map_err(|error| format!("cannot wait for {shown}: {error}"))?;
        match ended.status.success() {
            true => Ok(ended.stdout),
            false => Err(format!("{shown} ended with {}", ended.status)),
        }
    }
}

impl Driver for Exec {
    fn begin(&mut self, last: &[Option<String>]) -> Result<Vec<Point>, String> {
        self.answer.clear();
        let mut words = vec!["begin"];
        words.extend(last.first().and_then(Option::as_deref));
        let answer = self.run(&words)?;
        let point = match answer.len() {
            0..=ANSWER_BYTES_MAX => serde_json::from_slice::<Point>(&answer).map_err(|error| error.to_string()),
            _ => Err(format!("it has more than {ANSWER_BYTES_MAX} bytes")),
        };
        let point = point
            .and_then(|point| if point.source.is_empty() { Err("it names no source".to_owned()) } else { Ok(point) });
        match point {
            Ok(mut point) => {
                self.answer = answer;
                for text in [&mut point.map, &mut point.token, &mut point.token_from, &mut point.without_map] {
                    text.take_if(|text| text.is_empty());
                }
                Ok(vec![point])
            }
            Err(why) => {
                // It may hold something.
                let _ = self.run(&["failed"]);
                Err(format!("the answer of {} is no point in time: {why}", self.program.display()))
            }
        }
    }

    fn check(&mut self, _disk: usize) -> Result<(), String> {
        self.run(&["check"]).map(drop)
    }

    fn end(&mut self, _disk: usize, verdict: Verdict) -> Result<(), String> {
        self.run(&[if verdict == Verdict::Stored { "stored" } else { "failed" }]).map(drop)
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

    #[test]
    fn a_program_is_called_at_the_beginning_and_at_the_end() {
        let (directory, mut exec) = program(
            r#"case $1 in begin) echo "{\"source\":\"/dev/x\",\"token\":\"t2\",\"token_from\":\"$2\"}" ;; *) cat >"${0%/*}/$1" ;; esac"#,
        );
        let points = exec.begin(&[Some("t1".to_owned())]).expect("begins");
        let expected = Point {
            source: "/dev/x".to_owned(),
            token: Some("t2".to_owned()),
            token_from: Some("t1".to_owned()),
            ..Point::default()
        };
        assert_eq!(points, [expected]);
        exec.check(0).expect("stands still");
        exec.end(0, Verdict::Stored).expect("ends");
        let told = std::fs::read_to_string(directory.path().join("stored")).expect("is there");
        assert!(told.contains("\"token\":\"t2\""), "{told}");
        assert!(directory.path().join("check").exists() && !directory.path().join("failed").exists());
    }

    #[test]
    fn programs_that_fail_are_named() {
        for (text, why) in [
            ("exit 3", "exit status: 3"),
            ("echo nonsense", "no point in time"),
            ("echo '{\"source\":\"\"}'", "names no source"),
            ("echo '{\"source\":\"x\",\"colour\":1}'", "colour"),
            ("head -c 2000000 /dev/zero", "more than"),
        ] {
            let (_directory, mut exec) = program(text);
            let error = exec.begin(&[None]).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Exec::new("/none/such".into(), None).begin(&[None]).expect_err("is not there");
        assert!(error.contains("cannot start /none/such begin"), "{error}");
    }
}
