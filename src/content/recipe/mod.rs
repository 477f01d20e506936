//! Recipes: how files are put together from chunks.
//!
//! A file's content is a list of [`Piece`]s, each a segment (a level 0 node, some 4 MiB, of an
//! image 1 MiB) or a hole. The list itself is
//! kept as a tree of list nodes. Their cuts are content-defined too, so equal files share the whole tree and similar
//! files most of it: MAD2's file level and Batch's segment level are the same mechanism.
//!
//! - [`segmenter`]: the cuts of segments and lists;
//! - [`tree`]: pieces <-> root.

pub(crate) mod piece;
pub(crate) mod segmenter;
pub(crate) mod tree;

pub(crate) use piece::{Piece, PieceKind, PieceList};
