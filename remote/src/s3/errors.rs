//! Errors of the protocol of S3, sorted by what a caller can do.

use std::fmt;

use dedupfs_store::objects::{Key, ObjectError};
use object_store::Error;

/// All that an error says, with what it was caused by. Stores put their codes into the text.
pub(super) struct Reason(String);

/// Longest reason in bytes: stores answer with whole pages.
const REASON_BYTES_MAX: usize = 500;

/// Returns what an error and its causes say.
pub(super) fn reason(error: &dyn std::error::Error) -> Reason {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Most errors repeat their cause.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= REASON_BYTES_MAX);
    Reason(end.map_or_else(|| text.clone(), |end| format!("{} …", text.get(..end).unwrap_or_default())))
}

impl Reason {
    fn has(&self, any: &[&str]) -> bool {
        any.iter().any(|word| self.0.contains(word))
    }

    /// Whether the store keeps the object for now.
    pub(super) fn is_retained(&self) -> bool {
        let text = self.0.to_ascii_lowercase();
        ["object lock", "objectlock", "protected by", "worm", "retention", "legal hold"]
            .iter()
            .any(|word| text.contains(word))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sorts an error of an operation on `key`.
pub(super) fn translate(operation: &'static str, key: &str, error: Error) -> ObjectError {
    let reason = reason(&error);
    let refused = |reason: String| ObjectError::Refused { operation, key: key.to_owned(), reason };
    let unreachable = |reason: String| ObjectError::Unreachable { operation, key: key.to_owned(), reason };
    // A name that is not a key is a prefix, which is listed: neither absent nor cold.
    let Ok(name) = Key::new(key) else {
        let is_lasting =
            matches!(error, Error::NotFound { .. } | Error::PermissionDenied { .. } | Error::Unauthenticated { .. });
        return if is_lasting { refused(reason.to_string()) } else { unreachable(reason.to_string()) };
    };
    if reason.has(&["NoSuchBucket"]) {
        return refused("the bucket does not exist: create it first, or correct its name".to_owned());
    }
    if reason.has(&["InvalidObjectState"]) {
        return ObjectError::Cold { key: name, reason: reason.to_string() };
    }
    if reason.has(&["QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507 "]) {
        return ObjectError::Full { key: name };
    }
    if reason.has(&["RequestTimeTooSkewed"]) {
        return refused(format!(
            "the clocks of the store and of this machine differ too much: correct this machine's ({reason})"
        ));
    }
    match error {
        Error::NotFound { .. } => ObjectError::Absent { key: name },
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            refused(format!("the credentials do not allow it, or are wrong ({reason})"))
        }
        Error::NotImplemented { .. }
        | Error::NotSupported { .. }
        | Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. } => refused(reason.to_string()),
        // The store understood the request, and will answer the same again. 408 and 429 ask to come again.
        _ if reason.has(&["400 Bad Request", "405 ", "411 ", "413 ", "416 ", "501 "]) => refused(reason.to_string()),
        _ => unreachable(reason.to_string()),
    }
}
