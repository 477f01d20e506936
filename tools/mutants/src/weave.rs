//! Puts all mutants of a source into it at once: each stands beside the code that it changes, and a number that the
//! process gets when it starts decides between them. So one build serves them all.

use std::collections::HashSet;
use std::ops::Range;

use crate::list::{Mutant, Place};
use crate::places::{Function, Places};

/// A source with its mutants.
pub struct Woven {
    pub text: String,
    /// The bytes of the text that belong to a mutant.
    pub marks: Vec<(Range<usize>, u32)>,
    /// Mutants that have no place in it.
    pub apart: Vec<u32>,
}

/// A piece of text, and the mutant to which it belongs.
type Piece = (String, Option<u32>);

/// Text around a part of the source.
struct Edit {
    range: Range<usize>,
    before: Vec<Piece>,
    after: Vec<Piece>,
    /// Leaves the part out.
    blank: bool,
}

/// Byte offsets of lines.
struct Lines<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(source: &'a str) -> Self {
        let next = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { source, starts: std::iter::once(0).chain(next).collect() }
    }

    fn offset(&self, place: Place) -> usize {
        let start = self.starts[place.line - 1];
        let rest = &self.source[start..];
        start + rest.char_indices().nth(place.column - 1).map_or(rest.len(), |(at, _)| at)
    }
}

fn is(prefix: &str, number: u32) -> String {
    format!("{prefix}mutant::is({number})")
}

/// Returns the innermost function around a part.
fn function<'a>(places: &'a Places, part: &Range<usize>) -> Option<&'a Function> {
    let around = places.functions.iter().filter(|function| contains(&function.range, part));
    around.min_by_key(|function| function.range.len())
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Weaves the numbered mutants into their source. `prefix` is the path of the switch. Functions of the names in
/// `constant` stay `const`: their mutants are apart.
pub fn weave(source: &str, prefix: &str, mutants: &[(u32, &Mutant)], constant: &HashSet<String>) -> Woven {
    let places = Places::of(source);
    let lines = Lines::new(source);
    let mut edits = Vec::<Edit>::new();
    let mut apart = Vec::new();
    for (number, mutant) in mutants {
        let (number, part) = (*number, lines.offset(mutant.start)..lines.offset(mutant.end));
        let Some(function) = function(&places, &part) else {
            apart.push(number);
            continue;
        };
        if function.constant.is_some() && constant.contains(&function.name) {
            apart.push(number);
            continue;
        }
        if !place(&mut edits, &places, source, prefix, (number, mutant), part, function) {
            apart.push(number);
            continue;
        }
    }
    // The switch is not `const`, so neither are functions with mutants, nor those that call them.
    for function in places.functions.iter().filter(|function| !constant.contains(&function.name)) {
        let range = function.constant.clone();
        edits.extend(range.map(|range| Edit { range, before: Vec::new(), after: Vec::new(), blank: true }));
    }
    // Outer parts first; an empty part stands before the others that begin there.
    edits.sort_by_key(|edit| (edit.range.start, !edit.range.is_empty(), usize::MAX - edit.range.end));
    let mut output = Output { text: String::new(), marks: Vec::new() };
    let mut next = 0;
    output.render(source, 0..source.len(), &edits, &mut next);
    Woven { text: output.text, marks: output.marks, apart }
}

fn place(
    edits: &mut Vec<Edit>,
    places: &Places,
    source: &str,
    prefix: &str,
    (number, mutant): (u32, &Mutant),
    part: Range<usize>,
    function: &Function,
) -> bool {
    let is = is(prefix, number);
    match mutant.genre.as_str() {
        // Another type than the function's own would be another function.
        "FnValue" if function.returns_impl => false,
        "FnValue" => {
            let text = format!("if {is} {{ return {}; }} ", mutant.replacement);
            edits.push(Edit {
                range: part.start..part.start,
                before: vec![(text, Some(number))],
                after: Vec::new(),
                blank: false,
            });
            true
        }
        "MatchArm" => {
            let Some(arm) = places.arms.iter().find(|arm| arm.range.start == part.start) else { return false };
            let (range, before, after) = match &arm.guard {
                Some(guard) => (guard.clone(), format!("!{is} && ("), ")".to_owned()),
                None => (arm.pattern.end..arm.pattern.end, format!(" if !{is}"), String::new()),
            };
            edits.push(Edit { range, before: vec![(before, Some(number))], after: vec![(after, None)], blank: false });
            true
        }
        "MatchArmGuard" => {
            let before = match mutant.replacement.as_str() {
                "true" => format!("{is} || ("),
                "false" => format!("!{is} && ("),
                _ => return false,
            };
            // In brackets, so that another mutant of the guard may stand around it.
            let (before, after) = (format!("({before}"), "))".to_owned());
            edits.push(Edit {
                range: part,
                before: vec![(before, Some(number))],
                after: vec![(after, None)],
                blank: false,
            });
            true
        }
        _ => {
            let Some(expression) = places.expression(&mutant.genre, &part) else { return false };
            let changed =
                [&source[expression.start..part.start], &mutant.replacement, &source[part.end..expression.end]]
                    .concat();
            let alternative = (format!("if {is} {{ {changed} }} else "), Some(number));
            let same = edits.iter_mut().find(|edit| edit.range == expression && edit.after.len() == 2);
            if let Some(same) = same {
                same.before.insert(1, alternative);
            } else {
                edits.push(Edit {
                    range: expression,
                    before: vec![("(".to_owned(), None), alternative, ("{ ".to_owned(), Some(number))],
                    after: vec![(" }".to_owned(), None), (")".to_owned(), None)],
                    blank: false,
                });
            }
            true
        }
    }
}

