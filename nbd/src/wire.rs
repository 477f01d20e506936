//! Numbers of the protocol, and the two heads that are sent.

/// First words of a server.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second word of a server, and the first of each option.
pub(crate) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Flags of server and client in the negotiation.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

pub(crate) const OPTION_ABORT: u32 = 2;
pub(crate) const OPTION_GO: u32 = 7;
pub(crate) const OPTION_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPTION_SET_META_CONTEXT: u32 = 10;

pub(crate) const REPLY_ACK: u32 = 1;
pub(crate) const REPLY_INFO: u32 = 3;
pub(crate) const REPLY_META_CONTEXT: u32 = 4;
pub(crate) const REPLY_IS_ERROR: u32 = 1 << 31;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const COMMAND_READ: u16 = 0;
pub(crate) const COMMAND_DISCONNECT: u16 = 2;
pub(crate) const COMMAND_BLOCK_STATUS: u16 = 7;

pub(crate) const CHUNK_IS_LAST: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_DATA: u16 = 1;
pub(crate) const CHUNK_HOLE: u16 = 2;
pub(crate) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(crate) const CHUNK_IS_ERROR: u16 = 1 << 15;

/// Returns an option of the negotiation.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Appends a text behind its length.
pub(crate) fn push_text(data: &mut Vec<u8>, text: &str) {
    data.extend((text.len() as u32).to_be_bytes());
    data.extend(text.as_bytes());
}

/// Returns the head of a request, which has no data.
pub(crate) fn request(command: u16, cookie: u64, offset: u64, len_bytes: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    let mut rest = bytes.as_mut_slice();
    let mut put = |part: &[u8]| {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(part.len());
        head.copy_from_slice(part);
        rest = tail;
    };
    put(&REQUEST_MAGIC.to_be_bytes());
    put(&0_u16.to_be_bytes());
    put(&command.to_be_bytes());
    put(&cookie.to_be_bytes());
    put(&offset.to_be_bytes());
    put(&len_bytes.to_be_bytes());
    bytes
}

/// Numbers in the order of the network, taken from a message that may end too early.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// The text of so many bytes, with replacements for bytes that are none.
    pub(crate) fn text(&mut self, len_bytes: usize) -> Option<String> {
        let (text, rest) = self.0.split_at_checked(len_bytes)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The rest, as text.
    pub(crate) fn rest(self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }
}
