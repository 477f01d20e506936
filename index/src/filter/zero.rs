//! The filter of built-in fingerprints (MAD2 section IV.B).

use dedupfs_store::{ContainerId, Result};

use super::{Filter, Query, Verdict};
use crate::cell::Location;

/// Decides `Existing` for the fingerprint of zeros, with [`ContainerId::NONE`]: it is never stored and always present.
#[derive(Clone, Copy, Default, Debug)]
pub struct ZeroFilter;

impl Filter for ZeroFilter {
    fn name(&self) -> &'static str {
        "zero"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        for ((verdict, fingerprint), &len_bytes) in query.verdicts.iter_mut().zip(query.fingerprints).zip(query.lengths)
        {
            if fingerprint.is_zero() && !verdict.is_final() {
                *verdict = Verdict::Existing(Location { container: ContainerId::NONE, len_bytes });
            }
        }
        Ok(())
    }
}
