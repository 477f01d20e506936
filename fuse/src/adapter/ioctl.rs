//! The ioctls of chattr(1), lsattr(1) and xfs_io(8): flags of inodes, in both forms that Linux has.
//!
//! The kernel may ask in either form, independent of the program's choice. It first checks the right to change them (since 5.13).

use dedupfs_service::{Errno, InodeFlags, Result};

// Source: fs.h. FS_IMMUTABLE_FL and the like, then FS_XFLAG_IMMUTABLE and the like.
const PLAIN: Bits = Bits { immutable: 0x10, append_only: 0x20, no_dump: 0x40, no_access_time: 0x80 };
const EXTENDED: Bits = Bits { immutable: 0x08, append_only: 0x10, no_dump: 0x80, no_access_time: 0x40 };

/// Bytes of `struct fsxattr`: flags, extent size, extents, project, extent size of copies (4 each), 8 reserved.
const EXTENDED_BYTES: usize = 28;
/// Offsets of its flags and of unsupported features: extent sizes and project.
const FEATURES_AT: [usize; 3] = [4, 12, 16];

const READ: u32 = 2;
const WRITE: u32 = 1;
const LONG_BYTES: u32 = size_of::<libc::c_long>() as u32;

const GET_FLAGS: u32 = number(READ, b'f', 1, LONG_BYTES);
const SET_FLAGS: u32 = number(WRITE, b'f', 2, LONG_BYTES);
const GET_EXTENDED: u32 = number(READ, b'X', 31, EXTENDED_BYTES as u32);
const SET_EXTENDED: u32 = number(WRITE, b'X', 32, EXTENDED_BYTES as u32);

/// An ioctl's number, computed as by `_IOC`.
const fn number(direction: u32, kind: u8, index: u32, len_bytes: u32) -> u32 {
    direction << 30 | len_bytes << 16 | (kind as u32) << 8 | index
}

struct Bits {
    immutable: u32,
    append_only: u32,
    no_dump: u32,
    no_access_time: u32,
}

impl Bits {
    fn encode(&self, flags: InodeFlags) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(flags.immutable, self.immutable)
            | bit(flags.append_only, self.append_only)
            | bit(flags.no_dump, self.no_dump)
            | bit(flags.no_access_time, self.no_access_time)
    }

    fn decode(&self, bits: u32) -> Result<InodeFlags> {
        if bits & !(self.immutable | self.append_only | self.no_dump | self.no_access_time) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(InodeFlags {
            immutable: bits & self.immutable != 0,
            append_only: bits & self.append_only != 0,
            no_dump: bits & self.no_dump != 0,
            no_access_time: bits & self.no_access_time != 0,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlagsRequest {
    Get,
    GetExtended,
    Set(InodeFlags),
}

fn word(data: &[u8], at: usize) -> Result<u32> {
    let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(Errno::EINVAL)
}

/// Decodes a request; `None` if it is not about flags.
///
/// # Errors
/// `EOPNOTSUPP` for unsupported flags and features, `EINVAL` for too few bytes.
pub(super) fn flags_request(command: u32, data: &[u8]) -> Option<Result<FlagsRequest>> {
    match command {
        GET_FLAGS => Some(Ok(FlagsRequest::Get)),
        GET_EXTENDED => Some(Ok(FlagsRequest::GetExtended)),
        SET_FLAGS => Some(word(data, 0).and_then(|bits| PLAIN.decode(bits)).map(FlagsRequest::Set)),
        SET_EXTENDED => Some(extended(data).map(FlagsRequest::Set)),
        _ => None,
    }
}

fn extended(data: &[u8]) -> Result<InodeFlags> {
    if data.len() < EXTENDED_BYTES {
        return Err(Errno::EINVAL);
    }
    for at in FEATURES_AT {
        if word(data, at)? != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
    }
    EXTENDED.decode(word(data, 0)?)
}

/// The answer to a request that reads flags, of the length that the kernel expects.
pub(super) fn flags_answer(request: FlagsRequest, flags: InodeFlags, len_bytes: u32) -> Vec<u8> {
    let bits = match request {
        FlagsRequest::Get => PLAIN.encode(flags),
        FlagsRequest::GetExtended => EXTENDED.encode(flags),
        FlagsRequest::Set(_) => return Vec::new(),
    };
    let mut answer = bits.to_ne_bytes().to_vec();
    answer.resize((len_bytes as usize).min(EXTENDED_BYTES), 0);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: InodeFlags = InodeFlags { immutable: true, append_only: true, no_dump: true, no_access_time: true };

    #[test]
    fn numbers_are_linux_s() {
        assert_eq!(u64::from(GET_FLAGS), u64::from(libc::FS_IOC_GETFLAGS as u32));
        assert_eq!(u64::from(SET_FLAGS), u64::from(libc::FS_IOC_SETFLAGS as u32));
        assert_eq!((GET_EXTENDED, SET_EXTENDED), (0x801c_581f, 0x401c_5820));
        assert_eq!(flags_request(libc::FIONREAD as u32, &[]), None);
    }

    #[test]
    fn both_forms_round_trip() {
        for request in [FlagsRequest::Get, FlagsRequest::GetExtended] {
            let (command, len_bytes) = match request {
                FlagsRequest::Get => (SET_FLAGS, 4),
                _ => (SET_EXTENDED, EXTENDED_BYTES as u32),
            };
            for flags in [InodeFlags::default(), ALL, InodeFlags { append_only: true, ..InodeFlags::default() }] {
                let answer = flags_answer(request, flags, len_bytes);
                assert_eq!(answer.len(), len_bytes as usize);
                assert_eq!(flags_request(command, &answer), Some(Ok(FlagsRequest::Set(flags))));
            }
        }
        assert_eq!(flags_answer(FlagsRequest::Get, ALL, 8).len(), 8);
    }

    #[test]
    fn what_there_is_not_is_refused() {
        // FS_COMPR_FL; an extent size; a project; too few bytes.
        assert_eq!(flags_request(SET_FLAGS, &4_u32.to_ne_bytes()), Some(Err(Errno::EOPNOTSUPP)));
        for at in [4, 12, 16] {
            let mut data = [0; EXTENDED_BYTES];
            data[at] = 1;
            assert_eq!(flags_request(SET_EXTENDED, &data), Some(Err(Errno::EOPNOTSUPP)), "{at}");
        }
        assert_eq!(flags_request(SET_FLAGS, &[0; 3]), Some(Err(Errno::EINVAL)));
        assert_eq!(flags_request(SET_EXTENDED, &[0; 27]), Some(Err(Errno::EINVAL)));
    }
}
