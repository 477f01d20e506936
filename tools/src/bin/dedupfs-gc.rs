//! `dedupfs-gc`: gives back the space of deleted data.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    dedupfs_tools::dedupfs_gc()
}
