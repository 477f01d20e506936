//! Encryption of objects.
//!
//! An object is cut into slices of 64 KiB. Each is encrypted by itself (AES-256-GCM): a nonce, the encrypted bytes, a tag. The cipher key is
//! that of the object, made of the store's [`Secret`] and the object's name. The nonce is the random number of the creation and the number of the
//! slice; the tag also covers the name, and whether the slice is the last one. So no slice can be moved, repeated, cut off, or put into
//! another object or another creation of the same one. There is no header: a range is read in one request, and in one more if it begins
//! behind the object, which the last slice proves.
//!
//! Few creations have one cipher key (attempts to create one object), so their 64 random bits do not meet. Lengths and names of objects are
//! not hidden. `docs/format.md` has the bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use dedupfs_store::objects::{Class, Created, Head, Key, OBJECT_BYTES_MAX, ObjectError, Objects, Removed, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Bytes of an object in one slice.
const SLICE_BYTES: usize = 64 << 10;
/// Random bytes of a creation, the first ones of each nonce.
const CREATION_BYTES: usize = NONCE_LEN - 4;
/// Bytes that encryption adds to a slice.
const ADDED_BYTES: usize = NONCE_LEN + MAX_TAG_LEN;
const ENCRYPTED_BYTES: usize = SLICE_BYTES + ADDED_BYTES;
/// Longest object before it is encrypted.
const PLAIN_BYTES_MAX: u64 = OBJECT_BYTES_MAX / ENCRYPTED_BYTES as u64 * SLICE_BYTES as u64;
/// Keeps these cipher keys apart from others that are made of the same secret.
const PURPOSE: &[u8] = b"dedupfs encrypted object 1";

/// Keeps the keys of names apart from those.
const NAMES: &[u8] = b"dedupfs names of objects 1";

type Creation = [u8; CREATION_BYTES];

/// The secret of a store, of which the cipher keys of its objects are made.
#[derive(Clone)]
pub struct Secret {
    secret: Prk,
    names: Prk,
}

impl Secret {
    /// Uses 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let of = |purpose| Salt::new(HKDF_SHA256, purpose).extract(secret);
        Self { secret: of(PURPOSE), names: of(NAMES) }
    }

    /// Tells secrets apart, and gives nothing of them away.
    pub(crate) fn id(&self) -> Result<[u8; 16]> {
        let [id, _] = self.derived(b"id")?;
        Ok(id)
    }

    /// Keys the hashes in names of objects.
    pub(crate) fn name_key(&self) -> Result<[u8; 32]> {
        let [one, other] = self.derived(b"names")?;
        let mut key = [0; 32];
        key.iter_mut().zip(one.into_iter().chain(other)).for_each(|(to, from)| *to = from);
        Ok(key)
    }

    fn derived(&self, what: &[u8]) -> Result<[[u8; 16]; 2]> {
        let mut bytes = [[0; 16]; 2];
        let filled = self.names.expand(&[what], HKDF_SHA256).and_then(|key| key.fill(bytes.as_flattened_mut()));
        let failed = |_| ObjectError::Refused {
            operation: "encrypt",
            key: "format".to_owned(),
            reason: "the key cannot be made".to_owned(),
        };
        filled.map_err(failed)?;
        Ok(bytes)
    }

    /// The cipher key of one object.
    fn cipher_of(&self, key: &Key) -> Result<LessSafeKey> {
        let info = [key.as_str().as_bytes()];
        let cipher = self.secret.expand(&info, &AES_256_GCM).map(|bytes| LessSafeKey::new(UnboundKey::from(bytes)));
        cipher.map_err(|_| refused("encrypt", key, "the cipher key cannot be made"))
    }
}

impl fmt::Debug for Secret {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A store whose objects are encrypted.
#[derive(Debug)]
pub struct EncryptedObjects {
    inner: Arc<dyn Objects>,
    secret: Secret,
    random: SystemRandom,
}

/// Slices that follow each other, decrypted.
struct Opened {
    creation: Option<Creation>,
    has_last: bool,
}

impl EncryptedObjects {
    /// Encrypts objects that are created in `inner`, and decrypts those that are read.
    pub fn new(inner: Arc<dyn Objects>, secret: Secret) -> Self {
        Self { inner, secret, random: SystemRandom::new() }
    }

