//! The disk of the model.

/// A disk on which a read takes a seek, unless it goes on where the last one ended, and the time of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Seconds of a seek.
    pub seek_seconds: f64,
    /// Bytes read a second, in a row.
    pub bytes_per_second: f64,
}
