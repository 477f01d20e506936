//! Whether the roots have room for more: asked before bytes are taken, so that a full disk is an ENOSPC at the write
//! that does not fit and never a surprise later. A reserve stays for deleting and reclaiming.

use std::sync::Arc;
use std::time::Instant;

use dedupfs_store::device::Device;
use parking_lot::Mutex;

use crate::config::SPACE_CHECK_INTERVAL;
use crate::error::{EngineError, Result};

#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    /// Free bytes then, less what has been admitted since.
    left_bytes: u64,
}

/// Watches the free space of one device.
pub struct SpaceGuard {
    device: Arc<dyn Device>,
    reserve_bytes: u64,
    reading: Mutex<Option<Reading>>,
}

impl SpaceGuard {
    /// A guard that keeps `reserve_bytes` (or an eighth of a small device) free. What a file's stream holds between its write and
    /// its container, some 16 MiB, is in no reading: the reserve must cover it, or a later sync would find the disk full.
    ///
    /// # Errors
    /// The device does not tell its space.
    pub fn new(device: Arc<dyn Device>, reserve_bytes: u64) -> Result<Self> {
        let total_bytes = device.space()?.total_bytes;
        Ok(Self { device, reserve_bytes: reserve_bytes.min(total_bytes / 8), reading: Mutex::default() })
    }

    /// Bytes kept free.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Takes `bytes` of the room; `in_flight_bytes` have been taken before and are not on the device yet.
    ///
    /// # Errors
    /// `NoSpace` if they would use the reserve.
    pub fn admit(&self, bytes: u64, in_flight_bytes: impl FnOnce() -> u64) -> Result<()> {
        let mut reading = self.reading.lock();
        let mut current = match *reading {
            Some(current) if current.at.elapsed() < SPACE_CHECK_INTERVAL && current.left_bytes >= bytes => current,
            _ => {
                let available = self.device.space()?.available_bytes;
                let left_bytes = available.saturating_sub(self.reserve_bytes).saturating_sub(in_flight_bytes());
                Reading { at: Instant::now(), left_bytes }
            }
        };
        let left = current.left_bytes.checked_sub(bytes);
        current.left_bytes = left.unwrap_or(current.left_bytes);
        *reading = Some(current);
        left.map(|_| ()).ok_or(EngineError::NoSpace)
    }
}
