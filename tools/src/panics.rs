//! The panic hook of the programs.

/// Installs the panic hook. Panics that the store catches and returns as errors are only logged; all others are printed as usual.
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
