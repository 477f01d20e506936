//! Threads: tasks of the world.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use shuttle::thread::{Scope, ScopedJoinHandle, ThreadId, current, scope};
pub use std::thread::panicking;

use crate::step::Step;
use crate::world::state;
use crate::world::wait;

/// A step that lingers takes less than two to the power of this many nanoseconds.
const LINGER_BITS: u64 = 25;

/// A way to start a thread with a name.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
}

/// A thread that can be waited for.
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: shuttle::thread::JoinHandle<T>,
    is_finished: Arc<AtomicBool>,
}

impl<T> JoinHandle<T> {
    /// Waits for the end of the thread, and returns its result.
    ///
    /// # Errors
    /// None: a panic of a thread ends the world.
    pub fn join(self) -> std::thread::Result<T> {
        self.inner.join()
    }

    /// The thread.
    pub fn thread(&self) -> &shuttle::thread::Thread {
        self.inner.thread()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Relaxed)
    }
}

/// Counts a thread for as long as it lives, and tells its end.
struct Counted(Arc<AtomicBool>);

impl Counted {
    fn new() -> Self {
        state::count_thread(true);
        Self(Arc::default())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        state::count_thread(false);
        self.0.store(true, Ordering::Relaxed);
    }
}

fn counted<T>(counted: Counted, run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _counted = counted;
        run()
    }
}

impl Builder {
    /// A thread without a name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the thread.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self { name: Some(name) }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// None.
    pub fn spawn<T: Send + 'static>(self, run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        let lives = Counted::new();
        let is_finished = lives.0.clone();
        let builder = shuttle::thread::Builder::new().name(self.name.unwrap_or_default());
        builder.spawn(counted(lives, run)).map(|inner| JoinHandle { inner, is_finished })
    }

    /// Starts the thread, which ends within the scope.
    ///
    /// # Errors
    /// None.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Ok(scope.spawn(counted(Counted::new(), run)))
    }
}

/// Waits for this time.
pub fn sleep(time: Duration) {
    if state::in_world() { wait::sleep(time) } else { std::thread::sleep(time) }
}

/// Takes its time now and then, or is the last the process does: otherwise other tasks rarely come between two parts of a
/// step.
pub fn linger(step: Step) {
    if state::in_world() && !state::is_atomic() && !std::thread::panicking() {
        let habits = state::habits();
        let is_one_in = |count: u32| count > 0 && state::random(u64::from(count)) == 0;
        if is_one_in(habits.linger_one_in) {
            wait::sleep(Duration::from_nanos(1 << state::random(LINGER_BITS)));
            if step == habits.last_step && is_one_in(habits.last_one_in) {
                state::kill();
            }
        }
    }
}

/// Lets another thread go on.
pub fn yield_now() {
    if state::in_world() { state::yield_now() } else { std::thread::yield_now() }
}

/// Number of processors.
///
/// # Errors
/// None.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    Ok(NonZero::new(state::habits().processors).unwrap_or(NonZero::<usize>::MIN))
}
