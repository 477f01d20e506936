//! Descriptors that travel with a request. The tool opens the files, so the daemon needs neither their paths, which may belong to
//! another mount namespace, nor the right to open them.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Descriptors of a request at most.
const DESCRIPTORS_MAX: usize = 3;

pub(super) fn send(mut stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.is_empty() {
        return stream.write_all(bytes);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("the descriptors do not fit into a message"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Reads from a socket and keeps the first descriptors that arrive. Closes all others.
pub(super) struct Incoming<'a> {
    pub(super) stream: &'a UnixStream,
    pub(super) descriptors: &'a RefCell<Vec<OwnedFd>>,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(self.stream, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(arrived) = message {
                let mut descriptors = self.descriptors.borrow_mut();
                for descriptor in arrived {
                    if descriptors.len() < DESCRIPTORS_MAX {
                        descriptors.push(descriptor);
                    }
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
    fn descriptors_arrive_with_their_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        // More than fits into the socket at once.
        let line = vec![b'x'; 1 << 20];
        let descriptors = RefCell::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&ours, &line, &[file.as_fd()]).unwrap();
                send(&ours, b"more", &[file.as_fd(), file.as_fd(), file.as_fd()]).unwrap();
                send(&ours, b"without", &[]).unwrap();
                ours.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut read = Vec::new();
            Incoming { stream: &theirs, descriptors: &descriptors }.read_to_end(&mut read).unwrap();
            assert_eq!(read, [line.as_slice(), b"more", b"without"].concat());
        });
        let mut content = String::new();
        let mut descriptors = descriptors.into_inner();
        assert_eq!(descriptors.len(), DESCRIPTORS_MAX, "more than that are closed");
        let mut received = std::fs::File::from(descriptors.remove(0));
        received.seek(SeekFrom::Start(0)).unwrap();
        received.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
    }
}
