//! The filter that passes chosen system calls to this program, and the answers to them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Returns a filter that passes these calls on to this program and allows all others.
pub(crate) fn program(numbers: &[i64]) -> Vec<libc::sock_filter> {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number is the first field of the filter's input.
    let mut program = vec![filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for number in numbers {
        let number = u32::try_from(*number).expect("numbers of calls are small");
        // Skip the next statement for any other number.
        program.push(filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number));
        program.push(filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    program
}

/// Puts this process under the filter, and sends the descriptor that delivers the calls.
pub(crate) fn install_and_send(program: &[libc::sock_filter], sender: &UnixStream) -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let description = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the description points at a program of that length, which the kernel reads during the call.
    let code = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const description,
        )
    };
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor. It stays open until exec closes it, because nobody answers yet the calls that the
    // library may make to close it.
    let listener = unsafe { BorrowedFd::borrow_raw(code as i32) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(sender, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    Ok(())
}

pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

#[derive(Clone, Copy)]
pub(crate) enum Answer {
    GoOn,
    Fail(i32),
}

pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn receive(receiver: &UnixStream) -> io::Result<Self> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(receiver, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        descriptor.map(Self).ok_or_else(|| io::Error::other("no filter was installed"))
    }

    /// Returns the next call; `None` once all processes under the filter have ended.
    pub(crate) fn next(&self) -> io::Result<Option<Call>> {
        loop {
            let mut descriptors = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut descriptors, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            let events = descriptors[0].revents();
            if events.contains(PollFlags::IN) {
                // SAFETY: all zeros is a value of this structure of numbers; the kernel asks for zeros.
                let mut call: libc::seccomp_notif = unsafe { MaybeUninit::zeroed().assume_init() };
                // SAFETY: the kernel writes one such structure.
                if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } == 0 {
                    let libc::seccomp_notif { id, pid, data, .. } = call;
                    return Ok(Some(Call { id, pid, number: i64::from(data.nr), arguments: data.args }));
                }
                match io::Error::last_os_error() {
                    // The calling thread was killed meanwhile.
                    error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                    error => return Err(error),
                }
            } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(None);
            }
        }
    }

    pub(crate) fn answer(&self, id: u64, answer: Answer) -> io::Result<()> {
        let (error, flags) = match answer {
            Answer::GoOn => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Fail(errno) => (-errno, 0),
        };
        let mut response = libc::seccomp_notif_resp { id, val: 0, error, flags };
        // SAFETY: the kernel reads one such structure.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // The calling thread was killed, or a signal came: the call is made again, or never.
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        }
    }
}
