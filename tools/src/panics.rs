//! What the programs say of panics.

/// Sets this process' panic hook: what the store catches, and tells as an error, says nothing on the terminal; everything else
/// is as loud as ever.
pub fn install() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if dedupfs::panics::is_caught() {
            tracing::debug!(%panic, "caught");
        } else {
            loud(panic);
        }
    }));
}
