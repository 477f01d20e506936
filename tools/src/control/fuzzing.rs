//! The decoders of the control socket, for the fuzz targets.

use super::protocol::{PROTOCOL_VERSION, Reply, decode, decode_request, encode, read_line};

/// Reads lines as a daemon and as a tool would, and then the same bytes as a request of this version of the protocol.
pub fn fuzz_control_lines(bytes: &[u8]) {
    lines(bytes);
    lines(&[format!(r#"{{"protocol":{PROTOCOL_VERSION},"request":"#).as_bytes(), bytes, b"}\n"].concat());
}

fn lines(mut reader: &[u8]) {
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
