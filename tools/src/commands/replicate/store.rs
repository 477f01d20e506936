//! The store of a replica, and its key.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use dedupfs_remote::Address;
use dedupfs_replica::{KeyFile, KeyFileError, Replica, ReplicaError, Secret};
use dedupfs_store::objects::{CountingObjects, Objects, Requests};

use crate::args::remote::KeyOptions;
use crate::control::{Failure, FailureKind};

/// Environment variable with a passphrase.
pub(crate) const PASSPHRASE: &str = "DEDUPFS_PASSPHRASE";
/// The object, and so the file, that every replica has.
pub(crate) const FORMAT: &str = "format";
/// Longest passphrase and key file that are read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// An open store, its requests counted.
pub(crate) struct Store {
    pub(crate) address: Address,
    pub(crate) objects: Arc<dyn Objects>,
    counting: CountingObjects,
}

impl Store {
    /// Opens the store at an address. It is not parsed by clap, whose messages would show secrets in it.
    pub(crate) fn open(text: &str) -> Result<Self, Failure> {
        let address: Address = text.parse()?;
        let counting = CountingObjects::new(address.open()?);
        Ok(Self { address, objects: Arc::new(counting.clone()), counting })
    }

    /// Opens the replica there.
    pub(crate) fn replica(&self, key: &KeyOptions) -> Result<Replica, Failure> {
        let secret = secret(key)?;
        Ok(Replica::open(&self.objects, secret.as_ref())?)
    }

    /// Opens the replica there, with a secret that is known already.
    pub(crate) fn replica_with(&self, secret: Option<&[u8; 32]>) -> Result<Replica, Failure> {
        Ok(Replica::open(&self.objects, secret.map(Secret::new).as_ref())?)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> Requests {
        self.counting.requests()
    }
}

/// Opens the key file that the options name.
pub(crate) fn secret(key: &KeyOptions) -> Result<Option<Secret>, Failure> {
    Ok(secret_bytes(key)?.as_ref().map(Secret::new))
}

/// As [`secret`], for another process of this command.
pub(crate) fn secret_bytes(key: &KeyOptions) -> Result<Option<[u8; 32]>, Failure> {
    let Some(path) = &key.key else { return Ok(None) };
    let passphrase = passphrase(key.passphrase_file.as_deref(), "passphrase of the key file: ")?;
    read_key(path)?.secret_bytes(&passphrase).map(Some).map_err(|error| of_key(path, error))
}

pub(crate) fn read_key(path: &Path) -> Result<KeyFile, Failure> {
    KeyFile::parse(&read(path)?).map_err(|error| of_key(path, error))
}

/// Writes a new key file that only its owner can read; durable on return. The file must not exist.
pub(crate) fn write_key(path: &Path, file: &KeyFile) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    let text = file.to_text().map_err(|error| of_key(path, error))?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    to.write_all(text.as_bytes()).and_then(|()| to.sync_all()).map_err(failed)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

pub(crate) fn of_key(path: &Path, error: KeyFileError) -> Failure {
    let kind = match error {
        KeyFileError::WrongPassphrase | KeyFileError::Usage(_) => FailureKind::Usage,
        KeyFileError::Damaged { .. } => FailureKind::Damaged,
        KeyFileError::System(_) => FailureKind::Failed,
    };
    kind.because(format!("key file {}: {error}", path.display()))
}

/// Returns the present passphrase: from a file, the environment, or the terminal.
pub(crate) fn passphrase(file: Option<&Path>, prompt: &str) -> Result<Vec<u8>, Failure> {
    match file {
        Some(file) => first_line(file),
        None => match std::env::var_os(PASSPHRASE) {
            Some(passphrase) => Ok(passphrase.into_encoded_bytes()),
            None => asked(prompt, "--passphrase-file, or in the environment as DEDUPFS_PASSPHRASE"),
        },
    }
}

/// Returns a new passphrase: from a file, or typed twice at the terminal.
pub(crate) fn new_passphrase(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    if let Some(file) = file {
        return first_line(file);
    }
    let option = "--new-passphrase-file (of `dedupfs replicate --init`: --passphrase-file)";
    let passphrase = asked("new passphrase: ", option)?;
    let problem = match () {
        () if passphrase.is_empty() => "the passphrase is empty",
        () if asked("the same again: ", option)? != passphrase => "the second passphrase is another one",
        () => return Ok(passphrase),
    };
    Err(FailureKind::Usage.because(problem.to_owned()))
}

fn asked(prompt: &str, option: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        FailureKind::Usage.because(format!("no passphrase can be asked for ({error}): give it with {option}"))
    };
    if !std::io::stdin().is_terminal() {
        return Err(failed(&"there is no terminal"));
    }
    rpassword::prompt_password(prompt).map(String::into_bytes).map_err(|error| failed(&error))
}

fn first_line(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = read(path)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| FailureKind::Usage.because(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes)
}

impl From<ReplicaError> for Failure {
    fn from(error: ReplicaError) -> Self {
        let kind = match &error {
            ReplicaError::Object(error) => return error.clone().into(),
            ReplicaError::Pool(error) => return error.clone().into(),
            ReplicaError::Absent { .. }
            | ReplicaError::Exists { .. }
            | ReplicaError::WrongKey { .. }
            | ReplicaError::OtherPool { .. }
            | ReplicaError::Usage(_) => FailureKind::Usage,
            ReplicaError::Fenced { .. }
            | ReplicaError::NotOurs { .. }
            | ReplicaError::HoldLost
            | ReplicaError::NotNow(_) => FailureKind::Failed,
            ReplicaError::Damaged { .. } => FailureKind::Damaged,
            ReplicaError::Ended => FailureKind::Ended,
        };
        kind.because(error.to_string())
    }
}
