//! Tables for the terminal: no frame, two spaces between columns, and numbers aligned to the right. The format is the
//! same on a terminal and in a pipe.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::printable::printable;

/// Formats a table: first the header, then one line per row.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|text| printable(text)));
    table.add_rows(rows.iter().map(|row| row.iter().map(|text| printable(text))));
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if is_numeric(rows, i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()]).collect()
}

/// Returns true if every cell of a column begins as a number does.
fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    let begins_as_number = |text: &String| text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
    !rows.is_empty() && rows.iter().filter_map(|row| row.get(column)).all(begins_as_number)
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
    fn columns_are_aligned_and_numbers_are_right_justified() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "12.5".to_owned()]];
        assert_eq!(render(&["name", "value"], &rows), "name    value\na           1\nlonger   12.5\n");
        assert_eq!(render(&["name"], &[]), "name\n");
    }

    #[test]
    fn characters_of_two_cells_are_counted_as_two() {
        let rows = vec![vec!["大小".to_owned(), "1".to_owned()], vec!["abcd".to_owned(), "2".to_owned()]];
        assert_eq!(render(&["name", "n"], &rows), "name  n\n大小  1\nabcd  2\n");
    }
}
