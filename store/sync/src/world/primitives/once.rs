//! A value that is made once.

use super::Mutex;

/// A cell that is written once. A task that makes the value may wait; others that want it wait for it.
#[derive(Debug)]
pub struct OnceLock<T> {
    making: Mutex<()>,
    inner: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// Makes an empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self { making: Mutex::new(()), inner: std::sync::OnceLock::new() }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.inner.get()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// There is one; returns the other.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.inner.set(value)
    }

    /// The value; makes it if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.inner.get() {
            return value;
        }
        let _making = self.making.lock();
        if self.inner.get().is_none() {
            let _set = self.inner.set(make());
        }
        self.inner.get().expect("was set")
    }

    /// Takes the value out.
    pub fn take(&mut self) -> Option<T> {
        self.inner.take()
    }
}
