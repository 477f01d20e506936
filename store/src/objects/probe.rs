//! Finds out whether a store keeps to the contract of [`Objects`].
//!
//! Stores that speak the same protocol differ where it matters: some let two writers create one object. A copy of a pool in such a
//! store could lose a commit, so the store is refused before anything is written there.

use std::ops::Range;

use dedupfs_sync::clock;
use dedupfs_sync::thread::{Builder, scope};

use super::{Class, Created, Key, ObjectError, Objects, Removed, Result};

/// Difference of the clocks, in seconds, from which on leases and grace periods may be misjudged.
const SKEW_SECS_MAX: u64 = 300;
/// Objects of the probe of listings.
const LISTED: u64 = 5;

/// Extent of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Writers that create one object at the same time.
    pub writers: u64,
    /// How often they do.
    pub rounds: u64,
    /// Length in bytes of the longest object.
    pub long_bytes: usize,
}

impl Default for Extent {
    fn default() -> Self {
        Self { writers: 16, rounds: 40, long_bytes: 8 << 20 }
    }
}

/// How a store kept a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As promised.
    Kept,
    /// Not as promised, and the store can be used all the same: the reason says what to heed.
    Noted(String),
    /// Not as promised: the store cannot be used.
    Broken(String),
}

/// A promise of the contract, with the verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The promise in words.
    pub promise: &'static str,
    /// The verdict.
    pub verdict: Verdict,
}

type Probe = fn(&Prober<'_>) -> Result<Verdict>;

/// All promises, in the order in which they are probed.
const PROMISES: [(&str, Probe); 7] = [
    ("an object is read back, whole and in parts", |prober| prober.read_back()),
    ("an object that exists is not overwritten", |prober| prober.no_overwriting()),
    ("of several writers of one object, one succeeds", |prober| prober.one_writer()),
    ("a created object is seen at once", |prober| prober.seen_at_once()),
    ("a removed object is gone at once, and its key is free", |prober| prober.gone_at_once()),
    ("a listing has all objects, in order", |prober| prober.listed()),
    ("the store's clock is right, if it tells the time", |prober| prober.clock()),
];

/// Probes each promise with objects below `prefix`, which no object has yet, and removes them.
///
/// # Errors
/// The store is out of reach or does not allow an operation; nothing is found out then.
pub fn probe(objects: &dyn Objects, prefix: &str, extent: Extent) -> Result<Vec<Finding>> {
    let prober = Prober { objects, prefix, extent };
    let find = |(promise, probe): (&'static str, Probe)| {
        let verdict = match probe(&prober) {
            Err(error @ (ObjectError::Unreachable { .. } | ObjectError::Refused { .. } | ObjectError::Full { .. })) => {
                return Err(error);
            }
            Err(error) => Verdict::Broken(error.to_string()),
            Ok(verdict) => verdict,
        };
        Ok(Finding { promise, verdict })
    };
    let findings = PROMISES.into_iter().map(find).collect();
    prober.tidy();
    findings
}

struct Prober<'a> {
    objects: &'a dyn Objects,
    prefix: &'a str,
    extent: Extent,
}

