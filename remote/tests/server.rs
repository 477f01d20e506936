//! A bucket of a real server over HTTP, through a network that loses, repeats, delays and cuts.
//!
//! The server is moto, which `tools/test.sh` installs. Without it the tests are skipped, unless `DEDUPFS_REQUIRE_MOTO` is set.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Instant;

use dedupfs_remote::{Address, Environment};
use dedupfs_store::objects::probe::{Extent, Verdict, probe};
use dedupfs_store::objects::{Class, Created, Key, ObjectError, Objects, Removed};

use self::moto::Moto;
use self::proxy::{Fault, Proxy};

#[path = "server/moto.rs"]
mod moto;
#[path = "server/proxy.rs"]
mod proxy;

struct Site {
    /// Ends with the site.
    _moto: Moto,
    proxy: Proxy,
    objects: Arc<dyn Objects>,
}

impl Site {
    fn if_moto() -> Option<Self> {
        let moto = Moto::start()?;
        moto.create_bucket("backups");
        let proxy = Proxy::start(moto.port);
        let objects = open(&format!("s3://backups/some/where?endpoint=http://127.0.0.1:{}", proxy.port));
        Some(Self { _moto: moto, proxy, objects })
    }

    fn read(&self, key: &Key) -> Result<Vec<u8>, ObjectError> {
        let mut body = Vec::new();
        self.objects.read(key, None, &mut body).map(|()| body)
    }

    fn listed(&self, prefix: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut note = |key: Key, _| {
            keys.push(key.to_string());
            Ok(())
        };
        self.objects.list(prefix, None, &mut note).unwrap();
        keys
    }
}

