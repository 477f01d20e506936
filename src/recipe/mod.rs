//! Recipes: how files are rebuilt from chunks.
//!
//! A file's content is a list of [`Piece`]s, each a recipe segment (a level 0 node, some 4 MiB) or a hole. The
//! list itself is kept as a tree of list nodes whose cuts are content-defined too, so equal files share the whole
//! tree and similar ones most of it: MAD2's file level and Batch's segment level are the same mechanism.
//!
//! - [`segmenter`]: where segments and lists are cut;
//! - [`tree`]: pieces <-> root;
//! - [`nodes`]: reading nodes, with their cache.

pub mod nodes;
pub mod piece;
pub mod segmenter;
pub mod tree;

pub use nodes::{NodeReader, NodeView};
pub use piece::{Piece, PieceKind, PieceList};
