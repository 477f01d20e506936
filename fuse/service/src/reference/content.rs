//! The content of a file in the reference model.

/// The bytes of a file, or a stand-in for them.
pub trait FileContent: Send + 'static + Default {
    /// Length in bytes.
    fn len_bytes(&self) -> u64;
    /// Cuts or extends with zeros.
    fn set_len(&mut self, len_bytes: u64);
    /// Writes at `offset`, with zeros between the old end and `offset`.
    fn write_at(&mut self, offset: u64, data: &[u8]);
    /// Appends `len_bytes` from `offset` to `into`, fewer at the end.
    fn read_at(&self, offset: u64, len_bytes: u32, into: &mut Vec<u8>);
    /// Writes zeros over a range, up to the end at most.
    fn zero(&mut self, offset: u64, len_bytes: u64);
}

/// An index into memory; the model refuses files that do not fit.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl FileContent for Vec<u8> {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn set_len(&mut self, len_bytes: u64) {
        self.resize(index(len_bytes), 0);
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) {
        let (start, end) = (index(offset), index(offset) + data.len());
        if self.len() < end {
            self.resize(end, 0);
        }
        self[start..end].copy_from_slice(data);
    }

    fn read_at(&self, offset: u64, len_bytes: u32, into: &mut Vec<u8>) {
        let start = index(offset).min(self.len());
        let end = start.saturating_add(len_bytes as usize).min(self.len());
        into.extend_from_slice(&self[start..end]);
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) {
        let start = index(offset).min(self.len());
        let end = index(offset.saturating_add(len_bytes)).min(self.len());
        self[start..end].fill(0);
    }
}
