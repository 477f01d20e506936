//! Frames of a connection, reasons, and the check of timely's messages.

use crate::{CHUNK_BYTES_MAX, Error};
use dedupfs_spool::take;

/// Bytes of a message of timely at most: a parcel with the longest chunk, and its envelope.
pub(super) const MESSAGE_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64 + (4 << 20);
/// A header of timely: channel, source, first target, end of targets, length, number; big-endian.
const HEADER_BYTES: usize = 48;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of timely.
    Data = 1,
    /// Nothing more comes, and all is well.
    End = 2,
    /// A [`Failure`].
    Reason = 3,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Data, Self::End, Self::Reason].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The reason of the end of a round, as machines tell it to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    is_loss: bool,
    /// The machine that is lost, or that failed first.
    machine: u32,
    why: String,
}

impl Failure {
    /// Bytes of a reason at most.
    pub(super) const BYTES_MAX: usize = 1024;

    /// The reason of an error at a machine.
    pub(super) fn of(me: usize, error: &Error) -> Self {
        match error {
            Error::Lost { machine, why } => Self { is_loss: true, machine: *machine as u32, why: why.clone() },
            Error::Failed { machine, why } => Self { is_loss: false, machine: *machine as u32, why: why.clone() },
            other => Self { is_loss: false, machine: me as u32, why: other.to_string() },
        }
    }

    /// The error of a machine that was told by another one.
    pub(super) fn told_by(self, teller: usize) -> Error {
        let Self { is_loss, machine, why } = self;
        let machine = machine as usize;
        match is_loss {
            true => Error::Lost { machine, why: format!("{why} (machine {teller} tells it)") },
            false => Error::Failed { machine, why },
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.is_loss)];
        bytes.extend_from_slice(&self.machine.to_le_bytes());
        let end = self.why.floor_char_boundary(Self::BYTES_MAX - bytes.len());
        bytes.extend_from_slice(self.why.get(..end).unwrap_or_default().as_bytes());
        bytes
    }

    pub(super) fn decode(mut from: &[u8]) -> Option<Self> {
        let [is_loss] = take(&mut from)?;
        let machine = u32::from_le_bytes(take(&mut from)?);
        let why = String::from_utf8_lossy(from).chars().filter(|letter| !letter.is_control()).collect();
        (is_loss <= 1).then_some(Self { is_loss: is_loss == 1, machine, why })
    }
}

/// Follows the messages in the bytes of timely, and checks their headers.
pub(super) struct Messages {
    from: u64,
    to: u64,
    header: Vec<u8>,
    left_bytes: u64,
    has_ended: bool,
}

impl Messages {
    pub(super) fn new(from: usize, to: usize) -> Self {
        let header = Vec::with_capacity(HEADER_BYTES);
        Self { from: from as u64, to: to as u64, header, left_bytes: 0, has_ended: false }
    }

    /// Whether the last message has come.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes the next bytes. False if no machine sends them.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.has_ended {
                return false;
            }
            let wanted = if self.left_bytes > 0 {
                usize::try_from(self.left_bytes).unwrap_or(usize::MAX)
            } else {
                HEADER_BYTES - self.header.len()
            };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.left_bytes > 0 {
                self.left_bytes -= now.len() as u64;
                continue;
            }
            self.header.extend_from_slice(now);
            if self.header.len() == HEADER_BYTES {
                if !self.take_header() {
                    return false;
                }
                self.header.clear();
            }
        }
        true
    }

    fn take_header(&mut self) -> bool {
        let mut fields = self.header.as_slice();
        let mut next = || take(&mut fields).map_or(0, u64::from_be_bytes);
        let (_, source, target, targets_end, length) = (next(), next(), next(), next(), next());
        self.left_bytes = length;
        // The last header has nothing but zeros.
        self.has_ended = length == 0;
        self.has_ended
            || (length <= MESSAGE_BYTES_MAX && source == self.from && (target, targets_end) == (self.to, self.to + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(source: u64, target: u64, length: u64) -> Vec<u8> {
        let fields = [7, source, target, target + 1, length, 9].map(u64::to_be_bytes);
        [fields.concat(), vec![3; length.min(1000) as usize]].concat()
    }

    #[test]
    fn messages_of_the_right_machine_are_taken_however_they_are_cut() {
        let bytes = [message(2, 1, 5), message(2, 1, 1000), vec![0; HEADER_BYTES]].concat();
        for cut in 1..bytes.len() {
            let mut messages = Messages::new(2, 1);
            assert!(bytes.chunks(cut).all(|part| messages.take(part)));
            assert!(messages.has_ended() && !messages.take(&[0]));
        }
    }

    #[test]
    fn messages_that_are_too_long_or_of_another_machine_are_refused() {
        for wrong in [message(1, 1, 5), message(2, 2, 5), message(2, 1, MESSAGE_BYTES_MAX + 1), message(2, 1, u64::MAX)]
        {
            assert!(!Messages::new(2, 1).take(&wrong));
        }
    }

    #[test]
    fn a_reason_names_the_machine_that_failed_first() {
        let lost = Error::Lost { machine: 3, why: "gone".into() };
        let told = Failure::decode(&Failure::of(1, &lost).encode()).unwrap().told_by(1);
        assert!(matches!(&told, Error::Lost { machine: 3, why } if why.contains("machine 1")), "{told}");
        let failed = Failure::decode(&Failure::of(1, &Error::Pool("full".into())).encode()).unwrap().told_by(1);
        assert!(matches!(&failed, Error::Failed { machine: 1, why } if why.contains("full")), "{failed}");
        let again = Failure::decode(&Failure::of(2, &failed).encode()).unwrap().told_by(2);
        assert_eq!(again.to_string(), failed.to_string());
    }

    proptest! {
        #[test]
        fn any_reason_fits_and_any_bytes_are_read_or_refused(why: String, repeat in 1..100_usize, bytes: Vec<u8>) {
            let failure = Failure { is_loss: true, machine: 1, why: why.repeat(repeat) };
            prop_assert!(failure.encode().len() <= Failure::BYTES_MAX);
            prop_assert!(Failure::decode(&failure.encode()).is_some());
            let _ = Failure::decode(&bytes);
            let _ = Messages::new(0, 0).take(&bytes);
        }
    }
}
