//! Asks the user before a change that cannot be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::control::Failure;

/// Asks on standard error and reads the answer from standard input; returns whether it is yes. An input that ends means no.
pub(crate) fn ask(question: &str) -> Result<bool, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot ask: {error}; use --yes"));
    let mut err = std::io::stderr().lock();
    err.write_all(format!("{question} [y/N] ").as_bytes()).and_then(|()| err.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Like [`ask`], but only at a terminal: a script that pipes input has not read the question.
pub(crate) fn ask_at_terminal(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::failed(format!(
            "{question} There is no terminal to ask at: use --yes to confirm. Nothing was changed"
        )));
    }
    ask(question)
}
