//! Arbitrary rules.

use proptest::prelude::*;

use super::super::{Count, Percent, RelativeTo, Rules, Span};

pub(super) fn count() -> impl Strategy<Value = Option<Count>> {
    prop_oneof![3 => Just(None), 4 => (0_u32..9).prop_map(|number| Some(Count::new(number))), 1 => Just(Some(Count::ALL))]
}

pub(super) fn span() -> impl Strategy<Value = Span> {
    let part = |max: u16| prop_oneof![Just(0), 0..=max];
    (part(2), part(30), part(60), part(100))
        .prop_filter_map("has a length", |(years, months, days, hours)| Span::new([years, months, days, hours]))
}

pub(super) fn rules() -> impl Strategy<Value = Rules> {
    let counts = (count(), count(), count(), count(), count(), count());
    let others = (prop::option::of(span()), prop::option::of(1_u8..=100), any::<bool>(), any::<bool>());
    (counts, others).prop_map(|(counts, (keep_within, share, is_now, keep_none))| Rules {
        keep_last: counts.0,
        keep_hourly: counts.1,
        keep_daily: counts.2,
        keep_weekly: counts.3,
        keep_monthly: counts.4,
        keep_yearly: counts.5,
        keep_within,
        free_until: share.and_then(Percent::new),
        relative_to: if is_now { RelativeTo::Now } else { RelativeTo::Newest },
        keep_none,
    })
}
