//! A bucket of a store that speaks the protocol of S3.
//!
//! Requests are made by the crate `object_store`, on one thread of its runtime; each caller waits for its own. An operation that fails for
//! now is tried up to [`ATTEMPTS`] times, here and not below, because a creation whose acknowledgement was lost must be compared with what
//! is there.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use dedupfs_store::objects::{
    Class, Created, Head, KEY_BYTES_MAX, Key, OBJECT_BYTES_MAX, ObjectError, Objects, Removed, Result, check_len,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, BackoffConfig, ClientOptions, Error, GetOptions, GetRange, ObjectMeta, ObjectStore as _,
    ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::runtime::{Builder, Runtime};

mod errors;

use errors::{Reason, translate};

/// How often an operation is tried.
const ATTEMPTS: u32 = 4;
/// Wait before the second attempt; each further one waits four times as long.
const WAIT: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request: an object of 65 MiB at 220 KiB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Variables of which one gives credentials.
const CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];
/// Variables that are heeded. The address says the bucket, so that no other variable may.
const HEEDED: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];
/// Variables that say the server, if the address does not.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
/// Objects listed at a time.
const PAGE: usize = 1000;
/// Region of stores that have none.
const REGION: &str = "us-east-1";

/// Variables of the environment by their names.
pub type Environment = BTreeMap<String, String>;

