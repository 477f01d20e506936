//! Finds the kind of a pool's file from its path.

use std::io;
use std::path::{Path, PathBuf};

pub(crate) struct Roots(Vec<PathBuf>);

impl Roots {
    pub(crate) fn new(meta: &Path, data: Option<&Path>) -> io::Result<Self> {
        [Some(meta), data].into_iter().flatten().map(Path::canonicalize).collect::<io::Result<_>>().map(Self)
    }

    /// Returns the kind of a file of the pool; `None` for any other file.
    pub(crate) fn kind(&self, path: &Path) -> Option<&'static str> {
        let inside = self.0.iter().find_map(|root| path.strip_prefix(root).ok())?;
        // A file written beside another and renamed over it has the same kind, and so has a file that was removed while open.
        let text = inside.to_str()?.trim_end_matches(" (deleted)").trim_end_matches(".new");
        let (first, rest) = text.split_once('/').unwrap_or((text, ""));
        Some(match (first, rest) {
            ("" | "containers" | "recipes" | "index" | "export", "") => "directory",
            ("index", "chunks" | "chunks.b" | "recipes" | "recipes.b") | ("export", "recipes") => "directory",
            ("containers", _) => "containers",
            ("recipes", _) => "recipes",
            ("index", _) if rest.ends_with("manifest") => "manifest",
            ("index", _) => "index",
            ("export", _) if rest.starts_with("recipes/") => "export-copies",
            ("export", _) => "export",
            ("namespace.redb", _) => "namespace",
            (name, _) if name.starts_with("namespace.sums") => "sums",
            ("dedupfs.meta" | "dedupfs.data", _) => "superblock",
            ("lock", _) => "lock",
            (name, _) if name.starts_with("dedupfs.log") => "log",
            ("control.sock", _) => "socket",
            ("scrub" | "reclaim", _) => "notes",
            _ => "other",
        })
    }
}
