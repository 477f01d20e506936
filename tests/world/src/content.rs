//! Contents of files as the judge holds them: their states share pages, so that a large file may have many.

use std::sync::{Arc, LazyLock};

/// Bytes of a page.
const PAGE_BYTES: usize = 16 << 10;
type Page = Arc<[u8; PAGE_BYTES]>;

/// A page that is zero, as all of a hole is.
static ZEROS: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE_BYTES]));

/// The content of a file. Bytes behind its end, in its last page, are zero.
#[derive(Clone, Debug, Default)]
pub struct Content {
    len_bytes: usize,
    pages: Vec<Page>,
}

impl Content {
    pub fn new(bytes: &[u8]) -> Self {
        Self::default().written(0, bytes)
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    /// This content after a write. A gap before it is zero.
    #[must_use]
    pub fn written(&self, offset: u64, bytes: &[u8]) -> Self {
        let offset = usize::try_from(offset).expect("files are small");
        let mut after = self.resized(self.len_bytes.max(offset + bytes.len()) as u64);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = at % PAGE_BYTES;
            let (now, later) = rest.split_at(rest.len().min(PAGE_BYTES - within));
            Arc::make_mut(&mut after.pages[at / PAGE_BYTES])[within..within + now.len()].copy_from_slice(now);
            (at, rest) = (at + now.len(), later);
        }
        after
    }

    /// This content cut, or made longer by zeros.
    #[must_use]
    pub fn resized(&self, len_bytes: u64) -> Self {
        let len_bytes = usize::try_from(len_bytes).expect("files are small");
        let mut pages = self.pages.clone();
        pages.resize(len_bytes.div_ceil(PAGE_BYTES), ZEROS.clone());
        let within = len_bytes % PAGE_BYTES;
        if len_bytes < self.len_bytes && within != 0 {
            Arc::make_mut(pages.last_mut().expect("it is not empty"))[within..].fill(0);
        }
        Self { len_bytes, pages }
    }

    /// Bytes from `offset` on, `len_bytes` or those until the end.
    pub fn range(&self, offset: u64, len_bytes: u64) -> Vec<u8> {
        let from = usize::try_from(offset).expect("files are small").min(self.len_bytes);
        let to = from + usize::try_from(len_bytes).expect("files are small").min(self.len_bytes - from);
        (from..to).map(|at| self.pages[at / PAGE_BYTES][at % PAGE_BYTES]).collect()
    }

    /// A number for this content, for messages.
    pub fn sum(&self) -> u32 {
        let bytes = self.pages.iter().flat_map(|page| page.iter()).take(self.len_bytes);
        bytes.fold(0_u64, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte)) as u32
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |(left, right): (&Page, &Page)| Arc::ptr_eq(left, right) || left == right;
        self.len_bytes == other.len_bytes && self.pages.iter().zip(&other.pages).all(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    #[test]
    fn a_content_is_what_a_plain_vector_would_be() {
        let mut dice = Dice::new(1);
        let (mut content, mut plain) = (Content::default(), Vec::new());
        for _ in 0..500 {
            let offset = dice.of_bits(18) as usize;
            if dice.one_in(3) {
                content = content.resized(offset as u64);
                plain.resize(offset, 0);
            } else {
                let bytes: Vec<u8> = (0..dice.of_bits(16)).map(|_| dice.word() as u8).collect();
                content = content.written(offset as u64, &bytes);
                plain.resize(plain.len().max(offset + bytes.len()), 0);
                plain[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(content.range(0, u64::MAX), plain);
            assert!(content == Content::new(&plain));
        }
    }
}
