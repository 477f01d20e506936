//! The text of a plan.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::control::{Failure, FailureKind};

/// Bytes of a plan at most.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Reads a plan.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |error| Failure::failed(format!("cannot read the plan {}: {error}", path.display()));
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(PLAN_BYTES_MAX + 1).read_to_string(&mut text)).map_err(cannot)?;
    match text.len() as u64 > PLAN_BYTES_MAX {
        true => Err(is_none(path, &format!("it has more than {PLAN_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// The failure of a text that is no plan.
pub(crate) fn is_none(path: &Path, why: &str) -> Failure {
    FailureKind::Usage.because(format!("{} is no plan: {why}", path.display()))
}
