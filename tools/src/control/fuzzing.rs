//! The decoders of the control socket, for the fuzz targets.

use super::protocol::{Reply, decode, decode_request, encode, read_line};

/// Reads a stream of lines as a daemon and as a tool would.
pub fn lines(bytes: &[u8]) {
    let mut reader = bytes;
    while let Ok(Some(line)) = read_line(&mut reader, 4096) {
        assert!(line.len() < 4096);
        if let Ok(request) = decode_request(&line) {
            assert!(serde_json::to_value(&request).is_ok());
        }
        if let Ok(reply) = decode::<Reply>(&line) {
            let again = encode(&reply).expect("encodes");
            assert_eq!(again.iter().filter(|&&byte| byte == b'\n').count(), 1);
        }
    }
}
