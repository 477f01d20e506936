//! Markdown tables, and figures as cells.

/// Returns a row of a table. An empty cell is one space.
pub fn row<S: AsRef<str>>(cells: &[S]) -> String {
    let text = |cell: &S| if cell.as_ref().is_empty() { " |".to_owned() } else { format!(" {} |", cell.as_ref()) };
    std::iter::once("|".to_owned()).chain(cells.iter().map(text)).collect()
}

/// Returns the head of a table: the names of its columns and the rule below.
pub fn head<S: AsRef<str>>(names: &[S]) -> String {
    format!("{}\n|{}", row(names), "---|".repeat(names.len()))
}

/// Prints a row of cells of any type that has a text.
#[macro_export]
macro_rules! print_row {
    ($($cell:expr),+ $(,)?) => { println!("{}", $crate::table::row(&[$($cell.to_string()),+])) };
}

/// Returns a number with so many decimals.
pub fn number(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

/// Returns a number with so many decimals, or `-` if there is none.
pub fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| number(value, decimals))
}

/// Returns bytes for people: one decimal, rounded up, units of 1024.
pub fn human(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit < 4 {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let rounded = (value * 10.0).ceil() / 10.0;
    // As much as the next unit.
    let (rounded, unit) = if rounded >= 1024.0 && unit < 4 { (1.0, unit + 1) } else { (rounded, unit) };
    format!("{rounded:.1}{}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

/// Returns bytes for people, and in brackets to the byte.
pub fn exact(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", human(bytes))
}

/// Returns MB/s, a whole number.
pub fn rate(bytes: u64, seconds: f64) -> String {
    number(bytes as f64 / 1e6 / seconds.max(1e-6), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown() {
        assert_eq!(head(&["", "MB/s"]), "| | MB/s |\n|---|---|");
        assert_eq!(row(&["a", "", "b c"]), "| a | | b c |");
    }

    #[test]
    fn figures_have_decimals_or_a_dash() {
        assert_eq!((cell(Some(0.126), 2), cell(None, 2)), ("0.13".to_owned(), "-".to_owned()));
        assert_eq!((rate(5_000_000, 2.0), rate(1, 0.0)), ("2".to_owned(), "1".to_owned()));
    }

    #[test]
    fn bytes_are_rounded_up_to_one_decimal() {
        let texts = [0, 1023, 1024, 1025, (1 << 20) - 1, 491_782_963, 4 << 30].map(human);
        assert_eq!(texts, ["0.0B", "1023.0B", "1.0KiB", "1.1KiB", "1.0MiB", "469.1MiB", "4.0GiB"]);
        assert_eq!(exact(2048), "2.0KiB (2048 bytes)");
    }
}
