//! Runs other programs. Their standard output joins standard error, where it does not disturb the tables.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{Outcome, cleanup, fail, files};

/// Makes a command of a program and its arguments.
#[macro_export]
macro_rules! command {
    ($program:expr $(, $argument:expr)* $(,)?) => {
        $crate::command::new($program, &[$(std::convert::AsRef::<std::ffi::OsStr>::as_ref(&$argument)),*])
    };
}

/// Makes a command, for [`command!`].
pub fn new(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(std::io::stderr()).env("LC_ALL", "C");
    command
}

/// Ways to run a command. All fail if it cannot be started or does not succeed.
pub trait Run {
    /// Starts it.
    fn start(&mut self) -> Outcome<Child>;
    /// Runs it to its end.
    fn run(&mut self) -> Outcome;
    /// Runs it and returns its output.
    fn text(&mut self) -> Outcome<String>;
    /// Lets it read this file.
    fn reads(&mut self, path: &Path) -> Outcome<&mut Self>;
    /// Lets it write this file, which is made or emptied.
    fn writes(&mut self, path: &Path) -> Outcome<&mut Self>;
    /// Drops its output.
    fn quiet(&mut self) -> &mut Self;
}

impl Run for Command {
    fn start(&mut self) -> Outcome<Child> {
        let started = cleanup::check().and_then(|()| self.spawn());
        started.or_else(|error| fail(format!("cannot run {}: {error}", shown(self))))
    }

    fn run(&mut self) -> Outcome {
        let child = self.start()?;
        wait(child, &shown(self))
    }

    fn text(&mut self) -> Outcome<String> {
        let mut child = self.stdout(Stdio::piped()).start()?;
        let mut text = Vec::new();
        let read = child.stdout.take().map_or(Ok(0), |mut output| output.read_to_end(&mut text));
        wait(child, &shown(self))?;
        read.or_else(|error| fail(format!("cannot read the output of {}: {error}", shown(self))))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn reads(&mut self, path: &Path) -> Outcome<&mut Self> {
        Ok(self.stdin(File::open(path).or_else(files::at("read", path))?))
    }

    fn writes(&mut self, path: &Path) -> Outcome<&mut Self> {
        Ok(self.stdout(File::create(path).or_else(files::at("write", path))?))
    }

    fn quiet(&mut self) -> &mut Self {
        self.stdout(Stdio::null())
    }
}

/// Waits for a child, which failures call `name`.
pub fn wait(mut child: Child, name: &str) -> Outcome {
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => fail(format!("{name}: {status}")),
        Err(error) => fail(format!("cannot wait for {name}: {error}")),
    }
}

/// Returns a command as a shell would have it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
