//! Errors of the protocol of S3, sorted by the caller's remedy.

use std::fmt;

use dedupfs_store::objects::{Key, ObjectError};
use object_store::Error;

/// Longest reason in bytes: stores answer with whole pages.
const REASON_BYTES_MAX: usize = 500;

/// All that an error and its causes say, and the store's own answer. Only that answer is searched for words: the rest has names
/// of buckets and objects.
pub(super) struct Reason {
    text: String,
    /// Status of HTTP.
    status: Option<u16>,
    /// The code and the message of the answer.
    answer: String,
}

impl Reason {
    pub(super) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let (mut text, mut answer, mut status) = (String::new(), String::new(), None);
        let mut cause = Some(error);
        while let Some(error) = cause {
            let more = error.to_string();
            // The library's type for this is not public.
            if let Some(answered) = more.strip_prefix("Server returned ") {
                status = answered.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok());
                answer = ["Code", "Message"].map(|tag| within(answered, tag)).join(" ").to_ascii_lowercase();
            }
            // Most errors repeat their cause.
            if text.is_empty() {
                text = more;
            } else if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= REASON_BYTES_MAX);
        let text = end.map_or_else(|| text.clone(), |end| format!("{} …", text.get(..end).unwrap_or_default()));
        Self { text, status, answer }
    }

    fn has(&self, any: &[&str]) -> bool {
        any.iter().any(|word| self.answer.contains(word))
    }

    /// Whether the store keeps the object for now.
    pub(super) fn is_retained(&self) -> bool {
        self.has(&["object lock", "objectlock", "protected by", "worm", "retention", "legal hold"])
    }
}

/// The text of the first element of this name; empty without one.
fn within<'b>(body: &'b str, tag: &str) -> &'b str {
    let inside = body.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once("</"));
    inside.map_or("", |(text, _)| text)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Sorts an error of an operation on an object.
pub(super) fn translate(operation: &'static str, key: &Key, error: &Error) -> ObjectError {
    let reason = Reason::of(error);
    if reason.has(&["invalidobjectstate"]) {
        return ObjectError::Cold { key: key.clone(), reason: reason.to_string() };
    }
    if reason.status == Some(507) || reason.has(&["quotaexceeded", "xminiostoragefull", "insufficientstorage"]) {
        return ObjectError::Full { key: key.clone() };
    }
    if matches!(error, Error::NotFound { .. }) && !reason.has(&["nosuchbucket"]) {
        return ObjectError::Absent { key: key.clone() };
    }
    of_any(operation, key.as_str(), error, &reason)
}

/// Sorts an error of a listing below a directory.
pub(super) fn of_listing(directory: &str, error: &Error) -> ObjectError {
    of_any("list", directory, error, &Reason::of(error))
}

fn of_any(operation: &'static str, name: &str, error: &Error, reason: &Reason) -> ObjectError {
    let refused = |reason: String| ObjectError::Refused { operation, key: name.to_owned(), reason };
    if reason.has(&["nosuchbucket"]) {
        return refused("the bucket does not exist: create it first, or correct its name".to_owned());
    }
    if reason.has(&["requesttimetooskewed"]) {
        return refused(format!(
            "the clocks of the store and of this machine differ too much: correct this machine's ({reason})"
        ));
    }
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            refused(format!("the credentials do not allow it, or are wrong ({reason})"))
        }
        Error::NotFound { .. }
        | Error::NotImplemented { .. }
        | Error::NotSupported { .. }
        | Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. } => refused(reason.to_string()),
        // An upload that stood still, or credentials that are renewed: with the status of senseless requests.
        _ if reason.has(&["requesttimeout", "incompletebody", "expiredtoken"]) => {
            ObjectError::Unreachable { operation, key: name.to_owned(), reason: reason.to_string() }
        }
        // The store understood the request, and will answer the same again. 408 and 429 ask to come again.
        _ if matches!(reason.status, Some(400 | 405 | 411 | 413 | 416 | 501)) => refused(reason.to_string()),
        _ => ObjectError::Unreachable { operation, key: name.to_owned(), reason: reason.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_looked_for_in_the_answer_alone() {
        let body = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Object is WORM protected</Message></Error>";
        assert_eq!((within(body, "Code"), within(body, "Message")), ("AccessDenied", "Object is WORM protected"));
        assert_eq!((within(body, "Key"), within("<Code>x", "Code"), within("", "Code")), ("", "", ""));
        let answered = std::io::Error::other(format!("Server returned non-2xx status code: 403 Forbidden: {body}"));
        let reason = Reason::of(&answered);
        assert!(reason.is_retained() && reason.status == Some(403));
        // A connection was lost while an object of the bucket `worm-retention` was removed.
        let source = std::io::Error::other("connection lost: DELETE http://127.0.0.1/worm-retention/507 ");
        let error = Error::Generic { store: "S3", source: Box::new(source) };
        let reason = Reason::of(&error);
        assert!(!reason.is_retained() && reason.to_string().contains("worm-retention"));
        let key = Key::new("log/1").expect("is a key");
        assert!(translate("remove", &key, &error).is_unreachable());
    }
}
