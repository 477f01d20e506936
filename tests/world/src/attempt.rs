//! Worlds in processes of their own: what killed lives leak goes with them, and a world that hangs or dies is seen from
//! outside.

use std::io::Write;
use std::process::{Command, Stdio};

use dedupfs_sync::canary::Canary;

use crate::plan::Plan;

/// Longest time of an attempt in seconds: most take some milliseconds, and while a plan shrinks many hang.
pub const ATTEMPT_SECS: u64 = 10;
/// Longest time of an attempt that must pass, also beside other work: a kept plan takes some seconds.
pub const PASSING_SECS: u64 = 120;

/// Returns a command that runs this program with this mistake.
pub fn this_program(canary: Option<Canary>) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("has a path"));
    if let Some(canary) = canary {
        command.args(["--canary", &format!("{canary:?}")]);
    }
    command
}

/// Runs the plan, with this mistake, for at most so many seconds.
///
/// # Errors
/// The failure in words. A process that dies or does not end has failed, too.
pub fn attempt(plan: &Plan, canary: Option<Canary>, longest_secs: u64) -> Result<(), String> {
    let mut command = this_program(canary);
    command.args(["--attempt", "--patience", &longest_secs.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().expect("starts a process");
    let written = serde_json::to_vec(plan).expect("plans can be written");
    // Dropped behind this line: the process waits for the end.
    process.stdin.take().expect("is piped").write_all(&written).expect("the process reads");
    let output = process.wait_with_output().expect("ends");
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stdout);
    match told.trim_end() {
        "" => Err(format!("the process ended with {}", output.status)),
        told => Err(told.to_owned()),
    }
}

/// Reads the plan of the process that started this one.
pub fn given() -> Plan {
    serde_json::from_reader(std::io::stdin().lock()).expect("the process that started this one writes a plan")
}
