//! Steps of which others must see nothing or the whole: what comes between their parts is rare, and worth trying.

/// A step. In a world it takes long now and then, or the process is killed within it
/// ([`linger`](crate::thread::linger)).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Step {
    #[default]
    /// A writer is in a section.
    Section,
    /// Content was found, and is not referred to yet.
    Lookup,
    /// The content of a file is stored, and its root is not set.
    Publish,
    /// The new tankers of an index are in place, and memory has their cells, too.
    Checkpoint,
    /// A row is durable, and not counted.
    Counting,
    /// Rows are committed, and not exported.
    Export,
    /// A group of rows is exported, and not synced.
    ExportSync,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 7] =
        [Self::Section, Self::Lookup, Self::Publish, Self::Checkpoint, Self::Counting, Self::Export, Self::ExportSync];
}
