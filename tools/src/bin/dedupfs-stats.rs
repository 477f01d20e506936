//! `dedupfs-stats`: shows the content and the savings of a pool.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    dedupfs_tools::dedupfs_stats()
}
