//! Names and paths in messages and reports.

/// Returns a name or path as text; bytes that are no UTF-8 are escaped.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn only_bytes_that_are_no_text_are_escaped() {
        assert_eq!(shown("café".as_bytes()), "café");
        assert_eq!(shown(b"\xff"), "\\xff");
    }
}
