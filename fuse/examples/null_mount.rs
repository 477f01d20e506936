//! Mounts a filesystem that forgets content, to measure what the mount itself costs.
//!
//! `cargo run --release -p dedupfs-fuse --example null_mount -- MOUNTPOINT [--cached] [--threads N] [--memory] [--cores-may-sleep]`;
//! ends when it is unmounted.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use dedupfs_fuse::{KeepAwake, MountOptions, mount};
use dedupfs_service::FileService;
use dedupfs_service::{MemoryService, null_service};

fn main() -> ExitCode {
    let mut options = MountOptions { source: "null".to_owned(), allow_other: true, ..MountOptions::default() };
    let mut service: Arc<dyn FileService> = Arc::new(null_service());
    let mut mountpoint = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cached" => options.direct_io_writes = false,
            "--cores-may-sleep" => options.keep_awake = KeepAwake::Off,
            "--memory" => service = Arc::new(MemoryService::new()),
            "--threads" => {
                let Some(threads) = arguments.next().and_then(|threads| threads.parse().ok()) else {
                    eprintln!("--threads needs a number");
                    return ExitCode::from(2);
                };
                options.session_threads = threads;
            }
            _ => mountpoint = Some(PathBuf::from(argument)),
        }
    }
    let Some(mountpoint) = mountpoint else {
        eprintln!("usage: null_mount MOUNTPOINT [--cached] [--threads N] [--memory] [--cores-may-sleep]");
        return ExitCode::from(2);
    };
    match mount(service, &mountpoint, &options).and_then(|mounted| mounted.wait()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null_mount: {error}");
            ExitCode::FAILURE
        }
    }
}
