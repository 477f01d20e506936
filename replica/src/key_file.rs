//! Key files: the secret of a replica, wrapped by passphrases.
//!
//! A key file is JSON. Each *wrapping* has the secret encrypted with a key that Argon2id makes of one passphrase: any of them opens the file, and a
//! passphrase can be changed without touching the replica. Without a key file, or without any of its passphrases, the replica is lost.

use argon2::{Algorithm, Argon2, Params, Version};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use crate::encrypted::Secret;

/// Memory and passes of Argon2id for new wrappings: about a tenth of a second.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
/// Most memory and passes that are believed.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;
const WRAPPINGS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 100;
/// Longest key file in bytes.
pub(crate) const FILE_BYTES_MAX: usize = 64 << 10;
const SECRET_BYTES: usize = 32;
/// Keeps wrapped secrets apart from other encrypted bytes.
const PURPOSE: &[u8] = b"dedupfs key 1";

/// An error of a key file, with advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say the meaning of each field")]
pub enum KeyFileError {
    /// No wrapping has this passphrase.
    #[error("wrong passphrase: it opens no wrapping of the key file")]
    WrongPassphrase,
    /// Not a key file.
    #[error("this is not a key file of dedupfs, or a damaged one: {why}; use a copy of it")]
    Damaged { why: String },
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The system gives no random bytes, or no memory.
    #[error("the key cannot be made: {0}")]
    System(String),
}

/// A key file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Version of the format.
    dedupfs_key: u16,
    /// Which secret it has, as the replica says it: 32 hexadecimal digits.
    key_id: String,
    wrappings: Vec<Wrapping>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrapping {
    name: String,
    memory_kib: u32,
    passes: u32,
    salt: String,
    wrapped: String,
}

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFile").field("key_id", &self.key_id).field("wrappings", &self.names()).finish()
    }
}

type Result<T> = std::result::Result<T, KeyFileError>;

