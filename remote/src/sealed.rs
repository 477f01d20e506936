//! Encryption of objects.
//!
//! An object is cut into segments of 64 KiB. Each is sealed by itself (AES-256-GCM): a random nonce, the encrypted bytes, a tag. The key is
//! that of the object, made of the store's [`SealKey`] and the object's name. The tag covers name, number and whether the segment is the
//! last one, so no segment can be moved, repeated, cut off or put into another object. There is no header: a range is read in one request.
//!
//! The number of segments with one key is small (an object's, for each attempt to create it), so random nonces do not meet. Lengths and
//! names of objects are not hidden. `docs/format.md` has the bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use dedupfs_store::objects::{Class, Created, Head, Key, OBJECT_BYTES_MAX, ObjectError, Objects, Removed, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Bytes of an object in one segment.
const SEGMENT_BYTES: usize = 64 << 10;
/// Bytes that sealing adds to a segment.
const SEAL_BYTES: usize = NONCE_LEN + MAX_TAG_LEN;
const SEALED_BYTES: usize = SEGMENT_BYTES + SEAL_BYTES;
/// Longest object before it is sealed.
const PLAIN_BYTES_MAX: u64 = OBJECT_BYTES_MAX / SEALED_BYTES as u64 * SEGMENT_BYTES as u64;
/// Keeps these keys apart from others that are made of the same secret.
const PURPOSE: &[u8] = b"dedupfs sealed object 1";

/// The secret that seals the objects of a store.
pub struct SealKey {
    secret: Prk,
}

impl SealKey {
    /// Uses 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self { secret: Salt::new(HKDF_SHA256, PURPOSE).extract(secret) }
    }

    /// The key of one object.
    fn of(&self, key: &Key) -> Result<LessSafeKey> {
        let info = [key.as_str().as_bytes()];
        let sealing = self.secret.expand(&info, &AES_256_GCM).map(|bytes| LessSafeKey::new(UnboundKey::from(bytes)));
        sealing.map_err(|_| refused("seal", key, "the key cannot be made"))
    }
}

impl fmt::Debug for SealKey {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// A store whose objects are sealed.
#[derive(Debug)]
pub struct SealedObjects {
    inner: Arc<dyn Objects>,
    key: SealKey,
    random: SystemRandom,
}

impl SealedObjects {
    /// Seals what is created in `inner`, and opens what is read.
    pub fn new(inner: Arc<dyn Objects>, key: SealKey) -> Self {
        Self { inner, key, random: SystemRandom::new() }
    }

    fn seal(&self, key: &Key, body: &[&[u8]]) -> Result<Vec<u8>> {
        let len_bytes: usize = body.iter().map(|part| part.len()).sum();
        if len_bytes as u64 > PLAIN_BYTES_MAX {
            return Err(refused(
                "create",
                key,
                &format!("it has {len_bytes} bytes, and a sealed object has at most {PLAIN_BYTES_MAX}"),
            ));
        }
        let sealing = self.key.of(key)?;
        let count = len_bytes.div_ceil(SEGMENT_BYTES).max(1);
        let mut sealed = Vec::with_capacity(len_bytes + count * SEAL_BYTES);
        let mut bytes = body.iter().copied().flatten().copied();
        for number in 0..count {
            let mut nonce = [0; NONCE_LEN];
            self.random.fill(&mut nonce).map_err(|_| refused("create", key, "the system gives no random bytes"))?;
            sealed.extend(nonce);
            let start = sealed.len();
            sealed.extend(bytes.by_ref().take(SEGMENT_BYTES));
            let aad = Aad::from(about(key, number, number + 1 == count));
            let segment = sealed.get_mut(start..).unwrap_or_default();
            let tag = sealing.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, segment);
            sealed.extend(tag.map_err(|_| refused("create", key, "it cannot be sealed"))?.as_ref());
        }
        Ok(sealed)
    }

