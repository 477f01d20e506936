//! The state of a commit on a device, without the content of containers: the files of the export, and the containers that they name.

use std::sync::Arc;

use dedupfs::export::{DATA_ROOT_DIRECTORIES, ExportFiles, ExportPosition};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::superblock::{Role, Superblock};

use crate::chain::{Head, StoredById};
use crate::commit::CommitKind;
use crate::error::{ReplicaError, Result};
use crate::local::{Local, Locals};
use crate::place::Replica;
use crate::stored::Stored;

/// The state of a commit, whose export lies on a device.
#[derive(Debug)]
pub(crate) struct State {
    /// Of the data root.
    pub(crate) superblock: Superblock,
    pub(crate) position: ExportPosition,
    /// The objects of its containers.
    pub(crate) stored: StoredById,
    /// The slots of its containers.
    pub(crate) locals: Locals,
}

impl State {
    /// Writes the export of a commit's state to `data`, over files of an earlier call.
    pub(crate) fn place(replica: &Replica, newest: &Head, data: &dyn Device) -> Result<Self> {
        for directory in DATA_ROOT_DIRECTORIES {
            data.create_directory(directory)?;
        }
        let mut stored = StoredById::new();
        let mut export = Export::default();
        replica.walk(newest, &mut |commit| {
            if commit.kind == CommitKind::Base {
                export = Export::begin(data, &commit.position)?;
                export.superblock.clone_from(&commit.superblock);
                commit.export_base.download(replica, commit.number, &mut |bytes| export.base.push(bytes))?;
            }
            commit.export_log.download(replica, commit.number, &mut |bytes| export.log.push(bytes))?;
            export.position = commit.position;
            replica.apply(commit, &mut stored)
        })?;
        export.finish()?;
        let position = export.position;
        let superblock = superblock(&export.superblock, replica)?;
        let mut locals = Locals::default();
        locals.advance(&superblock.pool, &ExportFiles::open(data, &position)?)?;
        Ok(Self { superblock, position, stored, locals })
    }

    /// The object that has all valid bytes of a container.
    pub(crate) fn object_of(&self, local: &Local) -> Option<&Stored> {
        self.stored.get(&local.id).filter(|stored| stored.used_bytes == local.used_bytes)
    }
}

fn superblock(bytes: &[u8], replica: &Replica) -> Result<Superblock> {
    let memory = dedupfs_store::device::MemoryDevice::new();
    memory.replace_file("", Role::Data.file_name(), bytes)?;
    let superblock = Superblock::read(&memory, Role::Data).map_err(ReplicaError::of_bytes)?;
    if superblock.pool == replica.format.pool {
        return Ok(superblock);
    }
    Err(ReplicaError::damaged("the pool's superblock in the replica", replica.format.pool, superblock.pool))
}

/// A file that is written from its beginning.
#[derive(Default)]
struct Written {
    file: Option<Arc<dyn DeviceFile>>,
    at: u64,
}

impl Written {
    fn begin(data: &dyn Device, path: &str) -> Result<Self> {
        let file = data.open(path, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        Ok(Self { file: Some(file), at: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = &self.file {
            file.write_at(bytes, self.at)?;
            self.at += bytes.len() as u64;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| Ok(file.sync()?))
    }
}

/// The export, as it is brought back.
#[derive(Default)]
struct Export {
    base: Written,
    log: Written,
    superblock: Vec<u8>,
    position: ExportPosition,
}

impl Export {
    fn begin(data: &dyn Device, position: &ExportPosition) -> Result<Self> {
        let (base, log) = (Written::begin(data, &position.base_path())?, Written::begin(data, &position.log_path())?);
        Ok(Self { base, log, ..Self::default() })
    }

    fn finish(&self) -> Result<()> {
        self.base.finish()?;
        self.log.finish()
    }
}
