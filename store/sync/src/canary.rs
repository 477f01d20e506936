//! Canaries: mistakes that a world can make on purpose, to show that it would notice them.
//!
//! Each stands in the code as `if is_planted(Canary::…)`. Without the feature `world` that is false when the program is
//! compiled, and nothing of it is left.

macro_rules! canaries {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Canary {
            $($(#[doc = $text])+ $name,)+
        }

        impl Canary {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The mistake in words.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($text,)+).trim_ascii(),)+
                }
            }
        }
    };
}

canaries! {
    /// containers are not synced before the commit
    ContainersNotSynced,
    /// a failed sync of containers is taken for a success
    SyncErrorSwallowed,
    /// the namespace's file is not synced
    CommitNotSynced,
    /// fsync is answered before its round
    AnsweredEarly,
    /// rounds run only when they are asked for
    NoIntervals,
    /// a round's answer wakes nobody
    AnswerWakesNobody,
    /// the name of a new slot file is not synced
    SlotNameNotSynced,
    /// an index file is not synced before its manifest
    TankerNotSynced,
    /// neither rounds nor reclaiming wait for sections
    SectionsNotAwaited,
    /// a writer uses a node that reclaiming has claimed
    ClaimIgnored,
    /// a writer uses a chunk of a container that reclaiming has claimed
    ContainerClaimIgnored,
    /// a node that is stored beside a claimed copy counts its children again
    CopyCountsAgain,
    /// settling does not wait for the counting
    SettledEarly,
    /// reclaiming claims a node that a writer has pinned
    PinIgnored,
    /// nodes are stored without the store lock
    NodesUnlocked,
    /// chunks are stored without the store lock
    ChunksUnlocked,
    /// a node that is stored does not count its children
    ChildrenNotCounted,
    /// a node that is freed does not count its children down
    ChildrenNotFreed,
    /// a dropped root is not counted down
    RootNotDropped,
    /// a new root is not counted up
    RootNotAdded,
    /// rows that one index lacks are trimmed
    TrimmedEarly,
    /// a replayed row inserts no chunks
    ReplayWithoutChunks,
    /// orphans of a crash stay
    OrphansStay,
    /// the writer epoch is not raised
    EpochNotRaised,
    /// slots are freed while the export names them
    FreedBeforeExport,
    /// containers are freed before a checkpoint covers their emptying
    FreedBeforeCheckpoint,
    /// space that was given back is not synced at close
    GivenBackNotSynced,
    /// copies of recipes are not synced before the export names them
    CopiesNotSynced,
    /// the log of an export is not synced
    ExportNotSynced,
    /// an export misses the last changed key of each part
    ExportMissesKey,
    /// content that is replaced is not counted down
    ReplacedNotDropped,
    /// the content of an orphan is not counted down
    OrphanNotDropped,
    /// workers are left running
    ThreadLeft,
    /// a file that is closed is not published
    CloseDoesNotPublish,
    /// a container that was synced once is never synced again
    MarkBeyondSync,
    /// a container that was freed is still found
    FreedStillKnown,
    /// nothing is reserved for reclaiming
    NothingReserved,
    /// a node that reclaiming moved is looked for in its old container
    MovedNotNoted,
    /// a node that was freed is still known
    FreedNodeStays,
    /// a replayed row inserts no nodes
    ReplayWithoutNodes,
    /// a clone shares a node without a pin
    CloneNotPinned,
    /// a failed write of a container is taken for a success
    WriteErrorSwallowed,
    /// a manifest claims a row that its files miss
    ManifestAhead,
    /// a stale hint is believed
    StaleHint,
    /// an export that a killed process left is used, and not synced
    FoundExportNotSynced,
    /// an export that a failed sync left in memory only is believed by the next process
    FoundExportNotReread,
    /// an export does not tell that a new writer epoch has begun
    EpochNotExported,
    /// the bytes of a frame are not compared with their checksum
    ChecksumIgnored,
    /// tree nodes are logged before the pool says that it has versions
    TreeBeforeFlag,
    /// a tree node that is stored does not count its last child
    TreeChildNotCounted,
    /// a version that is forgotten is dropped though somebody reads it
    HeldVersionDropped,
    /// content that waits for its leaf is not pinned
    EntryNotPinned,
    /// an entry that changed is taken over from the base of a put
    ChangedTakenOver,
}

/// Whether the world makes this mistake.
#[cfg(not(feature = "world"))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_: Canary) -> bool {
    false
}

#[cfg(feature = "world")]
pub use crate::world::is_planted;
