//! Images of Ceph (RBD). The cluster compares snapshots; a qemu-nbd of this batch serves the one that is read.

use std::fs::File;

use serde::Deserialize;

use super::program::Program;
use super::server::Server;
use super::snapshots::Store;

/// An image.
pub(super) struct Image {
    spec: String,
    /// Options of the program `rbd`.
    options: Vec<String>,
    /// The image for qemu, but for the snapshot.
    opened: String,
    server: Option<Server>,
}

#[derive(Deserialize)]
struct Snapshot {
    name: String,
}

impl Image {
    /// `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`, the name of a client without `client.`, and a configuration file. `None` if it is not that.
    pub(super) fn parse(spec: &str, user: Option<&str>, conf: Option<&str>) -> Option<Self> {
        let is_part = |part: &&str| !part.is_empty() && !part.starts_with('-') && !part.contains(['@', ',']);
        let parts: Vec<&str> = spec.split('/').filter(is_part).collect();
        let (pool, namespace, image) = match parts.as_slice() {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return None,
        };
        let is_whole =
            spec.split('/').count() == parts.len() && [user, conf].into_iter().flatten().all(|value| is_part(&value));
        let namespace = namespace.map_or_else(String::new, |namespace| format!(",namespace={namespace}"));
        let of = |key: &str, value: Option<&str>| value.map_or_else(String::new, |value| format!(",{key}={value}"));
        let (of_user, of_conf) = (of("user", user), of("conf", conf));
        let options = [("--id", user), ("--conf", conf)];
        is_whole.then(|| Self {
            spec: spec.to_owned(),
            options: options
                .into_iter()
                .filter_map(|(option, value)| Some([option.to_owned(), value?.to_owned()]))
                .flatten()
                .collect(),
            opened: format!("driver=rbd,pool={pool}{namespace},image={image}{of_user}{of_conf}"),
            server: None,
        })
    }

    fn rbd<'a>(&'a self, words: &[&'a str]) -> Program<'a> {
        let words: Vec<&str> = self.options.iter().map(String::as_str).chain(words.iter().copied()).collect();
        Program::new("rbd", &words)
    }

    fn full(&self, name: &str) -> String {
        format!("{}@{name}", self.spec)
    }
}

impl Store for Image {
    fn file_name(&self) -> &str {
        self.spec.rsplit('/').next().unwrap_or(&self.spec)
    }

    fn list(&mut self, gives_up: &dyn Fn() -> bool) -> Result<Vec<String>, String> {
        let answer = self.rbd(&["snap", "ls", "--format", "json", &self.spec]).run(gives_up)?;
        let snapshots: Vec<Snapshot> = serde_json::from_slice(&answer)
            .map_err(|error| format!("the answer of rbd snap ls is not understood: {error}"))?;
        Ok(snapshots.into_iter().map(|snapshot| snapshot.name).collect())
    }

    fn make(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.rbd(&["snap", "create", "--no-progress", &self.full(name)]).run(gives_up).map(drop)
    }

    fn remove(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        self.rbd(&["snap", "rm", "--no-progress", &self.full(name)]).run(gives_up).map(drop)
    }

    fn compare(&mut self, from: &str, to: &str, map: File, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let full = self.full(to);
        self.rbd(&["diff", "--format", "json", "--from-snap", from, &full]).run_into(map, gives_up)
    }

    fn open(&mut self, name: &str, gives_up: &dyn Fn() -> bool) -> Result<String, String> {
        let server = Server::start(&format!("{},snapshot={name}", self.opened), gives_up)?;
        let address = server.address();
        self.server = Some(server);
        Ok(address)
    }

    fn close(&mut self) {
        self.server = None;
    }
}
