//! Tables in columns for people.

/// Rows of as many cells as there are titles.
pub(super) struct Table<const COLUMNS: usize>(Vec<[String; COLUMNS]>);

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(super) fn new(titles: &[&str; COLUMNS]) -> Self {
        Self(vec![titles.map(str::to_owned)])
    }

    pub(super) fn row(&mut self, cells: [String; COLUMNS]) {
        self.0.push(cells);
    }

    /// Formats all rows, two spaces between columns. Columns at the places `right` are numbers: their cells end below each other.
    pub(super) fn show(&self, right: &[usize]) -> String {
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
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