/// The place of a bucket, and how to reach it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// Before all keys; may be empty.
    pub prefix: String,
    /// The server, if it is not Amazon's or that of the environment.
    pub endpoint: Option<String>,
    /// The region, if it is not that of the environment.
    pub region: Option<String>,
    /// Storage class of content, if it is not the store's default.
    pub class: Option<String>,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let options = [("endpoint", &self.endpoint), ("region", &self.region), ("class", &self.class)];
        let set = options.into_iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
        for (position, (name, value)) in set.enumerate() {
            write!(f, "{}{name}={value}", if position == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// The objects below the prefix of a bucket.
pub(crate) struct S3Objects {
    bucket: Bucket,
    store: AmazonS3,
    runtime: Runtime,
}

impl fmt::Debug for S3Objects {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Objects").field(&self.bucket).finish()
    }
}

impl S3Objects {
    /// Prepares the requests, with settings and credentials of this environment. Asks the store for nothing.
    pub(crate) fn open(bucket: &Bucket, environment: &Environment) -> std::result::Result<Self, String> {
        // The same for all: a second one is refused, and does not matter.
        let _is_set = rustls::crypto::ring::default_provider().install_default();
        let builder = settings(bucket, environment)?;
        let store = builder.build().map_err(|error| Reason::of(&error).to_string())?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("remote").enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { bucket: bucket.clone(), store, runtime })
    }

    fn path(&self, name: &str) -> Path {
        match self.bucket.prefix.as_str() {
            "" => Path::from(name),
            prefix => Path::from(format!("{prefix}/{name}")),
        }
    }

    /// Tries an operation again while it fails for now.
    fn persist<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut wait = WAIT;
        for _ in 1..ATTEMPTS {
            match attempt() {
                Err(error) if error.is_unreachable() => tracing::debug!(%error, store = %self.bucket, "trying again"),
                outcome => return outcome,
            }
            thread::sleep(wait);
            wait *= 4;
        }
        attempt()
    }

    fn create_once(&self, key: &Key, body: &[&[u8]], payload: &PutPayload, class: Class) -> Result<Created> {
        let mut attributes = Attributes::new();
        if let (Class::Content, Some(class)) = (class, &self.bucket.class) {
            attributes.insert(Attribute::StorageClass, class.clone().into());
        }
        let options = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
        let put = self.runtime.block_on(self.store.put_opts(&self.path(key.as_str()), payload.clone(), options));
        match put {
            Ok(_) => Ok(Created::New),
            Err(error @ Error::AlreadyExists { .. }) => self.compare(key, body, &Reason::of(&error)),
            Err(error) => Err(translate("create", key, &error)),
        }
    }

    /// Compares the object that exists, as the store says, with these bytes. Stores also say so while another creation is under way.
    fn compare(&self, key: &Key, body: &[&[u8]], reason: &Reason) -> Result<Created> {
        let foreign = || Err(ObjectError::Foreign { key: key.clone() });
        let len_bytes: u64 = body.iter().map(|part| part.len() as u64).sum();
        match self.head_once(key)? {
            Some(head) if head.len_bytes != len_bytes => return foreign(),
            Some(_) => {}
            None => {
                let reason = format!("another creation is under way ({reason})");
                return Err(ObjectError::Unreachable { operation: "create", key: key.to_string(), reason });
            }
        }
        let mut found = Vec::new();
        self.read_once(key, None, &mut found)?;
        if found == body.concat() { Ok(Created::Same) } else { foreign() }
    }

    fn head_once(&self, key: &Key) -> Result<Option<Head>> {
        match self.runtime.block_on(self.store.head(&self.path(key.as_str()))) {
            Ok(meta) => Ok(Some(describe(&meta))),
            Err(error) => match translate("look up", key, &error) {
                ObjectError::Absent { .. } => Ok(None),
                error => Err(error),
            },
        }
    }

    fn read_once(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
        let path = self.path(key.as_str());
        let fail = |error| translate("read", key, &error);
        let before = into.len();
        let outcome = self.runtime.block_on(async {
            let answer = self.store.get_opts(&path, options).await.map_err(fail)?;
            let expected = answer.range.end.saturating_sub(answer.range.start);
            // A store that answers with other bytes than were asked for is not believed.
            let asked = match &range {
                None => 0..answer.meta.size,
                Some(range) => range.start..range.end.min(answer.meta.size),
            };
            if answer.range != asked || expected > OBJECT_BYTES_MAX {
                return Err(damaged(key, format!("bytes {asked:?}"), format!("bytes {:?}", answer.range)));
            }
            let mut stream = answer.into_stream();
            while let Some(part) = stream.try_next().await.map_err(fail)? {
                into.extend_from_slice(&part);
                if (into.len() - before) as u64 > expected {
                    return Err(damaged(key, format!("{expected} bytes"), "more".to_owned()));
                }
            }
            match (into.len() - before) as u64 {
                len if len == expected => Ok(()),
                len => Err(ObjectError::Unreachable {
                    operation: "read",
                    key: key.to_string(),
                    reason: format!("the answer ended behind {len} of {expected} bytes"),
                }),
            }
        });
        if outcome.is_err() {
            into.truncate(before);
        }
        outcome
    }

    fn remove_once(&self, key: &Key) -> Result<Removed> {
        match self.runtime.block_on(self.store.delete(&self.path(key.as_str()))) {
            Ok(()) => Ok(Removed::Gone),
            Err(error) if Reason::of(&error).is_retained() => Ok(Removed::Retained),
            Err(error) => match translate("remove", key, &error) {
                ObjectError::Absent { .. } => Ok(Removed::Gone),
                error => Err(error),
            },
        }
    }

    /// Lists a page of objects below a directory, behind this one.
    fn list_once(&self, directory: &Path, after: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let list = match after {
            Some(after) => self.store.list_with_offset(Some(directory), after),
            None => self.store.list(Some(directory)),
        };
        let page = self.runtime.block_on(list.take(PAGE).try_collect());
        page.map_err(|error| errors::of_listing(directory.as_ref(), &error))
    }

    /// The key of an object; `None` if it is not one of ours.
    fn key_of(&self, path: &Path) -> Option<Key> {
        let name = path.as_ref().strip_prefix(&self.bucket.prefix)?;
        Key::new(name.strip_prefix('/').unwrap_or(name)).ok()
    }
}

