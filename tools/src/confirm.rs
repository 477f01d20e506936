//! Asking whoever runs a command before something is changed that cannot be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use dedupfs::control::Failure;

/// Asks on the standard error output, and reads the answer from the standard input: whether it is yes. An input that ends says no.
///
/// # Errors
/// It cannot be asked.
pub fn ask(question: &str) -> Result<bool, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot ask: {error}; use --yes"));
    let mut err = std::io::stderr().lock();
    err.write_all(format!("{question} [y/N] ").as_bytes()).and_then(|()| err.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// As [`ask`], where nobody but somebody at a terminal can be asked: a script that pipes something in has not read the question.
///
/// # Errors
/// There is no terminal, with advice; it cannot be asked.
pub fn ask_at_terminal(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::failed(format!(
            "{question} Nobody can be asked here: say --yes if that is wanted. Nothing was changed"
        )));
    }
    ask(question)
}