    /// Opens segments from `first` on and appends their content. Returns whether the last one is that of the object.
    fn open(&self, key: &Key, first: usize, sealed: &mut [u8], into: &mut Vec<u8>) -> Result<bool> {
        let opening = self.key.of(key)?;
        let open = |nonce, number, is_last, bytes: &mut [u8]| {
            let aad = Aad::from(about(key, number, is_last));
            opening.open_in_place(Nonce::assume_unique_for_key(nonce), aad, bytes).map(|plain| plain.len()).ok()
        };
        let count = sealed.len().div_ceil(SEALED_BYTES);
        let mut is_last = false;
        for (position, segment) in sealed.chunks_mut(SEALED_BYTES).enumerate() {
            let number = first + position;
            let Some((nonce, bytes)) = segment.split_first_chunk_mut::<NONCE_LEN>() else {
                return Err(damaged(key, number, "less than a segment"));
            };
            // Only the tag tells whether the object ends here, and opening that fails destroys the bytes.
            let mut again = if position + 1 == count { bytes.to_vec() } else { Vec::new() };
            let (opened, len) = match open(*nonce, number, false, bytes) {
                Some(len) => (&*bytes, len),
                None => {
                    is_last = true;
                    let len = open(*nonce, number, true, &mut again);
                    (again.as_slice(), len.ok_or_else(|| damaged(key, number, "another one, or one of another key"))?)
                }
            };
            into.extend_from_slice(opened.get(..len).unwrap_or_default());
        }
        Ok(is_last)
    }
}

/// What the tag of a segment covers besides its bytes.
fn about(key: &Key, number: usize, is_last: bool) -> Vec<u8> {
    let mut about = key.as_str().as_bytes().to_vec();
    about.push(0);
    about.extend((number as u32).to_le_bytes()); // An object has some thousand segments at most.
    about.push(u8::from(is_last));
    about
}

fn refused(operation: &'static str, key: &Key, reason: &str) -> ObjectError {
    ObjectError::Refused { operation, key: key.to_string(), reason: reason.to_owned() }
}

fn damaged(key: &Key, number: usize, found: &str) -> ObjectError {
    ObjectError::Damaged {
        key: key.clone(),
        expected: format!("segment {number} as it was sealed"),
        found: found.to_owned(),
    }
}

/// Length of an object before it was sealed.
fn plain_bytes(sealed_bytes: u64) -> u64 {
    sealed_bytes.saturating_sub(sealed_bytes.div_ceil(SEALED_BYTES as u64) * SEAL_BYTES as u64)
}

impl Objects for SealedObjects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let sealed = self.seal(key, body)?;
        match self.inner.create(key, &[&sealed], class) {
            // Sealed once more, equal content differs.
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
        let segment = SEGMENT_BYTES as u64;
        let first = range.as_ref().map_or(0, |range| range.start / segment);
        // An object is shorter than this, so nothing overflows.
        let end = range.as_ref().map_or(OBJECT_BYTES_MAX, |range| range.end.min(OBJECT_BYTES_MAX));
        if first > OBJECT_BYTES_MAX || range.as_ref().is_some_and(|range| range.start >= end) {
            let is_there = self.inner.head(key)?.is_some();
            return if is_there { Ok(()) } else { Err(ObjectError::Absent { key: key.clone() }) };
        }
        let behind = end.div_ceil(segment);
        let sealed_range = range.as_ref().map(|_| first * SEALED_BYTES as u64..behind * SEALED_BYTES as u64);
        let mut sealed = Vec::new();
        self.inner.read(key, sealed_range, &mut sealed)?;
        let asked = range.as_ref().map(|_| (behind - first) as usize);
        let count = sealed.len().div_ceil(SEALED_BYTES);
        let mut plain = Vec::new();
        let has_last = self.open(key, first as usize, &mut sealed, &mut plain)?;
        // Bytes are missing, unless the object ends there.
        if asked.is_none_or(|asked| count < asked) && !has_last && (count > 0 || range.is_none()) {
            return Err(damaged(key, first as usize + count, "nothing"));
        }
        let start = range.map_or(0, |range| range.start) - first * segment;
        let end = (end - first * segment).min(plain.len() as u64);
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
#[path = "sealed_tests.rs"]
mod tests;