impl KeyFile {
    /// Makes a new secret, wrapped by a passphrase.
    ///
    /// # Errors
    /// `Usage` for an empty passphrase; the system.
    pub fn new(name: &str, passphrase: &[u8]) -> Result<Self> {
        let bytes: [u8; SECRET_BYTES] = random()?;
        let mut file = Self { dedupfs_key: 1, key_id: id_of(&bytes)?, wrappings: Vec::new() };
        file.wrap(name, passphrase, &bytes)?;
        Ok(file)
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// `Damaged`
    pub fn parse(text: &[u8]) -> Result<Self> {
        let damaged = |why: String| KeyFileError::Damaged { why };
        if text.len() > FILE_BYTES_MAX {
            return Err(damaged(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let file: Self = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        if file.dedupfs_key != 1 {
            let message = format!("the key file has version {}: use the newer dedupfs that wrote it", file.dedupfs_key);
            return Err(KeyFileError::Usage(message));
        }
        if file.wrappings.is_empty() || file.wrappings.len() > WRAPPINGS_MAX {
            return Err(damaged(format!("it has {} wrappings", file.wrappings.len())));
        }
        for wrapping in &file.wrappings {
            let is_bounded = (8..=MEMORY_KIB_MAX).contains(&wrapping.memory_kib)
                && (1..=PASSES_MAX).contains(&wrapping.passes)
                && wrapping.name.len() <= NAME_BYTES_MAX;
            if !is_bounded {
                return Err(damaged("a wrapping asks for too much".to_owned()));
            }
        }
        Ok(file)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn to_text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| KeyFileError::System(error.to_string()))?;
        Ok(text + "\n")
    }

    /// Names of the wrappings.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.wrappings.iter().map(|wrapping| wrapping.name.as_str()).collect()
    }

    /// Which secret it has.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Opens the file.
    ///
    /// # Errors
    /// `WrongPassphrase`, `Damaged`.
    pub fn secret(&self, passphrase: &[u8]) -> Result<Secret> {
        Ok(Secret::new(&self.secret_bytes(passphrase)?))
    }

    /// As [`secret`](Self::secret), for another process of the same command: deriving a key takes long.
    ///
    /// # Errors
    /// As those of [`secret`](Self::secret).
    pub fn secret_bytes(&self, passphrase: &[u8]) -> Result<[u8; 32]> {
        Ok(self.open(passphrase)?.1)
    }

    /// Adds a wrapping by another passphrase.
    ///
    /// # Errors
    /// `WrongPassphrase` for the present one; `Usage` if the name is taken, or the new one is empty.
    pub fn add(&mut self, passphrase: &[u8], name: &str, added: &[u8]) -> Result<()> {
        let (_, bytes) = self.open(passphrase)?;
        if self.names().contains(&name) {
            return Err(KeyFileError::Usage(format!("the key file has a wrapping {name} already: take another name")));
        }
        self.wrap(name, added, &bytes)
    }

    /// Removes a wrapping. The last one stays. It asks for no passphrase: see that the caller has one.
    ///
    /// # Errors
    /// `Usage` if there is no such wrapping, or no other.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let names = self.names().join(", ");
        if !self.names().contains(&name) {
            return Err(KeyFileError::Usage(format!("the key file has no wrapping {name}, but {names}")));
        }
        if self.wrappings.len() == 1 {
            let message = "this is the last wrapping: without it the replica is lost. Add another one first";
            return Err(KeyFileError::Usage(message.to_owned()));
        }
        self.wrappings.retain(|wrapping| wrapping.name != name);
        Ok(())
    }

    /// Puts a new passphrase in the place of the one that opens the file; returns the name of its wrapping.
    ///
    /// # Errors
    /// `WrongPassphrase`; `Usage` if the new one is empty; `Damaged`; the system.
    pub fn rotate(&mut self, passphrase: &[u8], new: &[u8]) -> Result<String> {
        let (position, bytes) = self.open(passphrase)?;
        let name = self.wrappings.get(position).map(|wrapping| wrapping.name.clone()).unwrap_or_default();
        let wrapping = wrapping(&name, new, &bytes)?;
        self.wrappings.get_mut(position).into_iter().for_each(|place| place.clone_from(&wrapping));
        Ok(name)
    }

    fn wrap(&mut self, name: &str, passphrase: &[u8], secret: &[u8; SECRET_BYTES]) -> Result<()> {
        if self.wrappings.len() >= WRAPPINGS_MAX {
            return Err(KeyFileError::Usage(format!(
                "a key file has at most {WRAPPINGS_MAX} wrappings: remove one first"
            )));
        }
        self.wrappings.push(wrapping(name, passphrase, secret)?);
        Ok(())
    }

    /// Returns the place of the wrapping that a passphrase opens, and the secret.
    fn open(&self, passphrase: &[u8]) -> Result<(usize, [u8; SECRET_BYTES])> {
        // A damaged wrapping must not shut the others out.
        let mut failure = KeyFileError::WrongPassphrase;
        for (position, wrapping) in self.wrappings.iter().enumerate() {
            let unwrapped = || {
                let (salt, wrapped) = (unhex(&wrapping.salt)?, unhex(&wrapping.wrapped)?);
                Ok((cipher(passphrase, &salt, wrapping.memory_kib, wrapping.passes)?, wrapped))
            };
            let (cipher, mut wrapped) = match unwrapped() {
                Ok(unwrapped) => unwrapped,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let Some((nonce, sealed)) = wrapped.split_first_chunk_mut::<NONCE_LEN>() else { continue };
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let Ok(opened) = cipher.open_in_place(nonce, Aad::from(PURPOSE), sealed) else { continue };
            let Ok(secret) = <[u8; SECRET_BYTES]>::try_from(&*opened) else { continue };
            if id_of(&secret)? != self.key_id {
                return Err(KeyFileError::Damaged { why: "its secret is another one than it says".to_owned() });
            }
            return Ok((position, secret));
        }
        Err(failure)
    }
}

/// Wraps a secret by a passphrase.
fn wrapping(name: &str, passphrase: &[u8], secret: &[u8; SECRET_BYTES]) -> Result<Wrapping> {
    if passphrase.is_empty() {
        return Err(KeyFileError::Usage("the passphrase is empty".to_owned()));
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(KeyFileError::Usage(format!("a wrapping has a name of 1 to {NAME_BYTES_MAX} bytes")));
    }
    let salt: [u8; 16] = random()?;
    let nonce: [u8; NONCE_LEN] = random()?;
    let cipher = cipher(passphrase, &salt, MEMORY_KIB, PASSES)?;
    let mut sealed = secret.to_vec();
    let tag = cipher.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(PURPOSE), &mut sealed);
    let tag = tag.map_err(|_| KeyFileError::System("it cannot be encrypted".to_owned()))?;
    let wrapped = hex(&[nonce.as_slice(), &sealed, tag.as_ref()].concat());
    Ok(Wrapping { name: name.to_owned(), memory_kib: MEMORY_KIB, passes: PASSES, salt: hex(&salt), wrapped })
}

fn id_of(secret: &[u8; SECRET_BYTES]) -> Result<String> {
    let id = Secret::new(secret).id().map_err(|error| KeyFileError::System(error.to_string()))?;
    Ok(hex(&id))
}

fn cipher(passphrase: &[u8], salt: &[u8], memory_kib: u32, passes: u32) -> Result<LessSafeKey> {
    let system = |error: argon2::Error| KeyFileError::System(error.to_string());
    let params = Params::new(memory_kib, passes, 1, Some(32)).map_err(system)?;
    let mut key = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase, salt, &mut key)
        .map_err(system)?;
    let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|error| KeyFileError::System(error.to_string()))?;
    Ok(LessSafeKey::new(key))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    dedupfs_sync::entropy::fill(&mut bytes).map_err(|error| KeyFileError::System(error.to_string()))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let damaged = || KeyFileError::Damaged { why: "it has something else than hexadecimal digits".to_owned() };
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(damaged());
    }
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(|pair| byte(pair).ok_or_else(damaged)).collect()
}
