//! `dedupfs`: formats, mounts, unmounts, syncs, checks and recovers pools.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    dedupfs_tools::dedupfs()
}
