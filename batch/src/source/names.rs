//! Names of what drivers make at a source.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Beginning of all names that are ours.
pub(super) const OURS: &str = "dedupfs-";

/// Returns a number that tells machines, or disks, apart (FNV-1a).
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Encodes a path for the address of an export.
pub(super) fn percent_encoded(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    let encoded = |byte: &u8| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    path.as_os_str().as_bytes().iter().map(encoded).collect()
}

/// Returns the name of this moment: its time in UTC, and some chance.
pub(super) fn new_token() -> Result<String, String> {
    let mut chance = [0_u8; 4];
    let file = std::fs::File::open("/dev/urandom");
    let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut chance));
    read.map_err(|error| format!("cannot read random bytes: {error}"))?;
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    Ok(format!("{now}-{:08x}", u32::from_be_bytes(chance)))
}
