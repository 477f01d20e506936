//! Addresses of stores, as users write them.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use dedupfs_store::StoreError;
use dedupfs_store::device::FileDevice;
use dedupfs_store::objects::{DirectoryObjects, Key, Objects};
use fluent_uri::Uri;

use crate::s3::{Bucket, Environment, S3Objects};

/// The place of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A directory: `/mnt/usb/replica`, `./replica` or `file:///mnt/usb/replica`.
    Directory(PathBuf),
    /// A bucket: `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&class=NAME`. Credentials, and a region or server that the address leaves out, come from the
    /// environment, as for other programs (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`).
    Bucket(Bucket),
}

/// An address that cannot be used, with advice.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say the meaning of each field")]
pub enum AddressError {
    /// Not an address.
    #[error("{text:?} is not the address of a store: {why}; write s3://BUCKET/PREFIX, or a directory")]
    Malformed { text: String, why: String },
    /// The directory cannot be opened.
    #[error(transparent)]
    Directory(#[from] StoreError),
    /// The store's settings do not do.
    #[error("cannot use {address}: {why}")]
    Unusable { address: String, why: String },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let malformed = |why: &str| AddressError::Malformed { text: without_secrets(text), why: why.to_owned() };
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err(malformed("it is empty")),
                path => Ok(Self::Directory(path.into())),
            };
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Directory(rest.into())),
            "file" => Err(malformed("file:// has three slashes")),
            "s3" => Bucket::parse(text).map(Self::Bucket).map_err(|why| malformed(&why)),
            other => Err(malformed(&format!("{other}:// is not known"))),
        }
    }
}

impl Address {
    /// Opens the store, with the environment of this process. A directory must exist; a bucket is not asked for anything yet.
    ///
    /// # Errors
    /// The directory cannot be opened; settings or credentials of the bucket are missing or make no sense.
    pub fn open(&self) -> Result<Arc<dyn Objects>, AddressError> {
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        self.open_in(&std::env::vars_os().filter_map(text).collect())
    }

    /// As [`open`](Self::open), with this environment.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn open_in(&self, environment: &Environment) -> Result<Arc<dyn Objects>, AddressError> {
        match self {
            Self::Directory(path) => Ok(Arc::new(DirectoryObjects::new(Arc::new(FileDevice::open(path)?))?)),
            Self::Bucket(bucket) => {
                let unusable = |why: String| AddressError::Unusable { address: self.to_string(), why };
                Ok(Arc::new(S3Objects::open(bucket, environment).map_err(unusable)?))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket(bucket) => write!(f, "{bucket}"),
        }
    }
}

impl Bucket {
    /// Parses an address that begins with `s3://`.
    fn parse(text: &str) -> Result<Self, String> {
        let uri = Uri::parse(text).map_err(|error| error.to_string())?;
        let authority = uri.authority().ok_or("it has no bucket")?;
        if authority.userinfo().is_some() {
            return Err("it has credentials, which other users could see: put them into the environment \
                        (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
                .to_owned());
        }
        let name = authority.host().to_owned();
        if name.is_empty() || authority.port().is_some() {
            return Err(
                "it has no bucket, or a port behind it: another server than Amazon's is given by ?endpoint=URL"
                    .to_owned(),
            );
        }
        let prefix = uri.path().as_str().trim_matches('/').to_owned();
        if !prefix.is_empty() {
            Key::new(prefix.as_str())
                .map_err(|_| format!("its prefix {prefix:?} has other characters than a-z, 0-9, - and /"))?;
        }
        let mut bucket = Self { name, prefix, endpoint: None, region: None, class: None };
        let query = uri.query().map(|query| query.as_str()).unwrap_or_default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match option {
                "endpoint" => &mut bucket.endpoint,
                "region" => &mut bucket.region,
                "class" => &mut bucket.class,
                other => return Err(format!("there is no option {other}, but endpoint, region and class")),
            };
            if option == "endpoint" && value.contains('@') {
                return Err(
                    "its endpoint has credentials, which other users could see: put them into the environment \
                            (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
                        .to_owned(),
                );
            }
            if value.is_empty() || place.is_some() {
                return Err(format!("{option} has no value, or two"));
            }
            *place = Some(value.to_owned());
        }
        if bucket.class.as_ref().is_some_and(|class| COLD_CLASSES.contains(&class.as_str())) {
            return Err("objects of its class cannot be read at once, and each creation may have to compare: take a class that can, \
                        such as STANDARD_IA or GLACIER_IR"
                .to_owned());
        }
        Ok(bucket)
    }
}

/// Storage classes from which objects must be brought back first.
const COLD_CLASSES: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

/// Leaves out credentials, so that no message has them.
fn without_secrets(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(text: &str) -> Bucket {
        match text.parse() {
            Ok(Address::Bucket(bucket)) => bucket,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn addresses_name_directories_and_buckets() {
        for (text, path) in
            [("/mnt/usb", "/mnt/usb"), ("file:///mnt/usb", "/mnt/usb"), ("replica", "replica"), ("./a b", "./a b")]
        {
            assert_eq!(text.parse::<Address>().expect("is an address"), Address::Directory(path.into()));
        }
        assert_eq!(bucket("s3://backups"), Bucket { name: "backups".to_owned(), ..Bucket::default() });
        let full = bucket("s3://backups/web1/pool?endpoint=http://127.0.0.1:7070&region=eu-1&class=STANDARD_IA");
        assert_eq!((full.name.as_str(), full.prefix.as_str()), ("backups", "web1/pool"));
        assert_eq!(full.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!((full.region.as_deref(), full.class.as_deref()), (Some("eu-1"), Some("STANDARD_IA")));
        assert_eq!(bucket(&full.to_string()), full);
        assert_eq!(bucket("s3://backups/web1/").prefix, "web1");
    }

    #[test]
    fn other_texts_are_refused_with_a_reason_and_without_secrets() {
        let cases = [
            ("", "is empty"),
            ("file://server/path", "three slashes"),
            ("gopher://bucket", "gopher:// is not known"),
            ("s3://", "no bucket"),
            ("s3://key:secret@backups/web1", "put them into the environment"),
            ("s3://backups?endpoint=http://key:secret@127.0.0.1:7070", "put them into the environment"),
            ("s3://127.0.0.1:7070/backups", "?endpoint=URL"),
            ("s3://backups/Web 1", ""),
            ("s3://backups/../x", "a-z, 0-9"),
            ("s3://backups?class=DEEP_ARCHIVE", "GLACIER_IR"),
            ("s3://backups?colour=red", "no option colour"),
            ("s3://backups?region=", "no value"),
            ("s3://backups?region=a&region=b", "or two"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("s3://BUCKET/PREFIX"), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_bucket_needs_credentials() {
        let address: Address = "s3://backups?endpoint=http://127.0.0.1:1".parse().expect("is an address");
        let error = address.open_in(&Environment::new()).expect_err("has none").to_string();
        assert!(error.contains("AWS_ACCESS_KEY_ID") && error.contains("s3://backups"), "{error}");
    }

    #[test]
    fn a_directory_must_exist() {
        let missing = Address::Directory("/nonexistent/replica".into()).open();
        assert!(missing.is_err_and(|error| error.to_string().contains("/nonexistent/replica")));
        let scratch = tempfile::tempdir().expect("makes a directory");
        Address::Directory(scratch.path().to_owned()).open().expect("opens");
    }
}
