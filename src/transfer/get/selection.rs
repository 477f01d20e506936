//! Choosing parts of a tree by patterns, name by name on the way down.
//!
//! A pattern is cut at `/` into parts, each for one name; `**` stands for any number of names. A directory knows how far
//! each pattern has come on the way to it: a set of parts, any of which may fit the next name. So a directory below
//! which no pattern can fit is known without being listed.

use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::EngineError;
use globset::{Candidate, GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use super::super::{Result, TransferError};

/// Most patterns of one transfer.
const PATTERNS_MAX: usize = 256;
/// Most bytes of one pattern.
const PATTERN_BYTES_MAX: usize = 4096;
/// Most parts of a pattern: a set of parts, and the end, are bits of one number.
const PARTS_MAX: usize = 63;

/// Patterns that choose entries of a tree. Without any, all are chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Patterns {
    /// Only what one of these matches is copied, with all below it. If there are none: everything.
    pub include: Vec<String>,
    /// What one of these matches is left out, with all below it.
    pub exclude: Vec<String>,
}

enum Part {
    /// `**`: any number of names, also none.
    Deep,
    Name(GlobMatcher),
}

struct Pattern {
    parts: Vec<Part>,
    /// It ends with `/`.
    only_directories: bool,
}

/// A set of parts: those that may fit the next name. Bit `parts.len()` means that the pattern matches.
type Places = u64;

/// How far the patterns have come on the way to a directory.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    /// Of the patterns to include; `None`: it is chosen, with all below it.
    include: Option<Box<[Places]>>,
    exclude: Box<[Places]>,
}

impl Reached {
    /// Whether the directory itself is wanted. Else it is only on the way.
    pub(super) fn is_chosen(&self) -> bool {
        self.include.is_none()
    }
}

/// Compiled patterns.
pub(super) struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    /// Patterns to include that matched something.
    matched: Vec<AtomicBool>,
    /// The patterns to include, as given.
    texts: Vec<String>,
}

impl Pattern {
    fn compile(text: &str) -> Result<Self> {
        let refuse = |why: &str| TransferError::Pattern { pattern: text.to_owned(), why: why.to_owned() };
        if text.len() > PATTERN_BYTES_MAX {
            return Err(refuse("it is too long"));
        }
        let only_directories = text.ends_with('/');
        let is_from_top = text.trim_end_matches('/').contains('/');
        let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
        if names.is_empty() {
            return Err(refuse("it names nothing below the top of the tree"));
        }
        if names.contains(&"..") {
            return Err(refuse("`..` leads out of the tree"));
        }
        let mut parts = if is_from_top { Vec::new() } else { vec![Part::Deep] };
        for name in &names {
            parts.push(match *name {
                "**" => Part::Deep,
                name => Part::Name(glob(name).map_err(|why| refuse(&why))?),
            });
        }
        // `a/**` is everything in `a`, but not `a`.
        if names.last() == Some(&"**") {
            parts.push(Part::Name(glob("*").map_err(|why| refuse(&why))?));
        }
        match parts.len() <= PARTS_MAX {
            true => Ok(Self { parts, only_directories }),
            false => Err(refuse("it has too many parts")),
        }
    }

    /// Adds the parts behind each `**` that is in the set.
    fn with_none(&self, mut places: Places) -> Places {
        for (at, part) in self.parts.iter().enumerate() {
            if matches!(part, Part::Deep) && places >> at & 1 == 1 {
                places |= 1 << (at + 1);
            }
        }
        places
    }

    fn at_top(&self) -> Places {
        self.with_none(1)
    }

    /// Goes on by one name.
    fn behind(&self, places: Places, name: &Candidate<'_>) -> Places {
        let mut next = 0;
        for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| places >> at & 1 == 1) {
            match part {
                Part::Deep => next |= 1 << at,
                Part::Name(glob) if glob.is_match_candidate(name) => next |= 1 << (at + 1),
                Part::Name(_) => {}
            }
        }
        self.with_none(next)
    }

    fn matches(&self, places: Places, is_directory: bool) -> bool {
        places >> self.parts.len() & 1 == 1 && (is_directory || !self.only_directories)
    }
}

