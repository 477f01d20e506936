//! The reasons of a decision, as people read them.

use std::fmt;

use super::period::timestamp;
use super::{Count, Period, RelativeTo, Span, Unit};

/// The reason why a version stays or goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It is among the last complete versions.
    Last {
        /// Its place among them; the newest has 1.
        place: u64,
        /// The number of the rule.
        of: Count,
    },
    /// It is the newest of a period.
    Newest {
        /// The place of the period among those that have versions; the newest has 1. If a clock was set back, two periods may
        /// have the same place: one by number of version, one by the calendar.
        place: u64,
        /// The number of the rule.
        of: Count,
        /// The period.
        period: Period,
    },
    /// It is the oldest version, and places of the rule are left.
    Oldest {
        /// The length of the rule's periods.
        unit: Unit,
        /// The number of the rule.
        of: Count,
    },
    /// It was completed within the span.
    Within {
        /// The span of the rule.
        span: Span,
        /// The moment from which the span counts back.
        of: RelativeTo,
    },
    /// It is the last complete version without problems.
    LastGood,
    /// It is the last complete version, and none is without problems.
    LastComplete,
    /// It is locked until then, in seconds since 1970.
    Locked(i64),
    /// Its put goes on.
    BeingWritten,
    /// It is damaged, so that nothing certain is known of it.
    Damaged,
    /// It is incomplete, and no later version is complete: a put can go on with it.
    Resumable,
    /// It was completed after the time of the decision. So its date is wrong, and rules by date cannot judge it.
    FromTheFuture,
    /// The rules say nothing.
    NoRules,
    /// No rule keeps it, so it goes.
    NoRule,
    /// It is incomplete, and the version of this number is complete and later, so it goes.
    Superseded(u64),
}

impl Reason {
    /// Whether the reason lets a version stay.
    pub const fn keeps(&self) -> bool {
        !matches!(self, Self::NoRule | Self::Superseded(_))
    }

    /// Whether the reason lets a version stay even if the disk is full.
    pub const fn protects(&self) -> bool {
        matches!(
            self,
            Self::LastGood
                | Self::LastComplete
                | Self::Locked(_)
                | Self::BeingWritten
                | Self::Damaged
                | Self::Resumable
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Last { place, of } => write!(formatter, "last {place} of {of}"),
            Self::Newest { place, of, period } => write!(formatter, "{} {place} of {of} ({period})", period.unit()),
            Self::Oldest { unit, of } => write!(formatter, "the oldest, as places of {unit} {of} are left"),
            Self::Within { span, of: RelativeTo::Newest } => write!(formatter, "within {span} of the newest"),
            Self::Within { span, of: RelativeTo::Now } => write!(formatter, "within {span} of now"),
            Self::LastGood => formatter.write_str("the last good version"),
            Self::LastComplete => formatter.write_str("the last complete version, as none is without problems"),
            Self::Locked(until) => write!(formatter, "locked until {}", timestamp(until).strftime("%F %T UTC")),
            Self::BeingWritten => formatter.write_str("being written"),
            Self::Damaged => {
                formatter.write_str("damaged: nobody knows whether it may go; `dedupfs forget` removes it")
            }
            Self::Resumable => formatter.write_str("incomplete, and no later version is complete"),
            Self::FromTheFuture => formatter.write_str("its date is in the future, so rules by date cannot judge it"),
            Self::NoRules => formatter.write_str("no rules are given"),
            Self::NoRule => formatter.write_str("no rule keeps it"),
            Self::Superseded(number) => write!(formatter, "incomplete, and version {number} is complete"),
        }
    }
}
