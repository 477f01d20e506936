//! Rounds of several processes on this machine: with the right verdicts, with killed processes, and with broken networks.

mod failures;
mod networks;
mod processes;
#[path = "../../examples/machine/role.rs"]
mod role;
mod strangers;
#[path = "../../examples/machine/synthetic.rs"]
mod synthetic;
mod verdicts;
