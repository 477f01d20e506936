//! A network that fails: a proxy of HTTP that loses, cuts, repeats and answers in the server's place, request by request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The connection ends before the request reaches the server.
    RequestLost,
    /// The server gets half of the request.
    RequestCut,
    /// The server answers, and the connection ends.
    AnswerLost,
    /// Half of the answer comes.
    AnswerCut,
    /// The server gets the request twice. The second answer comes.
    Twice,
    /// Another answer comes in the server's place.
    Status(&'static str),
    /// The server denies the request with this code.
    Denied(&'static str),
}

#[derive(Default)]
struct Plan {
    next: Option<Fault>,
    all: Option<Fault>,
}

/// A proxy before a server on this machine.
pub struct Proxy {
    pub port: u16,
    plan: Arc<Mutex<Plan>>,
    failed: Arc<AtomicU64>,
}

impl Proxy {
    /// Listens, until the process ends.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (plan, failed) = (Arc::<Mutex<Plan>>::default(), Arc::<AtomicU64>::default());
        let (shared, counted) = (Arc::clone(&plan), Arc::clone(&failed));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (plan, failed) = (Arc::clone(&shared), Arc::clone(&counted));
                std::thread::spawn(move || {
                    let mut client = connection.unwrap();
                    let Some(request) = read_message(&mut client) else { return };
                    let fault = {
                        let mut plan = plan.lock().unwrap();
                        plan.next.take().or(plan.all)
                    };
                    failed.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
                    if let Some(answer) = answer(server, &request, fault) {
                        // The client may have gone.
                        let _heard = client.write_all(&answer);
                    }
                });
            }
        });
        Self { port, plan, failed }
    }

    /// Fails the next request.
    pub fn fail_next(&self, fault: Fault) {
        self.plan.lock().unwrap().next = Some(fault);
    }

    /// Fails all requests from now on.
    pub fn fail_all(&self, fault: Fault) {
        self.plan.lock().unwrap().all = Some(fault);
    }

    /// Fails none from now on.
    pub fn heal(&self) {
        *self.plan.lock().unwrap() = Plan::default();
    }

    /// Requests that failed since this was asked last.
    pub fn failed(&self) -> u64 {
        self.failed.swap(0, Ordering::Relaxed)
    }
}

/// Returns the answer to a request, or the part of it that comes.
fn answer(server: u16, request: &[u8], fault: Option<Fault>) -> Option<Vec<u8>> {
    match fault {
        None => Some(ask(server, request)),
        Some(Fault::RequestLost) => None,
        Some(Fault::RequestCut) => {
            let mut connection = TcpStream::connect(("127.0.0.1", server)).unwrap();
            connection.write_all(&request[..request.len() / 2]).unwrap();
            None
        }
        Some(Fault::AnswerLost) => {
            ask(server, request);
            None
        }
        Some(Fault::AnswerCut) => {
            let answer = ask(server, request);
            Some(answer[..answer.len() / 2].to_vec())
        }
        Some(Fault::Twice) => {
            ask(server, request);
            Some(ask(server, request))
        }
        Some(Fault::Status(status)) => {
            Some(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes())
        }
        Some(Fault::Denied(code)) => {
            let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>denied</Message></Error>");
            let head = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            Some((head + &body).into_bytes())
        }
    }
}

/// Sends a request to the server and reads the answer.
fn ask(server: u16, request: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(("127.0.0.1", server)).unwrap();
    connection.write_all(request).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    answer
}

/// Reads a request, and asks in it for the end of the connection behind the answer. `None` if the client sends none.
fn read_message(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let head_bytes = loop {
        if let Some(end) = message.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        match client.read(&mut buffer).unwrap_or(0) {
            0 => return None,
            len => message.extend_from_slice(&buffer[..len]),
        }
    };
    let head = String::from_utf8(message[..head_bytes].to_vec()).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    while message.len() < head_bytes + length.unwrap_or(0) {
        match client.read(&mut buffer).unwrap_or(0) {
            0 => return None,
            len => message.extend_from_slice(&buffer[..len]),
        }
    }
    let (line, rest) = head.split_once("\r\n").unwrap();
    let head = format!("{line}\r\nConnection: close\r\n{rest}");
    Some([head.as_bytes(), &message[head_bytes..]].concat())
}
