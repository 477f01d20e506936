//! `dedupfs store-check`.

use std::fmt::Write as _;

use dedupfs_remote::{Address, AddressError};
use dedupfs_store::StoreError;
use dedupfs_store::objects::ObjectError;
use dedupfs_store::objects::probe::{Extent, Finding, Verdict, probe};
use serde::Serialize;

use crate::args::remote::StoreCheckArgs;
use crate::control::{Failure, FailureKind};
use crate::exit;

/// What the command prints.
#[derive(Serialize)]
struct StoreCheck {
    store: String,
    is_usable: bool,
    promises: Vec<Promise>,
}

#[derive(Serialize)]
struct Promise {
    promise: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Probes a store and tells what it keeps to.
pub(crate) fn run(args: &StoreCheckArgs) -> Result<u8, Failure> {
    // Not parsed by clap, whose messages would show secrets in it.
    let address: Address = args.store.parse()?;
    let findings = check(&address)?;
    let broken = broken_of(&findings);
    let (store, is_usable) = (address.to_string(), broken.is_empty());
    let check = StoreCheck { store, is_usable, promises: findings.iter().map(promise).collect() };
    exit::print_message(args.json, "store_check", &check, text)?;
    if is_usable {
        return Ok(exit::OK);
    }
    eprintln!("dedupfs: {}", unusable(&check.store, &broken));
    Ok(exit::FAILED)
}

/// Probes a store; returns the promises that it breaks.
pub(crate) fn broken(address: &Address) -> Result<Vec<&'static str>, Failure> {
    Ok(broken_of(&check(address)?))
}

/// The failure of a store that breaks promises.
pub(crate) fn unusable(store: &str, broken: &[&str]) -> Failure {
    let broken = broken.join("\", \"");
    Failure::failed(format!("{store} cannot hold copies of pools: it does not keep \"{broken}\"; use another store"))
}

fn broken_of(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| is_broken(finding)).map(|finding| finding.promise).collect()
}

fn check(address: &Address) -> Result<Vec<Finding>, Failure> {
    let objects = address.open()?;
    let mut random = [0_u8; 8];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))?;
    let prefix = format!("store-check-{:016x}", u64::from_le_bytes(random));
    Ok(probe(&*objects, &prefix, Extent::default())?)
}

fn is_broken(finding: &Finding) -> bool {
    matches!(finding.verdict, Verdict::Broken(_))
}

fn promise(finding: &Finding) -> Promise {
    let (verdict, why) = match &finding.verdict {
        Verdict::Kept => ("kept", None),
        Verdict::Noted(why) => ("noted", Some(why.clone())),
        Verdict::Broken(why) => ("broken", Some(why.clone())),
    };
    Promise { promise: finding.promise, verdict, why }
}

fn text(check: &StoreCheck) -> String {
    let mut text = String::new();
    for Promise { promise, verdict, why } in &check.promises {
        let mark = match *verdict {
            "kept" => "ok    ",
            "noted" => "note  ",
            _ => "BROKEN",
        };
        let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let _ = writeln!(text, "{mark}  {promise}{why}");
    }
    text
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        let kind = match &error {
            AddressError::Malformed { .. } | AddressError::Unusable { .. } => FailureKind::Usage,
            AddressError::Directory(StoreError::NotFound { .. }) => FailureKind::Usage,
            AddressError::Directory(error) => error.into(),
        };
        kind.because(error.to_string())
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let kind = match &error {
            ObjectError::Full { .. } => FailureKind::NoSpace,
            ObjectError::Damaged { .. } => FailureKind::Damaged,
            ObjectError::BadKey { .. } => FailureKind::Usage,
            ObjectError::Absent { .. }
            | ObjectError::Foreign { .. }
            | ObjectError::Cold { .. }
            | ObjectError::Unreachable { .. }
            | ObjectError::Refused { .. } => FailureKind::Failed,
        };
        kind.because(error.to_string())
    }
}
