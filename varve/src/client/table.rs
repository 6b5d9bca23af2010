//! Tables for the terminal: columns as wide as their widest cell, numbers to the right.

use super::printable::printable;

/// One line per row, the header first.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|text| printable(text)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| printable(text)).collect()).collect();
    let columns = header.len();
    let cell = |row: &'_ [String], i: usize| row.get(i).map_or(0, |text| text.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().map(|row| cell(row, i)).max().unwrap_or(0).max(header[i].chars().count()))
        .collect();
    let is_number = |i: usize| {
        let digits = |text: &String| text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
        !rows.is_empty() && rows.iter().filter_map(|row| row.get(i)).all(digits)
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(i, text)| {
            let padding = " ".repeat(widths[i].saturating_sub(text.chars().count()));
            if is_number(i) { format!("{padding}{text}") } else { format!("{text}{padding}") }
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut out = line(&header);
    out.extend(rows.iter().map(|row| line(row)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_cannot_break_its_line_or_command_the_terminal() {
        let rows = vec![vec!["a\u{1b}]0;owned\u{7}\nb".to_owned(), "1".to_owned()]];
        let want = "na\u{fffd}me          value\na\u{fffd}]0;owned\u{fffd}\u{fffd}b      1\n";
        assert_eq!(render(&["na\tme", "value"], &rows), want);
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_to_the_right() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "12.5".to_owned()]];
        assert_eq!(render(&["name", "value"], &rows), "name    value\na           1\nlonger   12.5\n");
        assert_eq!(render(&["name"], &[]), "name\n");
    }
}
