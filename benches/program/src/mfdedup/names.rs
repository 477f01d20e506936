//! The order of the names of versions.

/// A part of a name: a number, or text. Numbers come first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Digits without leading zeros. The longer ones are larger.
    Number(usize, String),
    /// Anything else.
    Text(String),
}

/// Returns a key by which names sort as versions do: `v9` before `v10`.
pub fn key(name: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let len = rest.find(|letter: char| letter.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(len);
        parts.push(if is_number {
            let digits = part.trim_start_matches('0');
            Part::Number(digits.len(), digits.to_owned())
        } else {
            Part::Text(part.to_owned())
        });
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_by_value() {
        let mut names = ["v10", "v9.10", "v9.9", "v009.2", "v9", "w1", "v"];
        names.sort_by_key(|name| key(name));
        assert_eq!(names, ["v", "v9", "v009.2", "v9.9", "v9.10", "v10", "w1"]);
    }
}