impl Prober<'_> {
    fn key(&self, name: &str) -> Result<Key> {
        Key::new(format!("{}/{name}", self.prefix))
    }

    fn create(&self, key: &Key, body: &[u8]) -> Result<Created> {
        self.objects.create(key, &[body], Class::Metadata)
    }

    /// Reads an object; `None` if it is absent.
    fn read(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let mut body = Vec::new();
        match self.objects.read(key, None, &mut body) {
            Ok(()) => Ok(Some(body)),
            Err(ObjectError::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_back(&self) -> Result<Verdict> {
        for (name, len) in [("empty", 0), ("short", 1000), ("long", self.extent.long_bytes)] {
            let (key, body) = (self.key(name)?, content(name, len));
            let (head, tail) = body.split_at(len / 3);
            if self.objects.head(&key)?.is_some() {
                return broken(format!("{key} was there before it was created"));
            }
            self.objects.create(&key, &[head, &[], tail], Class::Content)?;
            if self.objects.head(&key)?.map(|head| head.len_bytes) != Some(len as u64) {
                return broken(format!("{key} has another length than it was created with"));
            }
            let len = len as u64;
            let (third, half) = (len / 3, len / 2);
            let ranges =
                [None, Some(0..len), Some(half..len), Some(third..half), Some(half..len + 9), Some(len + 1..len + 2)];
            for range in ranges {
                let Range { start, end } = super::within(range.clone(), len);
                let expected = body.get(start as usize..end as usize);
                let mut found = b"before".to_vec();
                self.objects.read(&key, range.clone(), &mut found)?;
                if found.strip_prefix(b"before") != expected {
                    return broken(format!("bytes {range:?} of {key} are not those that were created"));
                }
            }
        }
        Ok(Verdict::Kept)
    }

    fn no_overwriting(&self) -> Result<Verdict> {
        let key = self.key("once")?;
        self.create(&key, b"first")?;
        if self.create(&key, b"first")? != Created::Same {
            return broken(format!("{key} was created twice"));
        }
        for other in [&b"other"[..], b"longer than the first", b""] {
            match self.create(&key, other) {
                Err(ObjectError::Foreign { .. }) => {}
                Err(error) => return Err(error),
                Ok(created) => return broken(format!("other bytes for {key} were answered with {created:?}")),
            }
        }
        if self.read(&key)?.as_deref() != Some(b"first") {
            return broken(format!("{key} was overwritten"));
        }
        Ok(Verdict::Kept)
    }

    fn one_writer(&self) -> Result<Verdict> {
        let mut bad_rounds = 0;
        for round in 0..self.extent.rounds {
            let key = self.key(&format!("raced-{round}"))?;
            let (succeeded, winner) = self.race(&key)?;
            let kept = self.read(&key)?;
            bad_rounds += u64::from(succeeded != 1 || kept != winner);
        }
        if bad_rounds > 0 {
            let Extent { writers, rounds, .. } = self.extent;
            return broken(format!(
                "of {writers} writers of one object not exactly one succeeded in {bad_rounds} of {rounds} rounds"
            ));
        }
        Ok(Verdict::Kept)
    }

    /// Lets all writers create one object. Returns how many succeeded, and the bytes of one of these.
    fn race(&self, key: &Key) -> Result<(u64, Option<Vec<u8>>)> {
        let write = |writer: u64| {
            let body = content(&format!("writer {writer}"), 1000);
            match self.create(key, &body) {
                // Each writer has bytes of its own: it is the same if the acknowledgement was lost.
                Ok(Created::New | Created::Same) => Ok(Some(body)),
                Err(ObjectError::Foreign { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let write = &write;
        let outcomes = scope(|scope| {
            let start = |writer| Builder::new().spawn_scoped(scope, move || write(writer));
            let writers: Vec<_> = (0..self.extent.writers).map(start).collect();
            writers.into_iter().map(|writer| writer.map(|writer| writer.join())).collect::<Vec<_>>()
        });
        let (mut succeeded, mut winner) = (0, None);
        for outcome in outcomes {
            let failed =
                |reason: String| ObjectError::Unreachable { operation: "create", key: key.to_string(), reason };
            let outcome = outcome.map_err(|error| failed(error.to_string()))?;
            if let Some(body) = outcome.map_err(|_| failed("a thread of the probe failed".to_owned()))?? {
                succeeded += 1;
                winner = Some(body);
            }
        }
        Ok((succeeded, winner))
    }

    fn seen_at_once(&self) -> Result<Verdict> {
        for number in 0..self.extent.rounds {
            let (key, body) = (self.key(&format!("seen-{number}"))?, content("seen", 100));
            // A store that remembers absence would answer from that.
            if self.objects.head(&key)?.is_some() || self.read(&key)?.is_some() {
                return broken(format!("{key} was there before it was created"));
            }
            self.create(&key, &body)?;
            if self.objects.head(&key)?.is_none() || self.read(&key)?.as_ref() != Some(&body) {
                return broken(format!("{key} was not there when it had been created"));
            }
        }
        Ok(Verdict::Kept)
    }

    fn gone_at_once(&self) -> Result<Verdict> {
        let key = self.key("gone")?;
        self.create(&key, b"first")?;
        let noted = |why: &str| Ok(Verdict::Noted(why.to_owned()));
        match self.objects.remove(&key) {
            Ok(Removed::Gone) => {}
            Ok(Removed::Retained) => return noted("the store keeps objects for some time, whoever removes them"),
            Err(ObjectError::Refused { .. }) => return noted("whoever has these credentials may not remove objects"),
            Err(error) => return Err(error),
        }
        if self.objects.remove(&key)? != Removed::Gone {
            return broken(format!("{key} cannot be removed once more"));
        }
        if self.objects.head(&key)?.is_some() || self.read(&key)?.is_some() {
            return broken(format!("{key} was there when it had been removed"));
        }
        match self.create(&key, b"second") {
            Ok(_) if self.read(&key)?.as_deref() == Some(b"second") => {}
            Ok(_) | Err(ObjectError::Foreign { .. }) => return broken(format!("{key} could not be created again")),
            Err(error) => return Err(error),
        }
        Ok(Verdict::Kept)
    }

    fn listed(&self) -> Result<Verdict> {
        let keys = (0..LISTED).map(|number| self.key(&format!("listed/{number}"))).collect::<Result<Vec<Key>>>()?;
        // Not in order.
        for key in keys.iter().rev() {
            self.create(key, b"body")?;
        }
        let prefix = format!("{}/listed/", self.prefix);
        for (after, expected) in
            [(None, keys.as_slice()), (keys.first(), keys.get(1..).unwrap_or_default()), (keys.last(), &[])]
        {
            let mut found = Vec::new();
            self.objects.list(&prefix, after, &mut |key, _| {
                found.push(key);
                Ok(())
            })?;
            if found != expected {
                return Ok(Verdict::Noted(format!("a listing behind {after:?} had {found:?}, not {expected:?}")));
            }
        }
        Ok(Verdict::Kept)
    }

    fn clock(&self) -> Result<Verdict> {
        let key = self.key("clock")?;
        self.create(&key, b"now")?;
        let now_secs = clock::since_epoch().as_secs();
        let Some(written_secs) = self.objects.head(&key)?.and_then(|head| head.written_secs) else {
            return Ok(Verdict::Kept);
        };
        let skew_secs = now_secs.abs_diff(written_secs);
        if skew_secs > SKEW_SECS_MAX {
            return Ok(Verdict::Noted(format!("the clocks of the store and of this machine differ by {skew_secs} s")));
        }
        Ok(Verdict::Kept)
    }

    /// Removes all objects of the probe, as far as the store lets it.
    fn tidy(&self) {
        let mut keys = Vec::new();
        let listed = self.objects.list(&format!("{}/", self.prefix), None, &mut |key, _| {
            keys.push(key);
            Ok(())
        });
        let removed = listed.and_then(|()| keys.iter().try_for_each(|key| self.objects.remove(key).map(drop)));
        if let Err(error) = removed {
            tracing::warn!(%error, prefix = self.prefix, "objects of the check are left in the store");
        }
    }
}

fn broken(why: String) -> Result<Verdict> {
    Ok(Verdict::Broken(why))
}

/// Bytes that differ by name and from block to block.
fn content(name: &str, len: usize) -> Vec<u8> {
    let blocks = (0..len.div_ceil(8) as u64)
        .flat_map(|block| crate::codec::checksum_seeded(name.as_bytes(), block).to_le_bytes());
    blocks.take(len).collect()
}