    fn encrypt(&self, key: &Key, body: &[&[u8]]) -> Result<Vec<u8>> {
        let len_bytes: usize = body.iter().map(|part| part.len()).sum();
        if len_bytes as u64 > PLAIN_BYTES_MAX {
            let reason = format!("it has {len_bytes} bytes, and an encrypted object has at most {PLAIN_BYTES_MAX}");
            return Err(refused("create", key, &reason));
        }
        let cipher = self.secret.cipher_of(key)?;
        let mut creation = Creation::default();
        self.random.fill(&mut creation).map_err(|_| refused("create", key, "the system gives no random bytes"))?;
        let count = len_bytes.div_ceil(SLICE_BYTES).max(1);
        let mut encrypted = Vec::with_capacity(len_bytes + count * ADDED_BYTES);
        let mut bytes = body.iter().copied().flatten().copied();
        for number in 0..count {
            let nonce = nonce(&creation, number);
            encrypted.extend(nonce);
            let start = encrypted.len();
            encrypted.extend(bytes.by_ref().take(SLICE_BYTES));
            let aad = Aad::from(about(key, number + 1 == count));
            let slice = encrypted.get_mut(start..).unwrap_or_default();
            let tag = cipher.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, slice);
            encrypted.extend(tag.map_err(|_| refused("create", key, "it cannot be encrypted"))?.as_ref());
        }
        Ok(encrypted)
    }

    /// Decrypts slices of one creation from `first` on and appends their content.
    fn decrypt(&self, key: &Key, first: usize, encrypted: &mut [u8], into: &mut Vec<u8>) -> Result<Opened> {
        let cipher = self.secret.cipher_of(key)?;
        let open = |nonce, is_last, bytes: &mut [u8]| {
            let aad = Aad::from(about(key, is_last));
            cipher.open_in_place(Nonce::assume_unique_for_key(nonce), aad, bytes).map(|plain| plain.len()).ok()
        };
        let count = encrypted.len().div_ceil(ENCRYPTED_BYTES);
        let mut opened = Opened { creation: None, has_last: false };
        for (position, slice) in encrypted.chunks_mut(ENCRYPTED_BYTES).enumerate() {
            let number = first + position;
            let Some((found, bytes)) = slice.split_first_chunk_mut::<NONCE_LEN>() else {
                return Err(damaged(key, number, "less than a slice"));
            };
            let (creation, _) = found.split_first_chunk().map_or_else(Default::default, |(head, rest)| (*head, rest));
            if *found != nonce(opened.creation.get_or_insert(creation), number) {
                return Err(damaged(key, number, "a slice of another place or another creation"));
            }
            // Only the tag tells whether the object ends here, and decrypting that fails destroys the bytes.
            let mut again = if position + 1 == count { bytes.to_vec() } else { Vec::new() };
            let (plain, len) = match open(*found, false, bytes) {
                Some(len) => (&*bytes, len),
                None => {
                    opened.has_last = true;
                    let len = open(*found, true, &mut again);
                    (again.as_slice(), len.ok_or_else(|| damaged(key, number, "another one, or one of another key"))?)
                }
            };
            into.extend_from_slice(plain.get(..len).unwrap_or_default());
        }
        Ok(opened)
    }

    /// Makes sure that an object ends before the slice `behind`, because that was not there.
    fn check_end(&self, key: &Key, behind: usize) -> Result<()> {
        let head = self.inner.head(key)?.ok_or_else(|| ObjectError::Absent { key: key.clone() })?;
        let slice_bytes = ENCRYPTED_BYTES as u64;
        let last = head.len_bytes.div_ceil(slice_bytes).saturating_sub(1);
        let mut encrypted = Vec::new();
        self.inner.read(key, Some(last * slice_bytes..(last + 1) * slice_bytes), &mut encrypted)?;
        let opened = self.decrypt(key, last as usize, &mut encrypted, &mut Vec::new())?;
        if opened.has_last && (last as usize) < behind { Ok(()) } else { Err(damaged(key, behind, "nothing")) }
    }
}