fn open(address: &str) -> Arc<dyn Objects> {
    let environment: Environment = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    address.parse::<Address>().unwrap().open_in(&environment).unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn create(objects: &dyn Objects, name: &str, body: &[u8]) -> Result<Created, ObjectError> {
    objects.create(&key(name), &[body], Class::Content)
}

#[test]
fn a_real_server_keeps_the_contract() {
    let Some(site) = Site::if_moto() else { return };
    let extent = Extent { writers: 4, rounds: 5, long_bytes: 3 << 20 };
    for finding in probe(&*site.objects, "probe/1", extent).unwrap() {
        assert_eq!(finding.verdict, Verdict::Kept, "{}", finding.promise);
    }
    assert!(site.listed("").is_empty());
    assert!(site.objects.describe().starts_with("s3://backups/some/where?endpoint="));
}

/// Each kind of request, with each fault on its first attempt, has the outcome that it has without.
#[test]
fn one_fault_of_the_network_changes_no_outcome() {
    let Some(site) = Site::if_moto() else { return };
    let objects = &*site.objects;
    let body = vec![7; 200_000];
    let faults = [
        Fault::RequestLost,
        Fault::RequestCut,
        Fault::AnswerLost,
        Fault::AnswerCut,
        Fault::Twice,
        Fault::Status("503 Slow Down"),
        Fault::Status("500 Internal Server Error"),
        Fault::Status("429 Too Many Requests"),
        Fault::Status("409 Conflict"),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let name = format!("c/{number}");
        let is_conflict = fault == Fault::Status("409 Conflict");
        site.proxy.fail_next(fault);
        let created = create(objects, &name, &body).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        // The first attempt may have created it.
        let may_be_same = matches!(fault, Fault::AnswerLost | Fault::AnswerCut | Fault::Twice);
        assert!(created == Created::New || may_be_same, "{fault:?}: {created:?}");
        // Only creations have conflicts.
        let fail_next = || {
            if !is_conflict {
                site.proxy.fail_next(fault)
            }
        };
        fail_next();
        assert!(matches!(create(objects, &name, b"other"), Err(ObjectError::Foreign { .. })), "{fault:?}");
        fail_next();
        assert_eq!(site.read(&key(&name)).unwrap(), body, "{fault:?}");
        fail_next();
        let mut part = Vec::new();
        objects.read(&key(&name), Some(199_999..300_000), &mut part).unwrap();
        assert_eq!(part, [7], "{fault:?}");
        fail_next();
        assert_eq!(objects.head(&key(&name)).unwrap().unwrap().len_bytes, 200_000, "{fault:?}");
        fail_next();
        assert_eq!(objects.head(&key("absent")).unwrap(), None, "{fault:?}");
        fail_next();
        assert!(matches!(site.read(&key("absent")), Err(ObjectError::Absent { .. })), "{fault:?}");
        fail_next();
        assert_eq!(site.listed("c/"), [name.as_str()], "{fault:?}");
        fail_next();
        assert_eq!(objects.remove(&key(&name)).unwrap(), Removed::Gone, "{fault:?}");
        assert_eq!(site.listed(""), [""; 0], "{fault:?}");
        assert_eq!(site.proxy.failed(), if is_conflict { 1 } else { 9 }, "{fault:?}");
    }
}

#[test]
fn what_fails_for_long_is_told_and_leaves_no_part() {
    let Some(site) = Site::if_moto() else { return };
    let objects = &*site.objects;
    create(objects, "kept", b"body").unwrap();
    site.proxy.fail_all(Fault::RequestLost);
    let begin = Instant::now();
    let error = create(objects, "lost", b"body").unwrap_err();
    assert!(error.is_unreachable() && begin.elapsed().as_secs() < 30, "{error}");
    assert!(site.read(&key("kept")).unwrap_err().is_unreachable());
    site.proxy.fail_all(Fault::AnswerCut);
    let mut body = b"before".to_vec();
    assert!(objects.read(&key("kept"), None, &mut body).is_err());
    assert_eq!(body, b"before");
    site.proxy.heal();
    assert_eq!(site.listed(""), ["kept"]);
    assert_eq!(site.read(&key("kept")).unwrap(), b"body");
}

#[test]
fn what_the_store_refuses_is_told_with_advice() {
    let Some(site) = Site::if_moto() else { return };
    let denied = |code: &'static str| {
        site.proxy.fail_all(Fault::Denied(code));
        create(&*site.objects, "denied", b"body").unwrap_err()
    };
    for (code, words) in
        [("AccessDenied", "credentials"), ("RequestTimeTooSkewed", "clocks"), ("NoSuchBucket", "create it first")]
    {
        let error = denied(code);
        assert!(matches!(&error, ObjectError::Refused { .. }) && error.to_string().contains(words), "{error}");
    }
    assert!(matches!(denied("QuotaExceeded"), ObjectError::Full { .. }));
    assert!(matches!(denied("InvalidObjectState"), ObjectError::Cold { .. }));
    site.proxy.fail_all(Fault::Denied("AccessDenied because object protected by object lock."));
    assert_eq!(site.objects.remove(&key("kept")).unwrap(), Removed::Retained);
    site.proxy.heal();
    let elsewhere = open(&format!("s3://absent?endpoint=http://127.0.0.1:{}", site.proxy.port));
    let error = create(&*elsewhere, "key", b"body").unwrap_err();
    assert!(error.to_string().contains("the bucket does not exist"), "{error}");
    let nowhere = open("s3://backups?endpoint=http://127.0.0.1:1");
    assert!(create(&*nowhere, "key", b"body").unwrap_err().is_unreachable());
}

#[test]
fn a_listing_of_several_pages_is_whole() {
    let Some(site) = Site::if_moto() else { return };
    let names: Vec<String> = (0..1005).map(|number| format!("log/{number:04}")).collect();
    for name in &names {
        create(&*site.objects, name, b"").unwrap();
    }
    create(&*site.objects, "log-other", b"").unwrap();
    create(&*site.objects, "zz", b"").unwrap();
    assert_eq!(site.listed("log/"), names);
    assert_eq!(site.listed("log/100").len(), 5);
    assert_eq!(site.listed("log").len(), 1006);
    let mut behind = Vec::new();
    let mut note = |key: Key, _| {
        behind.push(key.to_string());
        Ok(())
    };
    site.objects.list("log/", Some(&key("log/1002")), &mut note).unwrap();
    assert_eq!(behind, ["log/1003", "log/1004"]);
}
