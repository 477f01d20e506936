//! Values that are written as their names: of the command line, and in plans.

use std::fmt::Debug;

use dedupfs_store::device::faulty::{Fault, Operation};
use dedupfs_sync::canary::Canary;
use dedupfs_sync::step::Step;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A type of the engine with a few values, whose debug output is their name.
pub trait Named: Copy + Debug + 'static {
    /// The type's values in the plural, for messages.
    const KIND: &str;
    /// All values.
    const ALL: &[Self];

    /// Finds the value of this name.
    ///
    /// # Errors
    /// No value has this name; the message lists all names.
    fn by_name(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.iter().copied();
        all.find(|value| format!("{value:?}") == name)
            .ok_or_else(|| format!("{name} is unknown: the {} are {:?}", Self::KIND, Self::ALL))
    }
}

impl Named for Canary {
    const KIND: &str = "canaries";
    const ALL: &[Self] = Self::ALL;
}

impl Named for Operation {
    const KIND: &str = "operations";
    const ALL: &[Self] = &Self::ALL;
}

impl Named for Fault {
    const KIND: &str = "faults";
    const ALL: &[Self] =
        &[Self::Io, Self::NoSpace, Self::ShortWrite, Self::ShortWriteNoSpace, Self::ShortRead, Self::NotFound];
}

impl Named for Step {
    const KIND: &str = "steps";
    const ALL: &[Self] = &Self::ALL;
}

/// Writes fields of such types as names.
pub mod names {
    use super::{Deserialize, Deserializer, Name, Named, Serialize, Serializer};

    pub fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        Name(*value).serialize(serializer)
    }

    pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        Name::deserialize(deserializer).map(|Name(value)| value)
    }
}

/// Such a value, written as its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name<T>(pub T);

impl<T: Named> Serialize for Name<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

impl<'de, T: Named> Deserialize<'de> for Name<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        T::by_name(&name).map(Self).map_err(D::Error::custom)
    }
}
