//! The relay: while requests wait, others are received; never by more threads than wanted; all end.

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::thread;

use crate::relay::Relay;
use crate::sync::{Condvar, Mutex};
use crate::{explore, must_fail};

const THREADS: usize = 3;

#[derive(Clone, Copy)]
enum Request {
    Quick,
    /// Answered when another request has opened this gate.
    WaitFor(usize),
    Open(usize),
}

#[derive(Default)]
struct Kernel {
    queue: VecDeque<Request>,
    unmounted: bool,
    answered: usize,
    open: [bool; 2],
    /// Threads that wait for a request and have received one before.
    receiving: usize,
}

struct Mount {
    kernel: Mutex<Kernel>,
    changed: Condvar,
    relay: Relay,
    receivers_max: usize,
    steps_aside: bool,
}

impl Mount {
    /// The FUSE library's loop, with the adapter's steps in it.
    fn serve(&self) {
        let mut receives = false;
        let mut is_seated = false;
        while let Some(request) = self.receive(is_seated) {
            is_seated = true;
            if let Request::WaitFor(gate) = request {
                if self.steps_aside && std::mem::take(&mut receives) {
                    self.relay.step_aside();
                }
                let mut kernel = self.kernel.lock();
                while !kernel.open[gate] {
                    self.changed.wait(&mut kernel);
                }
            }
            let mut kernel = self.kernel.lock();
            if let Request::Open(gate) = request {
                kernel.open[gate] = true;
            }
            kernel.answered += 1;
            drop(kernel);
            self.changed.notify_all();
            if !receives {
                self.relay.take_place();
                receives = true;
            }
        }
        if is_seated {
            self.relay.end();
        }
    }

    fn receive(&self, is_seated: bool) -> Option<Request> {
        let mut kernel = self.kernel.lock();
        kernel.receiving += usize::from(is_seated);
        assert!(kernel.receiving <= self.receivers_max || kernel.unmounted, "more receivers than wanted");
        loop {
            let request = kernel.queue.pop_front();
            if request.is_some() || kernel.unmounted {
                kernel.receiving -= usize::from(is_seated);
                return request;
            }
            self.changed.wait(&mut kernel);
        }
    }
}

fn mount(receivers_max: usize, steps_aside: bool, requests: &[Request]) {
    let (kernel, changed) = (Mutex::new(Kernel::default()), Condvar::new());
    let mount = Arc::new(Mount { kernel, changed, relay: Relay::new(receivers_max), receivers_max, steps_aside });
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let mount = mount.clone();
            thread::spawn(move || mount.serve())
        })
        .collect();
    for &request in requests {
        mount.kernel.lock().queue.push_back(request);
        mount.changed.notify_all();
    }
    let mut kernel = mount.kernel.lock();
    while kernel.answered < requests.len() {
        mount.changed.wait(&mut kernel);
    }
    kernel.unmounted = true;
    drop(kernel);
    mount.changed.notify_all();
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
}

/// Two requests wait, and those that release them come behind; in between every thread has been a receiver and slept.
const BLOCKED: [Request; 9] = [
    Request::Quick,
    Request::Quick,
    Request::Quick,
    Request::WaitFor(0),
    Request::WaitFor(1),
    Request::Open(1),
    Request::Open(0),
    Request::WaitFor(0),
    Request::Quick,
];

#[test]
fn requests_that_wait_keep_nobody_waiting() {
    explore(|| mount(1, true, &BLOCKED));
}

#[test]
fn nor_with_two_receivers() {
    explore(|| mount(2, true, &BLOCKED));
}

#[test]
fn canary_who_does_not_step_aside_is_found() {
    must_fail("waiting as a receiver", || mount(1, false, &BLOCKED));
}
