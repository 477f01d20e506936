//! A pool that is mounted, or the view of a replica in its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::{OpenOptions, Pool};

use crate::args::MountArgs;
use crate::control::{Failure, FailureKind};
use crate::mount_options::{Options, ReplicaOptions};
use crate::{access, mount, target};

pub(super) enum Served {
    Pool(PathBuf),
    #[cfg(feature = "remote")]
    View(Box<crate::view::Opened>),
}

impl Served {
    /// Finds the pool, or opens the view of a replica.
    pub(super) fn find(args: &MountArgs) -> Result<Self, Failure> {
        #[cfg(feature = "remote")]
        if crate::view::is_replica(&args.pool) {
            let args = crate::view::with_options(args)?;
            let opened = crate::view::Opened::open(&args, &dedupfs::NoProgress)?;
            return Ok(Self::View(Box::new(opened)));
        }
        target::pool(&args.pool).map(Self::Pool)
    }

    /// The directory that stands for it: that of the pool, or of the view's meta root.
    pub(super) fn root(&self) -> &Path {
        match self {
            Self::Pool(root) => root,
            #[cfg(feature = "remote")]
            Self::View(opened) => &opened.root,
        }
    }

    /// The directories that the mount rests on. None of them may lie in it.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        match self {
            Self::Pool(root) => mount::roots(root),
            #[cfg(feature = "remote")]
            Self::View(opened) => opened.directories.clone(),
        }
    }

    /// Refuses options that mean nothing for it.
    pub(super) fn check(&self, options: &Options) -> Result<(), Failure> {
        if self.is_pool() && options.replica != ReplicaOptions::default() {
            let shown = self.root().display();
            return Err(FailureKind::Usage.because(format!(
                "mount options key, passphrase_file, cache and cache_size are for replicas, and {shown} is a pool: leave them out"
            )));
        }
        Ok(())
    }

    pub(super) fn open(&self, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
        match self {
            Self::Pool(root) => access::open_for_mount(root, options),
            #[cfg(feature = "remote")]
            Self::View(opened) => opened.pool(options),
        }
    }

    /// Whether its content lies on a disk of this machine, which can be measured and verified.
    pub(super) fn is_pool(&self) -> bool {
        matches!(self, Self::Pool(_))
    }

    /// Logs the work of the mount at its end.
    pub(super) fn log_end(&self) {
        match self {
            Self::Pool(_) => {}
            #[cfg(feature = "remote")]
            Self::View(opened) => {
                let (containers, parts) = opened.fetched();
                tracing::info!(containers, parts, "fetched from the replica");
            }
        }
    }

    /// Tells which state is read, if there are several.
    pub(super) fn notice(&self) -> Option<String> {
        match self {
            Self::Pool(_) => None,
            #[cfg(feature = "remote")]
            Self::View(opened) => Some(opened.notice()),
        }
    }
}
