//! The source of a mount: a pool, or the view of a replica.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::{OpenOptions, Pool};

use crate::args::MountArgs;
use crate::control::{Failure, FailureKind};
use crate::mount_options::{Options, ReplicaOptions};
use crate::{access, target};

pub(super) enum Source {
    Pool(PathBuf),
    #[cfg(feature = "remote")]
    Replica(Box<crate::view::Opened>),
}

impl Source {
    /// Finds the pool, or opens the view of a replica.
    pub(super) fn find(args: &MountArgs) -> Result<Self, Failure> {
        #[cfg(feature = "remote")]
        if crate::view::is_replica(&args.pool) {
            let args = crate::view::with_options(args)?;
            let opened = crate::view::Opened::open(&args.pool, &args.view, args.memory, &dedupfs::NoProgress)?;
            return Ok(Self::Replica(Box::new(opened)));
        }
        target::pool(&args.pool).map(Self::Pool)
    }

    /// The directory that stands for it: that of the pool, or of the view's meta root.
    pub(super) fn root(&self) -> &Path {
        match self {
            Self::Pool(root) => root,
            #[cfg(feature = "remote")]
            Self::Replica(opened) => &opened.root,
        }
    }

    /// Refuses options that mean nothing for it.
    pub(super) fn check(&self, options: &Options) -> Result<(), Failure> {
        if self.is_local() && options.replica != ReplicaOptions::default() {
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
            Self::Replica(opened) => opened.pool(options),
        }
    }

    /// Whether its content lies on a disk of this machine, which can be measured and verified.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Pool(_))
    }

    /// Tells which state is read, if there are several.
    pub(super) fn notice(&self) -> Option<String> {
        match self {
            Self::Pool(_) => None,
            #[cfg(feature = "remote")]
            Self::Replica(opened) => Some(opened.notice()),
        }
    }
}
