//! A connection behind the negotiation. Any thread may send a request; of those that wait, one receives for all.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::handshake::Agreed;
use crate::reply::{Asked, From, Reply};
use crate::socket::{Input, Socket};
use crate::wire::{self, Fields};
use crate::{Error, Result};

/// Requests on the way at most.
const REQUESTS_MAX: usize = 16;
/// Bytes of one request at most. Replies take [`REQUESTS_MAX`] times as many, as long as the connection lasts, and once for each thread that
/// takes one.
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// How often a wait for another thread asks whether it is to go on.
const STEP: Duration = Duration::from_millis(250);

/// A connection to an export.
#[derive(Debug)]
pub struct Connection {
    agreed: Agreed,
    socket: Socket,
    sending: Mutex<()>,
    state: Mutex<State>,
    /// A reply has come, or the one that receives is another.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    next_cookie: u64,
    /// Requests that were begun, until their whole reply is taken. `None`: the one that receives has it.
    replies: HashMap<u64, Option<Reply>>,
    /// Memory of replies that were taken, for the next ones: at most [`REQUESTS_MAX`].
    spare: Vec<Vec<u8>>,
    /// `None` while a thread receives.
    input: Option<Input>,
    failure: Option<String>,
    /// Another process goes on with the connection.
    is_given_up: bool,
}

impl Connection {
    pub(crate) fn new(socket: Socket, input: Input, agreed: Agreed) -> Self {
        let state = State {
            next_cookie: 0,
            replies: HashMap::new(),
            spare: Vec::new(),
            input: Some(input),
            failure: None,
            is_given_up: false,
        };
        Self { agreed, socket, sending: Mutex::new(()), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Goes on with a connection of another process.
    ///
    /// # Errors
    /// The outcome of the negotiation is impossible; the socket takes no limits of time.
    pub fn resume(socket: OwnedFd, agreed: Agreed) -> Result<Self> {
        agreed.check()?;
        Ok(Self::new(Socket::new(socket)?, Input::new(), agreed))
    }

    /// Gives up the connection for another process.
    ///
    /// # Errors
    /// The connection is broken, or the server sent something unasked.
    pub fn into_parts(self) -> Result<(OwnedFd, Agreed)> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(Error::Failed(failure.clone()));
        }
        if !state.replies.is_empty() || state.input.as_ref().is_none_or(Input::has_rest) {
            return Err(Error::protocol("it sends what nobody asked for"));
        }
        let socket = self.socket.try_clone()?;
        state.is_given_up = true;
        drop(state);
        Ok((socket, self.agreed.clone()))
    }

    /// The outcome of the negotiation.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether nothing more can be asked.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Fills `into` with the bytes from `offset` on. `keep_waiting` is asked a few times each second.
    ///
    /// # Errors
    /// `Limit`, behind the end. After any other error, also `GivenUp` of one caller, the connection is of no use to any thread.
    pub fn read(&self, offset: u64, into: &mut [u8], keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        let size_bytes = self.agreed.size_bytes;
        let Some(end) = offset.checked_add(into.len() as u64).filter(|end| *end <= size_bytes) else {
            let bytes = into.len();
            return Err(Error::Limit(format!(
                "the export has {size_bytes} bytes: {bytes} at {offset} lie behind its end"
            )));
        };
        let block_bytes = u64::from(self.agreed.block_bytes);
        let step_bytes = u64::from(REQUEST_BYTES_MAX.min(self.agreed.payload_bytes_max));
        let step_bytes = step_bytes - step_bytes % block_bytes;
        let mut next = offset - offset % block_bytes;
        let mut begun: VecDeque<(u64, Range<u64>)> = VecDeque::new();
        let mut heads = Vec::new();
        loop {
            // With requests begun it never waits for room: others may wait for the same.
            while next < end {
                let last = (next + step_bytes).min(end.next_multiple_of(block_bytes)).min(size_bytes);
                let asked = Asked::Data(next..last);
                let Some(cookie) = self.begin(asked, &mut heads, begun.is_empty(), keep_waiting)? else { break };
                begun.push_back((cookie, next..last));
                next = last;
            }
            // Together: each call wakes the server.
            self.send(&mut heads, keep_waiting)?;
            let Some((cookie, range)) = begun.pop_front() else { return Ok(()) };
            // The replies to the other requests would take room for ever.
            let reply = self.wait(cookie, keep_waiting).map_err(|error| self.fail(error))?;
            let (from, to) = (range.start.max(offset), range.end.min(end));
            let part = reply.data.get((from - range.start) as usize..(to - range.start) as usize);
            let place = into.get_mut((from - offset) as usize..(to - offset) as usize);
            if let (Some(place), Some(part)) = (place, part) {
                place.copy_from_slice(part);
            }
            let spare = &mut self.state().spare;
            if spare.len() < REQUESTS_MAX {
                spare.push(reply.data);
            }
        }
    }

    /// Asks for the extents of a context in a range, and returns the reply.
    pub(crate) fn status(&self, context: u32, range: Range<u64>, keep_waiting: &dyn Fn() -> bool) -> Result<Reply> {
        let mut heads = Vec::new();
        let cookie = self.begin(Asked::Status(range, context), &mut heads, true, keep_waiting)?;
        self.send(&mut heads, keep_waiting)?;
        self.wait(cookie.unwrap_or_default(), keep_waiting)
    }

