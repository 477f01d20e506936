//! The command `--shrink`: from a seed that fails to a small plan that fails.

mod reductions;
mod search;

use dedupfs_sync::canary::Canary;

use crate::attempt::{ATTEMPT_SECS, attempt};
use crate::kept::{self, Kept};
use crate::name::Name;
use crate::plan::Plan;
use search::{Failing, Search, size};

/// How a plan is shrunk.
pub struct How<'a> {
    pub canary: Option<Canary>,
    /// Smaller plans that are tried at most.
    pub tries_max: u64,
    /// Whether a smaller plan has to fail under several seeds.
    pub is_firm: bool,
    /// The name under which the small plan is kept.
    pub keep: Option<&'a str>,
}

/// Seeds under which the small plan runs, to tell how much it depends on its own.
const OTHERS: u64 = 20;

/// Shrinks the plan of this seed, prints it, and keeps it if that is wanted.
///
/// # Errors
/// The seed passes, or fails without the canary; or the plan cannot be kept under this name.
pub fn shrink(seed: u64, how: &How<'_>) -> Result<(), String> {
    let How { canary, tries_max, is_firm, keep } = *how;
    let file = keep.map(kept::new_file).transpose()?;
    let plan = Plan::new(seed);
    let Err(failure) = attempt(&plan, canary, ATTEMPT_SECS) else {
        return Err(format!("seed {seed} passes: there is nothing to shrink"));
    };
    if canary.is_some() && attempt(&plan, None, ATTEMPT_SECS).is_err() {
        return Err(format!("seed {seed} fails without the canary, too: shrink it without --canary"));
    }
    println!("seed {seed}: {failure}\n{}", size(&plan));
    // A plan that fails without the canary shows another mistake.
    let fails = |plan: &Plan| {
        let failure = attempt(plan, canary, ATTEMPT_SECS).err()?;
        (canary.is_none() || attempt(plan, None, ATTEMPT_SECS).is_ok()).then_some(failure)
    };
    let mut search = Search { fails, tries: 0, tries_max, is_firm };
    let Failing { plan, failure } = search.shrink(Failing { plan, failure });
    let is_cut = if search.tries < tries_max { "" } else { ": no more are allowed, see --tries" };
    println!("{} tries{is_cut}\n{}", search.tries, size(&plan));
    println!("of {OTHERS} other seeds, it fails under {}\n", search.others_that_fail(&plan, OTHERS));

    let small = Kept { finds: canary.map(Name), plan };
    println!("{}\n{failure}\n", small.text());
    let of_file = match &file {
        Some(path) => {
            kept::write(path, &small)?;
            path.display().to_string()
        }
        None => "FILE".to_owned(),
    };
    let with_canary = canary.map_or_else(String::new, |canary| format!(" --canary {canary:?}"));
    println!(
        "With the plan in a file, this tells its story:\n  \
         cargo run --release --manifest-path tests/world/Cargo.toml -- --plan {of_file}{with_canary}"
    );
    Ok(())
}
