//! Disks whose checkpoints are snapshots, which their store keeps and compares.
//!
//! 1. `begin` makes the snapshot `dedupfs-DISK-TOKEN`.
//! 2. `points`: it is read. If the snapshot of the newest version is there, the store tells their differences.
//! 3. `end`: if the version is durable the older snapshots go, else the new one.
//!
//! A crash leaves the snapshot of the newest version, and perhaps others: the next `prepare` removes them.

use std::fs::File;

use tempfile::NamedTempFile;

use super::names::{OURS, checksum, new_token};
use super::{Driver, Point, Verdict};

/// A store of one disk and its snapshots. Every error is in words.
pub(super) trait Store: Send {
    /// Name of the image in its versions.
    fn file_name(&self) -> &str;

    /// Returns the names of all snapshots of the disk, and checks that it can have some.
    fn list(&mut self, gives_up: &dyn Fn() -> bool) -> Result<Vec<String>, String>;

    /// Makes a snapshot.
    fn make(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String>;

    /// Removes one that is not open.
    fn remove(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String>;

    /// Writes a map of the differences of two snapshots, as `dedupfs put --changed` takes it.
    fn compare(&mut self, from: &str, to: &str, map: File, gives_up: &dyn Fn() -> bool) -> Result<(), String>;

    /// Makes one readable, and returns its path or address.
    fn open(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<String, String>;

    /// Ends reading.
    fn close(&mut self);
}

/// The driver of such a disk.
pub(super) struct Snapshots<S> {
    store: S,
    /// Beginning of the names of its snapshots.
    own: String,
    begun: Option<Begun>,
}

/// The snapshot of this backup.
struct Begun {
    name: String,
    /// Snapshots that end when its version is durable.
    older: Vec<String>,
    /// The newest version's token.
    last: Option<String>,
    /// Removed in the end.
    _map: Option<NamedTempFile>,
}

impl<S: Store> Snapshots<S> {
    /// A disk in a store. The identity tells it apart from the same disk in other plans and pools.
    pub(super) fn new(store: S, identity: &str) -> Self {
        Self { store, own: format!("{OURS}{:016x}-", checksum(identity.as_bytes())), begun: None }
    }

    /// Opens the new snapshot, and compares it with that of the newest version.
    fn point(&mut self, begun: &mut Begun, gives_up: &dyn Fn() -> bool) -> Result<Point, String> {
        let source = self.store.open(&begun.name, gives_up)?;
        let token = begun.name.strip_prefix(&self.own).map(str::to_owned);
        let file_name = Some(self.store.file_name().to_owned());
        let point = Point { source, token, file_name, ..Point::default() };
        let Some(last) = &begun.last else { return Ok(point) };
        let base = format!("{}{last}", self.own);
        if !begun.older.contains(&base) {
            let without_map = Some(format!("there is no snapshot {base}: it was removed, or the disk replaced"));
            return Ok(Point { without_map, ..point });
        }
        let map = NamedTempFile::new().and_then(|map| Ok((map.reopen()?, map)));
        let (file, map) = map.map_err(|error| format!("cannot make a file for the map: {error}"))?;
        match self.store.compare(&base, &begun.name, file, gives_up) {
            Ok(()) => {
                let path = map.path().display().to_string();
                begun._map = Some(map);
                Ok(Point { map: Some(path), token_from: Some(last.clone()), ..point })
            }
            Err(why) if gives_up() => Err(why),
            Err(why) => Ok(Point { without_map: Some(why), ..point }),
        }
    }
}

impl<S: Store> Driver for Snapshots<S> {
    fn prepare(&mut self, last: &[Option<String>], gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let last = last.first().cloned().flatten();
        let mut older = self.store.list(gives_up)?;
        older.retain(|name| name.starts_with(&self.own));
        // Without a token nobody knows which one a version has: all stay until there is a new one.
        let base = last.as_ref().map(|last| format!("{}{last}", self.own));
        if let Some(base) = base.filter(|base| older.contains(base)) {
            // One that somebody uses is tried again at the end, which tells.
            older.retain(|name| *name == base || self.store.remove(name, gives_up).is_err());
        }
        self.begun = Some(Begun { name: format!("{}{}", self.own, new_token()?), older, last, _map: None });
        Ok(())
    }

    fn begin(&mut self, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let begun = self.begun.as_ref().ok_or("it is not prepared")?;
        self.store.make(&begun.name, gives_up)
    }

    fn points(&mut self, gives_up: &dyn Fn() -> bool) -> Result<Vec<Point>, String> {
        let mut begun = self.begun.take().ok_or("it was not begun")?;
        let point = self.point(&mut begun, gives_up);
        self.begun = Some(begun);
        point.map(|point| vec![point])
    }

    fn end(&mut self, _disk: usize, verdict: Verdict) -> Result<(), String> {
        let Some(Begun { name, older, .. }) = self.begun.take() else { return Err("it was not begun".to_owned()) };
        self.store.close();
        let ended = if verdict == Verdict::Stored { older } else { vec![name] };
        // All are tried.
        ended.iter().map(|name| self.store.remove(name, &|| false)).fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Names of snapshots, and what fails.
    #[derive(Clone, Default)]
    struct Names {
        all: Arc<Mutex<Vec<String>>>,
        fails: &'static str,
    }

    impl Names {
        fn may(&self, what: &str) -> Result<(), String> {
            if self.fails == what { Err(format!("{what} fails")) } else { Ok(()) }
        }

        fn all(&self) -> Vec<String> {
            self.all.lock().expect("is whole").clone()
        }
    }

    impl Store for Names {
        fn file_name(&self) -> &'static str {
            "vm"
        }

        fn list(&mut self, _gives_up: &dyn Fn() -> bool) -> Result<Vec<String>, String> {
            self.may("list").map(|()| self.all())
        }

        fn make(&mut self, name: &str, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
            self.may("make")?;
            self.all.lock().expect("is whole").push(name.to_owned());
            Ok(())
        }

        fn remove(&mut self, name: &str, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
            self.may("remove")?;
            self.all.lock().expect("is whole").retain(|other| other != name);
            Ok(())
        }

        fn compare(&mut self, from: &str, to: &str, mut map: File, _gives_up: &dyn Fn() -> bool) -> Result<(), String> {
            self.may("compare")?;
            write!(map, "{from} {to}").map_err(|error| error.to_string())
        }

        fn open(&mut self, name: &str, _gives_up: &dyn Fn() -> bool) -> Result<String, String> {
            self.may("open").map(|()| format!("/{name}"))
        }

        fn close(&mut self) {}
    }

    fn never() -> bool {
        false
    }

    fn begin(
        names: &Names,
        identity: &str,
        last: Option<&str>,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<(Snapshots<Names>, Point), String> {
        let mut driver = Snapshots::new(names.clone(), identity);
        let prepared = driver.prepare(&[last.map(str::to_owned)], gives_up);
        let points = prepared.and_then(|()| driver.begin(gives_up)).and_then(|()| driver.points(gives_up));
        if points.is_err() {
            let _ = driver.end(0, Verdict::Failed);
        }
        Ok((driver, points?.remove(0)))
    }

    /// One backup.
    fn back_up(names: &Names, last: Option<&str>, verdict: Verdict) -> Point {
        let (mut driver, point) = begin(names, "/mnt/vm", last, &never).expect("begins");
        driver.end(0, verdict).expect("ends");
        point
    }

    #[test]
    fn a_snapshot_stays_until_the_next_version_is_durable() {
        let names = Names::default();
        names.all.lock().expect("is whole").push("of somebody".to_owned());
        let first = back_up(&names, None, Verdict::Stored);
        let token = first.token.clone().expect("has one");
        assert!(first.map.is_none() && first.without_map.is_none(), "{first:?}");
        let one = names.all().get(1).cloned().expect("is there");
        assert_eq!((first.source, first.file_name.as_deref()), (format!("/{one}"), Some("vm")));
        back_up(&names, Some(&token), Verdict::Failed);
        assert_eq!(names.all(), ["of somebody", &one]);

        let (driver, point) = begin(&names, "/mnt/vm", Some(&token), &never).expect("begins");
        let path = point.map.expect("has a map");
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), format!("{one} {}", &point.source[1..]));
        assert_eq!(point.token_from, Some(token.clone()));
        assert_eq!(names.all().len(), 3);
        // Killed here: the version was not durable, or it was.
        drop(driver);
        assert!(!std::path::Path::new(&path).exists());
        let durable = point.token.expect("has one");
        let again = back_up(&names, Some(&durable), Verdict::Failed);
        assert_eq!(again.token_from.as_deref(), Some(durable.as_str()));
        assert_eq!(names.all(), ["of somebody".to_owned(), point.source[1..].to_owned()]);
        // Other plans have snapshots of their own.
        let (mut other, point) = begin(&names, "/mnt/other", Some(&durable), &never).expect("begins");
        assert!(point.map.is_none() && point.without_map.is_some_and(|why| why.contains("no snapshot")));
        other.end(0, Verdict::Failed).expect("ends");
        assert_eq!(names.all().len(), 2);
    }

    #[test]
    fn without_a_known_token_snapshots_stay_until_there_is_a_new_version() {
        let names = Names::default();
        let token = back_up(&names, None, Verdict::Stored).token.expect("has one");
        back_up(&names, None, Verdict::Failed);
        assert_eq!(back_up(&names, Some(&token), Verdict::Failed).token_from, Some(token), "it is there still");
        back_up(&names, None, Verdict::Stored);
        assert_eq!(names.all().len(), 1);
    }

    #[test]
    fn what_fails_leaves_nothing_and_a_comparison_that_fails_leads_to_a_full_reading() {
        let names = Names::default();
        let token = back_up(&names, None, Verdict::Stored).token.expect("has one");
        for fails in ["list", "make", "open"] {
            let names = Names { fails, ..names.clone() };
            let error = begin(&names, "/mnt/vm", Some(&token), &never).map(drop);
            assert_eq!(error.expect_err(fails), format!("{fails} fails"));
            assert_eq!(names.all().len(), 1, "{fails}");
        }
        let broken = Names { fails: "compare", ..names.clone() };
        let point = back_up(&broken, Some(&token), Verdict::Failed);
        assert_eq!(point.without_map.as_deref(), Some("compare fails"));
        // Given up meanwhile, it is no reason to read everything.
        let error = begin(&broken, "/mnt/vm", Some(&token), &|| true).map(drop);
        assert_eq!(error.expect_err("is given up"), "compare fails");
        let stuck = Names { fails: "remove", ..names.clone() };
        let (mut driver, _) = begin(&stuck, "/mnt/vm", Some(&token), &never).expect("begins");
        assert_eq!(driver.end(0, Verdict::Stored), Err("remove fails".to_owned()), "somebody must look at it");
        assert_eq!(names.all().len(), 2);
        // One that cannot be removed does not stop the next backup.
        let (mut driver, point) = begin(&stuck, "/mnt/vm", Some(&token), &never).expect("begins");
        assert!(point.map.is_some() && driver.end(0, Verdict::Failed).is_err(), "{point:?}");
    }
}