/// Gathers the settings of requests.
fn settings(bucket: &Bucket, environment: &Environment) -> std::result::Result<AmazonS3Builder, String> {
    let client = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
        .with_read_timeout_disabled();
    let once = RetryConfig { max_retries: 0, retry_timeout: REQUEST_TIMEOUT, backoff: BackoffConfig::default() };
    let mut builder = AmazonS3Builder::new().with_client_options(client).with_retry(once).with_region(REGION);
    let set = |name: &&str| environment.get(*name).filter(|value| !value.is_empty());
    for (name, value) in HEEDED.iter().filter_map(|name| Some((name, set(name)?))) {
        let key = name.to_ascii_lowercase().parse().map_err(|error| format!("{name} is not known: {error}"))?;
        builder = builder.with_config(key, value);
    }
    builder = builder.with_bucket_name(&bucket.name).with_disable_bulk_delete(true);
    if let Some(region) = &bucket.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = bucket.endpoint.as_ref().or_else(|| ENDPOINTS.iter().find_map(set)) {
        // Amazon's machines give credentials to programs that run on them; other stores' do not.
        if !CREDENTIALS.iter().any(|name| set(name).is_some()) {
            return Err(
                "there are no credentials: put them into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
                    .to_owned(),
            );
        }
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(builder)
}

fn damaged(key: &Key, expected: String, found: String) -> ObjectError {
    ObjectError::Damaged { key: key.clone(), expected, found }
}

fn describe(meta: &ObjectMeta) -> Head {
    Head { len_bytes: meta.size, written_secs: u64::try_from(meta.last_modified.timestamp()).ok() }
}

impl Objects for S3Objects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        check_len(key, body)?;
        let payload = PutPayload::from(body.concat());
        self.persist(|| self.create_once(key, body, &payload, class))
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let Some(range) = range else { return self.persist(|| self.read_once(key, None, into)) };
        let is_empty = |head: Head| range.start >= range.end.min(head.len_bytes);
        if !range.is_empty() {
            match self.persist(|| self.read_once(key, Some(range.clone()), into)) {
                // Stores answer so to a range that begins behind the object.
                Err(ObjectError::Refused { .. }) => {}
                outcome => return outcome,
            }
        }
        match self.head(key)? {
            Some(head) if is_empty(head) => Ok(()),
            Some(_) => {
                let reason = format!("the store does not give bytes {range:?}");
                Err(ObjectError::Refused { operation: "read", key: key.to_string(), reason })
            }
            None => Err(ObjectError::Absent { key: key.clone() }),
        }
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        self.persist(|| self.head_once(key))
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        self.persist(|| self.remove_once(key))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        let (directory, _) = prefix.rsplit_once('/').unwrap_or_default();
        let directory = self.path(directory);
        let mut after = after.map(|after| self.path(after.as_str()));
        // A store that does not go on from there would be asked for ever.
        let rises = |after: &Option<Path>, meta: &ObjectMeta| after.as_ref().is_none_or(|after| *after < meta.location);
        loop {
            let page = self.persist(|| self.list_once(&directory, after.as_ref()))?;
            let is_last = page.len() < PAGE;
            for meta in page {
                if !rises(&after, &meta) {
                    let reason = format!("it lists {} where a later name must come", meta.location);
                    return Err(ObjectError::Refused { operation: "list", key: prefix.to_owned(), reason });
                }
                after = Some(meta.location.clone());
                // Others' objects beside ours are none of our business.
                if let Some(key) = self.key_of(&meta.location).filter(|key| key.as_str().starts_with(prefix)) {
                    visit(key, describe(&meta))?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn describe(&self) -> String {
        self.bucket.to_string()
    }
}

const _: () = assert!(KEY_BYTES_MAX * 2 < 1024, "a prefix and a key fit into a name of S3");

#[cfg(test)]
mod tests {
    use object_store::aws::AmazonS3ConfigKey;

    use super::*;

    /// A backup of one host went to another one's bucket.
    #[test]
    fn regression_the_environment_says_neither_bucket_nor_the_server_of_an_address() {
        let environment: Environment = [
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
            ("AWS_BUCKET", "other"),
            ("AWS_BUCKET_NAME", "other"),
            ("AWS_ENDPOINT", "http://other"),
            ("AWS_ENDPOINT_URL", "http://environment"),
            ("AWS_ENDPOINT_URL_S3", "http://environment-s3"),
            ("AWS_REGION", "eu-2"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let bucket = Bucket { name: "backups".to_owned(), ..Bucket::default() };
        let there = Bucket { endpoint: Some("http://address".to_owned()), ..bucket.clone() };
        for (bucket, endpoint) in [(&there, "http://address"), (&bucket, "http://environment-s3")] {
            let settings = settings(bucket, &environment).expect("are whole");
            let value = |key| settings.get_config_value(&key);
            assert_eq!(value(AmazonS3ConfigKey::Bucket).as_deref(), Some("backups"));
            assert_eq!(value(AmazonS3ConfigKey::Endpoint).as_deref(), Some(endpoint));
            assert_eq!(value(AmazonS3ConfigKey::Region).as_deref(), Some("eu-2"));
        }
        let nobody: Environment = [("AWS_ENDPOINT_URL_S3".to_owned(), "http://environment".to_owned())].into();
        assert!(settings(&bucket, &nobody).expect_err("has no credentials").contains("AWS_ACCESS_KEY_ID"));
    }
}