fn glob(name: &str) -> std::result::Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(name).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

impl Selection {
    /// Compiles patterns.
    ///
    /// # Errors
    /// `Pattern`, with the pattern that makes no sense; `Invalid` if there are too many.
    pub(super) fn compile(patterns: &Patterns) -> Result<Self> {
        if patterns.include.len() + patterns.exclude.len() > PATTERNS_MAX {
            return Err(EngineError::Invalid("more than 256 patterns: use `*`, `**` and `{a,b}`").into());
        }
        let compile = |texts: &[String]| texts.iter().map(|text| Pattern::compile(text)).collect::<Result<Vec<_>>>();
        let include = compile(&patterns.include)?;
        let matched = include.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { include, exclude: compile(&patterns.exclude)?, matched, texts: patterns.include.clone() })
    }

    /// Whether everything is chosen.
    pub(super) fn is_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// The top of the tree.
    pub(super) fn top(&self) -> Reached {
        let of = |patterns: &[Pattern]| patterns.iter().map(Pattern::at_top).collect();
        Reached { include: (!self.include.is_empty()).then(|| of(&self.include)), exclude: of(&self.exclude) }
    }

    /// Judges an entry of a directory: `None` if neither it nor anything below it can be wanted. An entry that is no
    /// directory is wanted exactly if it is chosen.
    pub(super) fn judge(&self, above: &Reached, name: &[u8], is_directory: bool) -> Option<Reached> {
        if self.is_all() {
            return Some(above.clone());
        }
        let candidate = Candidate::from_bytes(name);
        let go_on = |patterns: &[Pattern], places: &[Places]| -> Box<[Places]> {
            let both = patterns.iter().zip(places);
            both.map(|(pattern, places)| pattern.behind(*places, &candidate)).collect()
        };
        let exclude = go_on(&self.exclude, &above.exclude);
        if self.exclude.iter().zip(&exclude).any(|(pattern, places)| pattern.matches(*places, is_directory)) {
            return None;
        }
        let Some(places) = &above.include else { return Some(Reached { include: None, exclude }) };
        let places = go_on(&self.include, places);
        let mut is_chosen = false;
        for ((pattern, places), matched) in self.include.iter().zip(&places).zip(&self.matched) {
            if pattern.matches(*places, is_directory) {
                matched.store(true, Ordering::Relaxed);
                is_chosen = true;
            }
        }
        match is_chosen {
            true => Some(Reached { include: None, exclude }),
            false if is_directory && places.iter().any(|places| *places != 0) => {
                Some(Reached { include: Some(places), exclude })
            }
            false => None,
        }
    }

    /// The patterns to include that matched nothing so far.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = &str> {
        let all = self.texts.iter().zip(&self.matched);
        all.filter(|(_, matched)| !matched.load(Ordering::Relaxed)).map(|(text, _)| text.as_str())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn compiled(include: &[&str], exclude: &[&str]) -> Selection {
        let of = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Selection::compile(&Patterns { include: of(include), exclude: of(exclude) }).unwrap()
    }

    /// Whether the file at `path` is chosen, and the number of directories of the way that had to be listed.
    fn walk(selection: &Selection, path: &str) -> (bool, usize) {
        let names: Vec<&str> = path.split('/').collect();
        let mut reached = selection.top();
        for (at, name) in names.iter().enumerate() {
            match selection.judge(&reached, name.as_bytes(), at + 1 < names.len()) {
                Some(next) => reached = next,
                None => return (false, at + 1),
            }
        }
        (reached.is_chosen(), names.len())
    }

    fn chooses(pattern: &str, path: &str) -> bool {
        walk(&compiled(&[pattern], &[]), path).0
    }

    #[test]
    fn patterns_match_as_their_users_expect() {
        for (pattern, path, expected) in [
            ("passwd", "etc/passwd", true),
            ("passwd", "passwd", true),
            ("passwd", "etc/passwd/below", true),
            ("passwd", "etc/passwd2", false),
            ("/passwd", "etc/passwd", false),
            ("/etc", "etc/x/y", true),
            ("/etc", "usr/etc/x", false),
            ("etc/passwd", "etc/passwd", true),
            ("etc/passwd", "usr/etc/passwd", false),
            ("./etc//passwd", "etc/passwd", true),
            ("**/etc/passwd", "usr/etc/passwd", true),
            ("**/etc/passwd", "etc/passwd", true),
            ("home/**/*.jpg", "home/a.jpg", true),
            ("home/**/*.jpg", "home/x/y/a.jpg", true),
            ("home/**/*.jpg", "home/x/y/a.png", false),
            ("home/*/a", "home/x/a", true),
            ("home/*/a", "home/x/y/a", false),
            ("home/**", "home/x", true),
            ("*.{jpg,png}", "x/a.png", true),
            ("[a-c]?", "x/b1", true),
            ("[a-c]?", "x/d1", false),
            ("*", ".hidden", true),
            ("\\*", "x/*", true),
            ("\\*", "x/y", false),
            ("etc/", "etc/x", true),
            ("etc/", "etc", false),
        ] {
            assert_eq!(chooses(pattern, path), expected, "{pattern} {path}");
        }
        let all_but = compiled(&[], &["*.tmp", "/var/cache"]);
        assert!(walk(&all_but, "var/lib/x").0 && walk(&all_but, "x/var/cache/y").0);
        assert!(!walk(&all_but, "a/b.tmp").0 && !walk(&all_but, "var/cache/y").0);
        assert!(!walk(&compiled(&["etc"], &["passwd"]), "etc/passwd").0, "an exclusion counts more");
    }

    #[test]
    fn bytes_that_are_no_text_are_matched() {
        let selection = compiled(&["a*"], &[]);
        assert!(selection.judge(&selection.top(), b"a\xff\n", false).is_some());
        assert!(selection.judge(&selection.top(), b"\xffa", false).is_none());
    }

    #[test]
    fn what_cannot_match_is_not_listed() {
        // Directories listed on the way to a file, of those that it has: the top is always listed.
        for (patterns, path, listed) in [
            (&["/etc/passwd"][..], "usr/share/doc/x", 1),
            (&["/etc/ssh/*.key"], "etc/apt/keys/x", 2),
            (&["/etc/ssh/*.key"], "etc/ssh/x/y", 3),
            (&["/a/**/z", "/b/c"], "b/d/e/f", 2),
            (&["/a/**/z"], "a/b/c/d", 4),
            (&["z"], "a/b/c/d", 4),
        ] {
            let (is_chosen, found) = walk(&compiled(patterns, &[]), path);
            assert_eq!((is_chosen, found), (false, listed), "{patterns:?} {path}");
        }
        assert_eq!(walk(&compiled(&["x"], &["/a/b"]), "a/b/c/x"), (false, 2));
    }

    #[test]
    fn senseless_patterns_are_refused_by_name() {
        let long = "x".repeat(PATTERN_BYTES_MAX + 1);
        let deep = "a/".repeat(PARTS_MAX + 1);
        for text in ["", "/", "./", "../x", "a/../b", "[a", "{a/b,c}", &long, &deep] {
            let error = Pattern::compile(text).err().unwrap();
            assert!(matches!(&error, TransferError::Pattern { pattern, .. } if pattern == text), "{error}");
        }
        let many = Patterns { include: vec!["a".to_owned(); PATTERNS_MAX + 1], exclude: Vec::new() };
        assert!(Selection::compile(&many).is_err());
        let fits = "a/".repeat(PARTS_MAX);
        assert!(Pattern::compile(&fits).is_ok());
    }

    #[test]
    fn patterns_that_match_nothing_are_known() {
        let selection = compiled(&["a", "b", "c/d"], &[]);
        walk(&selection, "x/b");
        assert_eq!(selection.unmatched().collect::<Vec<_>>(), ["a", "c/d"]);
    }
}
