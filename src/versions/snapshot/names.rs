//! The names of a live directory, in their order, a few at a time.

use dedupfs_base::Result;
use dedupfs_namespace::{CommittedView, NamedInode};
use dedupfs_service::Ino;

/// Names read at once.
const NAMES_AT_ONCE: usize = 512;

pub(super) struct Names {
    directory: Ino,
    names: std::vec::IntoIter<NamedInode>,
    last: Vec<u8>,
    is_read: bool,
}

impl Names {
    pub(super) fn new(directory: Ino) -> Self {
        Self { directory, names: Vec::new().into_iter(), last: Vec::new(), is_read: false }
    }

    pub(super) fn next(&mut self, view: &CommittedView) -> Result<Option<NamedInode>> {
        loop {
            if let Some(name) = self.names.next() {
                return Ok(Some(name));
            }
            if self.is_read {
                return Ok(None);
            }
            let names = view.names(self.directory, &self.last, NAMES_AT_ONCE)?;
            self.is_read = names.len() < NAMES_AT_ONCE;
            if let Some((last, ..)) = names.last() {
                self.last.clone_from(last);
            }
            self.names = names.into_iter();
        }
    }
}
