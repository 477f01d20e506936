//! The words of comments and documents: a noun stands where `what` or `who` would stand in place of a name.

use std::fs;
use std::path::{Path, PathBuf};

/// Words in 1,000 at most.
const WHAT_MAX: f64 = 2.0;
const WHO_MAX: f64 = 0.3;

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("is an entry").path());
    let is_ours = |path: &PathBuf| !path.file_name().is_some_and(|name| name == "target" || name == ".git");
    entries.filter(is_ours).flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the prose of a file: comments of sources and scripts, and documents outside of code.
fn prose(path: &Path) -> String {
    let kind = path.extension().map(|extension| extension.to_string_lossy().into_owned()).unwrap_or_default();
    if !["rs", "md", "sh"].contains(&kind.as_str()) {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut is_code = false;
    let lines = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = match kind.as_str() {
            "rs" => line.strip_prefix("//")?.trim_start_matches(['/', '!', ' ']),
            "sh" => line.strip_prefix('#')?,
            _ => line,
        };
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some(line)
    });
    // Code inside of a sentence is in every second part.
    let lines: Vec<&str> = lines.collect();
    lines.join(" ").split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn prose_names_the_noun() {
    let (mut words, mut whats, mut whos) = (0_u32, 0_u32, 0_u32);
    for path in files(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        for word in prose(&path).split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty()) {
            words += 1;
            whats += u32::from(word.eq_ignore_ascii_case("what"));
            whos += u32::from(word.eq_ignore_ascii_case("who"));
        }
    }
    assert!(words > 50_000, "only {words} words were found");
    let in_thousand = |count: u32| 1000.0 * f64::from(count) / f64::from(words);
    let (what, who) = (in_thousand(whats), in_thousand(whos));
    println!("{words} words; in 1,000: what {what:.2}, who {who:.2}");
    assert!(what <= WHAT_MAX && who <= WHO_MAX, "in 1,000 words: what {what:.2}, who {who:.2}");
}
