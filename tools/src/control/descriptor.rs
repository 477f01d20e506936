//! A descriptor that travels with a request. The tool opens the file, so the daemon needs neither its path, which may belong to another
//! mount namespace, nor the right to open it.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

pub(super) fn send(mut stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(descriptor) = descriptor else { return stream.write_all(bytes) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("a descriptor does not fit into a message"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Reads from a socket and keeps the first descriptor that arrives. Closes all others.
pub(super) struct Incoming<'a> {
    pub(super) stream: &'a UnixStream,
    pub(super) descriptor: &'a RefCell<Option<OwnedFd>>,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(self.stream, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    self.descriptor.borrow_mut().get_or_insert(descriptor);
                }
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        // More than fits into the socket at once.
        let line = vec![b'x'; 1 << 20];
        let descriptor = RefCell::new(None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&ours, &line, Some(file.as_fd())).unwrap();
                send(&ours, b"more", Some(file.as_fd())).unwrap();
                send(&ours, b"without", None).unwrap();
                ours.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut read = Vec::new();
            Incoming { stream: &theirs, descriptor: &descriptor }.read_to_end(&mut read).unwrap();
            assert_eq!(read, [line.as_slice(), b"more", b"without"].concat());
        });
        let mut content = String::new();
        let mut received = std::fs::File::from(descriptor.into_inner().unwrap());
        received.seek(SeekFrom::Start(0)).unwrap();
        received.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
    }
}