    /// Begins a request, and adds its head to those that are to be sent. `None` if too many are begun, and the caller does not wait.
    fn begin(
        &self,
        asked: Asked,
        heads: &mut Vec<u8>,
        waits: bool,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Option<u64>> {
        let (command, range) = match &asked {
            Asked::Data(range) => (wire::COMMAND_READ, range.clone()),
            Asked::Status(range, _) => (wire::COMMAND_BLOCK_STATUS, range.clone()),
        };
        let mut state = self.state();
        loop {
            if let Some(failure) = &state.failure {
                return Err(Error::Failed(failure.clone()));
            }
            if state.replies.len() < REQUESTS_MAX {
                break;
            }
            if !waits {
                return Ok(None);
            }
            state = self.pause(state, keep_waiting)?;
        }
        let cookie = state.next_cookie;
        state.next_cookie += 1;
        let is_data = matches!(asked, Asked::Data(_));
        let spare = if is_data { state.spare.pop() } else { None };
        state.replies.insert(cookie, Some(Reply::new(asked, spare.unwrap_or_default())));
        heads.extend(wire::request(command, cookie, range.start, (range.end - range.start) as u32));
        Ok(Some(cookie))
    }

    /// Sends the heads of begun requests together, and empties `heads`.
    fn send(&self, heads: &mut Vec<u8>, keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        if heads.is_empty() {
            return Ok(());
        }
        let sent = {
            let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            self.socket.send(heads, keep_waiting)
        };
        heads.clear();
        // Half of a head may be on the way.
        sent.map_err(|error| self.fail(error))
    }

    /// Waits for the whole reply to a request.
    fn wait(&self, cookie: u64, keep_waiting: &dyn Fn() -> bool) -> Result<Reply> {
        let mut state = self.state();
        loop {
            if let Some(failure) = &state.failure {
                return Err(Error::Failed(failure.clone()));
            }
            if let Some(Some(reply)) = state.replies.get(&cookie)
                && reply.is_whole
            {
                let reply = state.replies.remove(&cookie).flatten();
                drop(state);
                self.changed.notify_all();
                return reply.ok_or_else(|| Error::protocol("a reply is gone"))?.finish();
            }
            let Some(mut input) = state.input.take() else {
                state = self.pause(state, keep_waiting)?;
                continue;
            };
            drop(state);
            let received = self.receive(&mut input, keep_waiting).map_err(|error| self.fail(error));
            state = self.state();
            state.input = Some(input);
            self.changed.notify_all();
            received?;
        }
    }

    /// Receives one reply, or one chunk of it.
    fn receive(&self, input: &mut Input, keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        let mut from = From { input, socket: &self.socket, keep_waiting };
        let is_structured = self.agreed.is_structured;
        let (cookie, reply) = match u32::from_be_bytes(from.take()?) {
            wire::SIMPLE_REPLY_MAGIC => {
                let head: [u8; 12] = from.take()?;
                let mut head = Fields(&head);
                let error = head.u32().unwrap_or_default();
                let (cookie, mut reply) = self.reply_to(head.u64())?;
                reply.simple(error, is_structured, &mut from)?;
                (cookie, reply)
            }
            wire::STRUCTURED_REPLY_MAGIC if is_structured => {
                let head: [u8; 16] = from.take()?;
                let mut head = Fields(&head);
                let (flags, kind) = (head.u16().unwrap_or_default(), head.u16().unwrap_or_default());
                let (cookie, mut reply) = self.reply_to(head.u64())?;
                reply.chunk((kind, flags), head.u32().unwrap_or_default(), &mut from)?;
                (cookie, reply)
            }
            magic => return Err(Error::protocol(format!("a reply begins with {magic:#x}"))),
        };
        self.state().replies.insert(cookie, Some(reply));
        Ok(())
    }

    /// Takes the begun reply to a request.
    fn reply_to(&self, cookie: Option<u64>) -> Result<(u64, Reply)> {
        let cookie = cookie.unwrap_or_default();
        let mut state = self.state();
        let reply = state.replies.get_mut(&cookie).and_then(Option::take).filter(|reply| !reply.is_whole);
        Ok((cookie, reply.ok_or_else(|| Error::protocol("it replies to what nobody asked"))?))
    }

    /// Waits a moment for another thread.
    fn pause<'a>(
        &self,
        state: MutexGuard<'a, State>,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        let (state, _) = self.changed.wait_timeout(state, STEP).unwrap_or_else(PoisonError::into_inner);
        if keep_waiting() {
            return Ok(state);
        }
        drop(state);
        Err(self.fail(Error::GivenUp))
    }

    /// Notes that nothing more can be received.
    fn fail(&self, error: Error) -> Error {
        self.state().failure.get_or_insert(error.to_string());
        self.changed.notify_all();
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    /// Takes leave in order.
    fn drop(&mut self) {
        let state = self.state();
        if !state.is_given_up && state.failure.is_none() {
            let _ = self.socket.send(&wire::request(wire::COMMAND_DISCONNECT, u64::MAX, 0, 0), &|| false);
        }
    }
}
