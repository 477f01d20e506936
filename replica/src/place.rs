//! An open replica: the store, and the protection of its objects.

use std::sync::Arc;

use dedupfs_store::PoolId;
use dedupfs_store::objects::{Class, Created, Key, ObjectError, Objects};
use dedupfs_sync::{clock, entropy};

use crate::encrypted::{EncryptedObjects, Secret};
use crate::error::{ReplicaError, Result};
use crate::format::{FORMAT_KEY, Format};
use crate::note::NOTES_DIRECTORY;

/// A replica in a store.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) name_key: [u8; 32],
    pub(crate) format: Format,
    pub(crate) place: String,
}

impl Replica {
    /// Makes a replica for a pool, encrypted with a secret or not, in a store that has none.
    ///
    /// # Errors
    /// `Exists`; those of the store.
    pub fn init(store: &Arc<dyn Objects>, pool: &PoolId, secret: Option<&Secret>) -> Result<Self> {
        let exists = |pool: &PoolId| ReplicaError::Exists { place: store.describe(), pool: pool.to_string() };
        if let Some(found) = read_format(&**store)? {
            return Err(exists(&found.pool));
        }
        let replica = random()?;
        let key = secret.map(Secret::id).transpose()?;
        let format = Format { pool: *pool, replica, key, created_secs: clock::since_epoch().as_secs() };
        match store.create(&format_key()?, &[&format.encode()], Class::Metadata) {
            Ok(Created::New | Created::Same) => Self::with(store, format, secret),
            Err(ObjectError::Foreign { .. }) => Err(exists(pool)),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the replica in a store.
    ///
    /// # Errors
    /// `Absent`, `WrongKey`; a format that is damaged or newer; those of the store.
    pub fn open(store: &Arc<dyn Objects>, secret: Option<&Secret>) -> Result<Self> {
        let format = read_format(&**store)?.ok_or_else(|| ReplicaError::Absent { place: store.describe() })?;
        Self::with(store, format, secret)
    }

    fn with(store: &Arc<dyn Objects>, format: Format, secret: Option<&Secret>) -> Result<Self> {
        let place = store.describe();
        let wrong = |why| ReplicaError::WrongKey { place: place.clone(), why };
        let (objects, name_key): (Arc<dyn Objects>, _) = match (secret, format.key) {
            (None, None) => {
                (Arc::clone(store), blake3::derive_key("dedupfs names of a plain replica 1", &format.pool.0))
            }
            (None, Some(_)) => return Err(wrong("is encrypted: name its key file with --key FILE")),
            (Some(_), None) => return Err(wrong("is not encrypted: leave out --key, or make another replica")),
            (Some(secret), Some(id)) if secret.id()? == id => {
                (Arc::new(EncryptedObjects::new(Arc::clone(store), secret.clone())), secret.name_key()?)
            }
            (Some(_), Some(_)) => {
                return Err(wrong("is encrypted with another key: name the key file that was made for it"));
            }
        };
        Ok(Self { objects, name_key, format, place })
    }

    /// Whether objects are encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.format.key.is_some()
    }

    /// The pool that it is of.
    #[must_use]
    pub const fn pool(&self) -> PoolId {
        self.format.pool
    }

    /// For messages: where it is.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Tells this replica from all others, in names of files.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.format.replica))
    }

    /// Directory of the notes about this replica, on the meta root of its pool.
    #[must_use]
    pub fn notes_directory(&self) -> String {
        format!("{NOTES_DIRECTORY}/{}", self.name())
    }

    /// Reads an object; `None` if it is absent.
    pub(crate) fn read(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match self.objects.read(key, None, &mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(ObjectError::Absent { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    entropy::fill(&mut bytes)
        .map_err(|error| ReplicaError::Usage(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}

fn format_key() -> Result<Key> {
    Ok(Key::new(FORMAT_KEY)?)
}

fn read_format(store: &dyn Objects) -> Result<Option<Format>> {
    let mut bytes = Vec::new();
    match store.read(&format_key()?, Some(0..8192), &mut bytes) {
        Ok(()) => Ok(Some(Format::decode(&bytes).map_err(ReplicaError::of_bytes)?)),
        Err(ObjectError::Absent { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
