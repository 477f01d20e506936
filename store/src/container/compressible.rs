//! A cheap test whether bytes are worth compressing.
//!
//! zstd shrinks bytes in two ways. A region counts as random if neither promises anything:
//!
//! 1. *Some bytes are more frequent than others.* The test estimates the chance that two bytes, sampled all over the
//!    region, are equal. It is 1/256 for random bytes. It is at least 2^-7.5 = 1.41/256 where one entropy code for all
//!    bytes saves a sixteenth (Rényi's entropy of order 2 is never above Shannon's). A region of which a twelfth is
//!    text has 1.1/256. So a region with that much text, or with as much machine code as saves a sixteenth of it, may
//!    count as random.
//! 2. *Strings repeat.* The first 32 KiB are compressed as a trial. Repeats only at a greater distance are rare:
//!    deduplication has already found repeated chunks.
//!
//! ZFS uses the same idea: it asks LZ4 before it lets zstd try (`zstd_early_abort`).

pub(super) const TRIAL_BYTES: usize = 32 << 10;
/// For smaller regions compressing costs as little as testing.
const LEAST_BYTES: usize = 2 * TRIAL_BYTES;

/// Bytes of a window: one cache line.
const WINDOW_BYTES: usize = 64;
const WINDOWS: usize = 64;
/// Chance, in 256ths, that two bytes are equal, from which on an entropy code may pay. It includes the value that a
/// sample of random bytes has by itself (255 / 4096, some 0.06) and its scatter (0.006).
const SAME_256THS: f64 = 1.15;

/// Whether the bytes of the region are spread as evenly as random ones.
pub(super) fn is_evenly_spread(raw: &[u8]) -> bool {
    if raw.len() < LEAST_BYTES {
        return false;
    }
    let mut counts = [0_u32; 256];
    let step_bytes = raw.len() / WINDOWS;
    let windows = raw.chunks(step_bytes).filter_map(|step| step.get(..WINDOW_BYTES));
    windows.take(WINDOWS).flatten().for_each(|byte| {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    });
    let sampled = (WINDOWS * WINDOW_BYTES) as f64;
    let same: f64 = counts.iter().map(|count| f64::from(*count) * f64::from(*count)).sum();
    same * 256.0 < SAME_256THS * sampled * sampled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::chunk;
    use super::*;

    #[test]
    fn random_bytes_are_evenly_spread_and_others_are_not() {
        const LEN: usize = 256 << 10;
        for seed in 0..50 {
            assert!(is_evenly_spread(&chunk(seed, LEN, false)), "seed {seed}");
        }
        assert!(!is_evenly_spread(&chunk(1, LEN, true)));
        let text: Vec<u8> = include_bytes!("compressible.rs").iter().copied().cycle().take(LEN).collect();
        assert!(!is_evenly_spread(&text));
        // Half of it, or a fifth, at any place.
        for (share, at) in [(2, 0), (2, LEN / 2), (5, 0), (5, LEN / 2), (5, LEN - LEN / 5)] {
            let mut mixed = chunk(3, LEN, false);
            mixed[at..at + LEN / share].copy_from_slice(&text[..LEN / share]);
            assert!(!is_evenly_spread(&mixed), "one in {share} from {at}");
        }
        // Seven random bits per byte.
        let ascii: Vec<u8> = chunk(4, LEN, false).iter().map(|byte| byte & 0x7f).collect();
        assert!(!is_evenly_spread(&ascii));
        assert!(!is_evenly_spread(&[]));
        assert!(!is_evenly_spread(&chunk(5, LEAST_BYTES - 1, false)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_length_is_a_trap(len in 0_usize..300_000, byte in any::<u8>()) {
            prop_assert!(!is_evenly_spread(&vec![byte; len]));
            prop_assert_eq!(is_evenly_spread(&chunk(len as u64, len, false)), len >= LEAST_BYTES);
        }
    }
}
