//! Tables in columns for people.

/// Rows of as many cells as there are titles.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self(vec![titles.iter().map(|title| (*title).to_owned()).collect()])
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Formats all rows, two spaces between columns. Columns at the places `right` are numbers: their cells end below each other.
    pub(crate) fn show(&self, right: &[usize]) -> String {
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.0.first().map_or(0, Vec::len)).map(width).collect();
        let mut text = String::new();
        for row in &self.0 {
            let cells =
                row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match right.contains(&column) {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}