fn nonce(creation: &Creation, number: usize) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    let (head, rest) = nonce.split_at_mut(CREATION_BYTES);
    head.copy_from_slice(creation);
    rest.copy_from_slice(&(number as u32).to_le_bytes()); // An object has some thousand slices at most.
    nonce
}

/// The bytes that the tag of a slice covers besides its nonce and content.
fn about(key: &Key, is_last: bool) -> Vec<u8> {
    let mut about = key.as_str().as_bytes().to_vec();
    about.extend([0, u8::from(is_last)]);
    about
}

fn refused(operation: &'static str, key: &Key, reason: &str) -> ObjectError {
    ObjectError::Refused { operation, key: key.to_string(), reason: reason.to_owned() }
}

fn damaged(key: &Key, number: usize, found: &str) -> ObjectError {
    let expected = format!("slice {number} as it was encrypted");
    ObjectError::Damaged { key: key.clone(), expected, found: found.to_owned() }
}

/// Length of an object before it was encrypted.
fn plain_bytes(encrypted_bytes: u64) -> u64 {
    encrypted_bytes.saturating_sub(encrypted_bytes.div_ceil(ENCRYPTED_BYTES as u64) * ADDED_BYTES as u64)
}

impl Objects for EncryptedObjects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let encrypted = self.encrypt(key, body)?;
        match self.inner.create(key, &[&encrypted], class) {
            // Encrypted once more, equal content differs.
            Err(ObjectError::Foreign { .. }) => {
                let foreign = || Err(ObjectError::Foreign { key: key.clone() });
                let mut found = Vec::new();
                match self.read(key, None, &mut found) {
                    Ok(()) if found == body.concat() => Ok(Created::Same),
                    Ok(()) | Err(ObjectError::Damaged { .. }) => foreign(),
                    Err(error) => Err(error),
                }
            }
            outcome => outcome,
        }
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let slice = SLICE_BYTES as u64;
        let first = range.as_ref().map_or(0, |range| range.start / slice);
        // An object is shorter than this, so nothing overflows.
        let end = range.as_ref().map_or(OBJECT_BYTES_MAX, |range| range.end.min(OBJECT_BYTES_MAX));
        if first > OBJECT_BYTES_MAX || range.as_ref().is_some_and(|range| range.start >= end) {
            let is_there = self.inner.head(key)?.is_some();
            return if is_there { Ok(()) } else { Err(ObjectError::Absent { key: key.clone() }) };
        }
        let behind = end.div_ceil(slice);
        let encrypted_range = range.as_ref().map(|_| first * ENCRYPTED_BYTES as u64..behind * ENCRYPTED_BYTES as u64);
        let mut encrypted = Vec::new();
        self.inner.read(key, encrypted_range, &mut encrypted)?;
        let count = encrypted.len().div_ceil(ENCRYPTED_BYTES);
        if count == 0 && first > 0 {
            return self.check_end(key, first as usize);
        }
        let asked = range.as_ref().map(|_| (behind - first) as usize);
        let mut plain = Vec::new();
        let opened = self.decrypt(key, first as usize, &mut encrypted, &mut plain)?;
        // Bytes are missing, unless the object ends there.
        if asked.is_none_or(|asked| count < asked) && !opened.has_last {
            return Err(damaged(key, first as usize + count, "nothing"));
        }
        let start = range.map_or(0, |range| range.start) - first * slice;
        let end = (end - first * slice).min(plain.len() as u64);
        into.extend_from_slice(plain.get(start as usize..end as usize).unwrap_or_default());
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        let head = self.inner.head(key)?;
        Ok(head.map(|head| Head { len_bytes: plain_bytes(head.len_bytes), ..head }))
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        self.inner.remove(key)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        self.inner
            .list(prefix, after, &mut |key, head| visit(key, Head { len_bytes: plain_bytes(head.len_bytes), ..head }))
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
#[path = "encrypted_tests.rs"]
mod tests;