struct Output {
    text: String,
    marks: Vec<(Range<usize>, u32)>,
}

impl Output {
    fn pieces(&mut self, pieces: &[Piece]) {
        for (text, number) in pieces {
            let start = self.text.len();
            self.text += text;
            self.marks.extend(number.map(|number| (start..self.text.len(), number)));
        }
    }

    fn render(&mut self, source: &str, part: Range<usize>, edits: &[Edit], next: &mut usize) {
        let mut at = part.start;
        while let Some(edit) = edits.get(*next).filter(|edit| contains(&part, &edit.range)) {
            *next += 1;
            self.text += &source[at..edit.range.start];
            self.pieces(&edit.before);
            if !edit.blank {
                self.render(source, edit.range.clone(), edits, next);
            }
            self.pieces(&edit.after);
            at = edit.range.end;
        }
        self.text += &source[at..part.end];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
impl Cell {
    const fn larger(self, other: u8) -> bool {
        !self.full && self.size + 1 > other
    }
}

fn kind(number: u8) -> u8 {
    match number {
        0 => 1,
        n if n < 3 => 2,
        _ => 3,
    }
}
";

    fn mutant(genre: &str, replacement: &str, line: usize, columns: Range<usize>) -> Mutant {
        Mutant {
            key: String::new(),
            file: String::new(),
            genre: genre.to_owned(),
            replacement: replacement.to_owned(),
            start: Place { line, column: columns.start },
            end: Place { line, column: columns.end },
            folder: 0,
            position: 0,
        }
    }

    fn woven(mutants: &[Mutant], constant: &[&str]) -> Woven {
        let mutants: Vec<(u32, &Mutant)> = (1..).zip(mutants).collect();
        weave(SOURCE, "", &mutants, &constant.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Without spaces, whose number does not matter.
    fn packed(text: &str) -> String {
        text.split_whitespace().collect()
    }

    #[test]
    fn mutants_stand_beside_the_code_that_they_change() {
        let mutants = [
            mutant("FnValue", "true", 3, 9..44),
            mutant("UnaryOperator", "", 3, 9..10),
            mutant("BinaryOperator", "||", 3, 20..22),
            mutant("BinaryOperator", "-", 3, 33..34),
            mutant("BinaryOperator", ">=", 3, 37..38),
        ];
        let woven = woven(&mutants, &[]);
        assert!(syn::parse_file(&woven.text).is_ok(), "{}", woven.text);
        let expected = "fn larger(self, other: u8) -> bool { if mutant::is(1) { return true; }
            (if mutant::is(3) { !self.full || self.size + 1 > other } else {
            (if mutant::is(2) { self.full } else { !self.full }) &&
            (if mutant::is(5) { self.size + 1 >= other } else {
            (if mutant::is(4) { self.size - 1 } else { self.size + 1 }) > other }) }) }";
        assert!(packed(&woven.text).contains(&packed(expected)), "{}", woven.text);
        assert!(woven.apart.is_empty());
        let (range, _) = woven.marks.iter().find(|(_, number)| *number == 4).expect("has a mark");
        assert_eq!(woven.text[range.clone()].trim(), "if mutant::is(4) { self.size - 1 } else");
    }

    #[test]
    fn arms_and_guards_have_mutants() {
        let mutants = [
            mutant("MatchArm", "", 9, 9..16),
            mutant("MatchArm", "", 10, 9..24),
            mutant("MatchArmGuard", "true", 10, 14..19),
            mutant("MatchArmGuard", "false", 10, 14..19),
            mutant("BinaryOperator", "==", 10, 16..17),
        ];
        let woven = woven(&mutants, &[]);
        assert!(syn::parse_file(&woven.text).is_ok(), "{}", woven.text);
        assert!(packed(&woven.text).contains(&packed("0 if !mutant::is(1) => 1")), "{}", woven.text);
        assert!((2..=5).all(|number| woven.text.contains(&format!("mutant::is({number})"))), "{}", woven.text);
    }

    #[test]
    fn what_must_stay_constant_has_no_mutants() {
        let woven = woven(&[mutant("BinaryOperator", "-", 3, 33..34)], &["larger"]);
        assert_eq!((woven.text.as_str(), woven.apart.as_slice()), (SOURCE, &[1][..]));
    }
}
