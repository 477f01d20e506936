//! The components among which time is divided. One place: names, order and kinds.

/// Makes [`Component`] with its names; one line for each.
macro_rules! components {
    ($($(#[$about:meta])* $component:ident $(($wait:ident))? => $name:literal,)+) => {
        /// A part of the work of a pool, or a reason for which its threads wait.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Component { $($(#[$about])* $component,)+ }

        impl Component {
            /// All components, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$component,)+];

            /// Its name in statistics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$component => $name,)+ }
            }

            /// Whether it is a wait, and no work.
            #[must_use]
            pub const fn is_wait(self) -> bool {
                match self { $(Self::$component => false $(|| stringify!($wait).len() > 0)?,)+ }
            }
        }
    };
}

components! {
    /// Answering requests of clients, and copying their bytes.
    Requests => "requests",
    /// Copying batches of files by put and get.
    Transfers => "put and get",
    /// Finding chunk boundaries.
    Chunking => "chunking",
    /// Fingerprinting batches of chunks.
    Fingerprinting => "fingerprinting",
    /// Naming, encoding and logging segments.
    Segments => "segments",
    /// Looking up segments and other nodes in the index.
    SegmentLookup => "segment lookup",
    /// The filter of a file's old chunks.
    BlockFilter => "filter block",
    /// The filter of answers that were given ahead.
    AheadFilter => "filter ahead",
    /// The filter of a former version.
    NeighbourFilter => "filter neighbour",
    /// The filter of the open tanker.
    OpenFilter => "filter open",
    /// The filters of sealed tankers and guides.
    BloomFilter => "filter bloom",
    /// The filter of container tables.
    LocalityFilter => "filter locality",
    /// Reading buckets of sealed tankers.
    SealedFilter => "filter sealed",
    /// Comparing bytes.
    CompareFilter => "filter compare",
    /// Copying new chunks into open containers.
    Appending => "appending",
    /// Compressing regions.
    Compression => "compression",
    /// Writing containers.
    ContainerWrites => "container writes",
    /// Syncing slot files.
    ContainerSyncs => "container syncs",
    /// Publishing the content of files.
    Publishing => "publishing",
    /// Commits, without their parts below.
    Rounds => "rounds",
    /// Freezing the generation.
    Freezing => "freezing",
    /// The transaction of the namespace.
    NamespaceCommits => "namespace commit",
    /// Applying rows to the indexes.
    Counting => "counting",
    /// Writing checkpoints of the indexes.
    Checkpoints => "checkpoints",
    /// Writing tankers for the first time.
    Sealing => "sealing",
    /// Making guides, and loading their filters.
    Guides => "guides",
    /// Exporting the namespace.
    Exporting => "export",
    /// Looking up chunks that are not where their recipe says.
    ReadLookup => "lookup to read",
    /// Reading recipe nodes and tree nodes that are not cached.
    Nodes => "nodes",
    /// Decoding tables of containers.
    Tables => "tables",
    /// Reading tables and regions from the disk.
    ContainerReads => "container reads",
    /// Decompressing regions.
    Decompression => "decompression",
    /// Reclaiming.
    Reclaiming => "reclaiming",
    /// Scrubbing.
    Scrubbing => "scrub",
    /// Waiting for the lock under which chunks and nodes are stored.
    StoreLock(wait) => "store lock",
    /// Waiting for another lock that is held across I/O.
    Locks(wait) => "other locks",
    /// Waiting to enter a section, or for sections to end.
    Sections(wait) => "sections",
    /// Waiting for room in the memory between writers and disk.
    Room(wait) => "memory in flight",
    /// Waiting for batches of the same file.
    Batches(wait) => "batches",
    /// A round waits for regions to be compressed and placed.
    Placing(wait) => "placing",
    /// Waiting for a round.
    Commit(wait) => "commit",
    /// Waiting for rows to be counted.
    Backlog(wait) => "backlog",
    /// Waiting for a checkpoint.
    CheckpointEnd(wait) => "checkpoint",
    /// Upkeep gives way to clients, or is paused.
    Rest(wait) => "rest",
}
