//! The filter of built-in fingerprints (MAD2 section IV.B).

use dedupfs_store::Result;

use super::{Filter, Query, Verdict};

/// Decides `BuiltIn` for the fingerprint of zeros.
pub(crate) struct ZeroFilter;

impl Filter for ZeroFilter {
    fn name(&self) -> &'static str {
        "zero"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        for (verdict, fingerprint) in query.verdicts.iter_mut().zip(query.fingerprints) {
            if fingerprint.is_zero() && !verdict.is_final() {
                *verdict = Verdict::BuiltIn;
            }
        }
        Ok(())
    }
}
