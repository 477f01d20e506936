//! The JSON of `nbdinfo --map --json`, `qemu-img map --output=json` and `rbd diff --format json`: lists of ranges with other members.

use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{DeserializeSeed, SeqAccess, Visitor};

use super::Map;

/// These programs round the end of an image up to a sector or a cluster.
const OVERHANG_BYTES: u64 = 64 << 10;

/// A range of any of these programs.
#[derive(Deserialize)]
struct Range {
    /// qemu-img.
    start: Option<Number>,
    /// The others; with qemu-img the place in the file.
    offset: Option<Number>,
    length: Number,
    /// nbdinfo: `data`, `hole`, `zero`, `hole,zero`; of a bitmap `clean`, `dirty`.
    description: Option<String>,
    /// qemu-img: whether it reads as zeros.
    zero: Option<bool>,
    /// qemu-img: how many files lie over the one that has the range.
    depth: Option<u64>,
    /// rbd: whether it is data; else it was discarded.
    exists: Option<Truth>,
}

/// A number, or one as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Truth {
    Truth(bool),
    Text(String),
}

impl Number {
    fn value(&self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
        }
    }
}

impl Range {
    fn add_to(&self, map: &mut Map) -> Result<(), String> {
        let length = self.length.value()?;
        let offset = || self.offset.as_ref().ok_or("a range without offset")?.value();
        if let (Some(start), Some(zero)) = (&self.start, self.zero) {
            map.named_until.get_or_insert(0);
            // What the file below has did not change since the snapshot that it is.
            let is_below = self.depth.is_some_and(|depth| depth > 0);
            return map.add(start.value()?, length, (!is_below).then_some(zero));
        }
        if let Some(description) = &self.description {
            map.named_until.get_or_insert(0);
            let is_zero = match description.as_str() {
                "clean" => None,
                "dirty" | "data" | "hole" => Some(false),
                "zero" | "hole,zero" => Some(true),
                other => {
                    return Err(format!(
                        "ranges that are `{other}`: give a map of base:allocation or of a dirty bitmap"
                    ));
                }
            };
            return map.add(offset()?, length, is_zero);
        }
        let exists = match self.exists.as_ref().ok_or("ranges that are of neither nbdinfo, qemu-img nor rbd")? {
            Truth::Truth(truth) => *truth,
            Truth::Text(text) if text == "true" => true,
            Truth::Text(text) if text == "false" => false,
            Truth::Text(text) => return Err(format!("`exists` is `{text}`, neither `true` nor `false`")),
        };
        map.add(offset()?, length, Some(!exists))
    }
}

/// Takes ranges one after the other.
struct Ranges<'a>(&'a mut Map);

impl<'de> DeserializeSeed<'de> for Ranges<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Ranges<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list of ranges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(range) = list.next_element::<Range>()? {
            range.add_to(self.0).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

pub(super) fn parse(from: &mut dyn BufRead) -> Result<Map, String> {
    let mut map = Map { overhang_bytes: OVERHANG_BYTES, ..Map::default() };
    let mut reader = serde_json::Deserializer::from_reader(from);
    Ranges(&mut map).deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| error.to_string())?;
    Ok(map)
}
