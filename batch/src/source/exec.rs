//! A program that brings a disk to a point in time: `PROGRAM [ARGUMENT] begin [TOKEN]`, `… check`, `… stored`, `… failed`.
//!
//! TOKEN is that of the newest version. `begin` prints one object of JSON with the members of [`Point`], but for `file_name`; an empty text is none. The other
//! verbs get that object on standard input.

use std::path::PathBuf;

use super::program::Program;
use super::{Driver, Point, Tell, Verdict, is_token};

/// Bytes of an answer at most: a pipe takes it at once.
const PIPE_BYTES: u64 = 32 << 10;

/// A program.
pub struct Exec {
    program: PathBuf,
    argument: Option<String>,
    tell: Tell,
    last: Option<String>,
    is_begun: bool,
    /// The object that `begin` printed.
    answer: Vec<u8>,
    point: Option<Point>,
}

impl Exec {
    /// A program with an argument. What it complains is told.
    #[must_use]
    pub(super) fn new(program: PathBuf, argument: Option<String>, tell: Tell) -> Self {
        Self { program, argument, tell, last: None, is_begun: false, answer: Vec::new(), point: None }
    }

    fn run(&self, words: &[&str], gives_up: &dyn Fn() -> bool) -> Result<Vec<u8>, String> {
        let words: Vec<&str> = self.argument.as_deref().into_iter().chain(words.iter().copied()).collect();
        let program = Program::new(&self.program, &words).with_input(&self.answer);
        program.with_answer_up_to(PIPE_BYTES).with_complaints_told(&self.tell).run(gives_up)
    }
}

impl Driver for Exec {
    fn prepare(&mut self, last: &[Option<String>], _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.last = last.first().cloned().flatten().filter(|token| is_token(token));
        self.answer.clear();
        Ok(())
    }

    fn begin(&mut self, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        // From here on it may hold something.
        self.is_begun = true;
        let last = self.last.take();
        let mut words = vec!["begin"];
        words.extend(last.as_deref());
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
        point.map(|point| self.point = Some(point))
    }

    fn points(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        Ok(self.point.take().into_iter().collect())
    }

    fn check(&mut self, _disk: usize, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.run(&["check"], gives_up).map(drop)
    }

    fn end(&mut self, _disk: usize, verdict: Verdict) -> Result<(), String> {
        if !std::mem::take(&mut self.is_begun) {
            return Ok(());
        }
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
        let exec = Exec::new("/bin/sh".into(), Some(path.display().to_string()), Tell::new(|_| {}));
        (directory, exec)
    }

    fn begin(exec: &mut Exec, last: Option<&str>) -> Result<Vec<Point>, String> {
        exec.prepare(&[last.map(str::to_owned)], &never)?;
        exec.begin(&never)?;
        exec.points(&never)
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
        let points = begin(&mut exec, Some("t1")).expect("begins, although something is left behind");
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
        let points = begin(&mut exec, Some("-rf")).expect("begins");
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
            ("yes | head -c 2000000", "32768 bytes at most"),
        ] {
            let (_directory, mut exec) = program(text);
            let error = begin(&mut exec, None).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Exec::new("/none/such".into(), None, Tell::new(|_| {})).begin(&never).expect_err("is not there");
        assert!(error.contains("cannot start /none/such begin"), "{error}");
        let (_directory, mut exec) = program("case $1 in begin) exec sleep 20 ;; esac");
        let error = exec.begin(&|| true).expect_err("takes too long");
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
