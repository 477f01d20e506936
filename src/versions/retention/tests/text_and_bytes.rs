//! Rules as text and as bytes.

use dedupfs_store::StoreError;
use proptest::prelude::*;

use super::super::{Count, Percent, RelativeTo, Rules, Span};
use super::any_rules::{count, rules, span};

#[test]
fn spans_are_read_in_any_order_and_written_in_one() {
    for (text, parts, written) in [
        ("1y5m7d2h", [1, 5, 7, 2], "1y5m7d2h"),
        ("30d", [0, 0, 30, 0], "30d"),
        ("2h1y", [1, 0, 0, 2], "1y2h"),
        ("0y007d", [0, 0, 7, 0], "7d"),
        ("9999y9999m9999d9999h", [9999; 4], "9999y9999m9999d9999h"),
    ] {
        let span: Span = text.parse().unwrap();
        assert_eq!((span.parts(), span.to_string().as_str()), (parts, written));
    }
}

#[test]
fn a_wrong_span_says_its_fault_and_shows_a_right_one() {
    for (text, fault) in [
        ("", "it has no length"),
        ("0d", "it has no length"),
        ("30", "the last number has no unit"),
        ("1y5", "the last number has no unit"),
        ("d", "a unit has no number"),
        ("1dd", "a unit has no number"),
        ("1d2d", "a unit stands twice"),
        ("10000h", "10000 is more than 9999, take a larger unit"),
        ("99999999999999999999d", "is more than 9999"),
        ("2w", "w is no unit"),
        ("-3d", "- is no unit"),
        ("3 d", "  is no unit"),
        ("3日", "日 is no unit"),
    ] {
        let message = text.parse::<Span>().unwrap_err().to_string();
        assert!(message.contains(fault) && message.contains("such as 30d"), "{text}: {message}");
    }
}

#[test]
fn counts_and_shares_are_read_and_wrong_ones_refused() {
    assert_eq!("7".parse::<Count>().unwrap(), Count::new(7));
    for text in ["all", "unlimited", "-1"] {
        assert_eq!(text.parse::<Count>().unwrap(), Count::ALL);
    }
    for text in ["", "+7", "-2", "7.5", "seven", "4294967295", "4294967296"] {
        assert!(text.parse::<Count>().unwrap_err().to_string().contains("such as 7, or all"), "{text}");
    }
    assert_eq!("80%".parse::<Percent>().unwrap(), "80".parse().unwrap());
    for text in ["", "%", "0", "101%", "+8%", "80%%", "300"] {
        assert!(text.parse::<Percent>().unwrap_err().to_string().contains("such as 80%"), "{text}");
    }
    assert!("then".parse::<RelativeTo>().unwrap_err().to_string().contains("write newest or now"));
}

#[test]
fn rules_are_shown_as_options() {
    assert_eq!(Rules::default().to_string(), "no rules");
    let rules = Rules {
        keep_last: Some(Count::new(3)),
        keep_yearly: Some(Count::ALL),
        keep_within: Some("30d".parse().unwrap()),
        free_until: Percent::new(80),
        relative_to: RelativeTo::Now,
        keep_none: true,
        ..Rules::default()
    };
    let text = "--keep-last 3 --keep-yearly all --keep-within 30d --free-until 80% --relative-to now --keep-none";
    assert_eq!(rules.to_string(), text);
}

/// Later releases must read these bytes.
#[test]
fn the_bytes_of_version_1_stay() {
    let rules = Rules {
        keep_last: Some(Count::new(3)),
        keep_daily: Some(Count::new(7)),
        keep_yearly: Some(Count::ALL),
        keep_within: Span::new([1, 5, 300, 2]),
        free_until: Percent::new(80),
        relative_to: RelativeTo::Now,
        keep_none: false,
        ..Rules::default()
    };
    let bytes =
        [&[1, 0b1110_0101, 1][..], &[3, 0, 0, 0, 7, 0, 0, 0, 255, 255, 255, 255], &[1, 0, 5, 0, 44, 1, 2, 0], &[80]]
            .concat();
    assert_eq!(rules.encode(), bytes);
    assert_eq!(Rules::decode(&bytes).unwrap(), rules);
    assert_eq!(Rules::default().encode(), [1, 0, 0]);
    assert_eq!(Rules { keep_none: true, ..Rules::default() }.encode(), [1, 0, 2]);
}

#[test]
fn bytes_that_are_no_rules_are_refused() {
    let newer = Rules::decode(&[2, 0, 0]).unwrap_err();
    assert!(matches!(newer, StoreError::Unsupported { .. }), "{newer}");
    assert!(newer.to_string().contains("version 2") && newer.to_string().contains("use that version or a later one"));
    let span = |parts: [u16; 4]| [&[1, 64, 0][..], &parts.map(u16::to_le_bytes).concat()].concat();
    let bad = [
        vec![],
        vec![0, 0, 0],
        vec![1, 0],
        vec![1, 0, 4],
        vec![1, 0, 0, 0],
        vec![1, 1, 0, 1, 0, 0],
        vec![1, 128, 0, 0],
    ];
    for bytes in bad.into_iter().chain([vec![1, 128, 0, 101], span([0; 4]), span([0, 0, 0, 10_000])]) {
        assert!(matches!(Rules::decode(&bytes), Err(StoreError::Corrupt { .. })), "{bytes:?}");
    }
    assert!(Rules::decode(&span([0, 0, 0, 9999])).is_ok());
}

proptest! {
    #[test]
    fn text_round_trips(span in span(), count in count(), share in 1_u8..=100) {
        prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        let share = Percent::new(share).unwrap();
        prop_assert_eq!(share.to_string().parse::<Percent>().unwrap(), share);
        if let Some(count) = count {
            prop_assert_eq!(count.to_string().parse::<Count>().unwrap(), count);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9ymdhw+ %-]{0,12}|.{0,12}") {
        if let Ok(span) = text.parse::<Span>() {
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        let _ = (text.parse::<Count>(), text.parse::<Percent>());
    }

    #[test]
    fn rules_round_trip(rules in rules()) {
        let bytes = rules.encode();
        prop_assert!(bytes.len() <= 36);
        prop_assert_eq!(Rules::decode(&bytes).unwrap(), rules);
        for len in 0..bytes.len() {
            prop_assert!(Rules::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_encode_to_the_same(
        head in prop_oneof![Just(vec![]), (any::<u8>(), 0_u8..4).prop_map(|(present, choices)| vec![1, present, choices])],
        tail in prop::collection::vec(any::<u8>(), 0..40), is_exact: bool
    ) {
        let mut bytes = [head.clone(), tail].concat();
        if let ([_, present, _], true) = (&head[..], is_exact) {
            // As long as the fields that are said to be present.
            let counts = (present & 63).count_ones() as usize * 4;
            bytes.resize(3 + counts + usize::from(present >> 6 & 1) * 8 + usize::from(present >> 7), 1);
        }
        if let Ok(rules) = Rules::decode(&bytes) {
            prop_assert_eq!(rules.encode(), bytes);
        }
    }
}
