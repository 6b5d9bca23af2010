//! The unwind table of an executable file: the rule of each address, in a format that BPF searches in a few steps.
//!
//! ```text
//! | ( first row u32 | rows u32 ) of each page ... | padding to 16 |
//! | rule, 16 bytes ... | ( address in the page u16 | number of the rule u16 ) of each row ... |
//! ```
//!
//! The offsets of rules and rows, the number of the first page and the number of pages are in [`TableLayout`].
//! - Addresses are ELF virtual addresses. A page is 4 KiB of them, so it has few rows, and a search reads few cache
//!   lines.
//! - A row holds from its address to that of the next row. The rows of a page are sorted by address. The first row of a
//!   page is for the page's first address, so that a search needs no other page. Rule 0 is [`Rule::Unknown`].
//! - Integers are in the machine's byte order. No field crosses a multiple of 16 bytes, so a table may be split into
//!   blocks at any such offset.

use ebpf::{BLOCK_BYTES, TableLayout};
use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::rule::{RULE_BYTES, Rule};

/// Number of low bits of an address that are its offset within its page.
const PAGE_BITS: u32 = 12;
/// Largest number of pages that a table may span: 1 GiB of code.
pub(crate) const PAGES_MAX: u64 = 1 << 18;
/// Largest number of rows of a table, which take 16 MiB. The largest known libraries have a million.
pub(crate) const ROWS_MAX: usize = 1 << 22;
/// Largest number of distinct rules of a table, because the number of a rule must fit a row.
pub(crate) const RULES_MAX: usize = 1 << 16;

/// Reason why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TableError {
    #[error("its code spans more than {} MiB", PAGES_MAX >> (20 - PAGE_BITS))]
    TooFarApart,
    #[error("it has more than {ROWS_MAX} rows")]
    TooManyRows,
    #[error("rows must ascend")]
    NotAscending,
}

/// A row: the address in its page in the lower half, the number of the rule in the upper half.
type Row = u32;

/// A table under construction.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    /// The distinct rules, encoded as 16-byte numbers, which are fast to look up for every row.
    rules: IndexSet<u128, RandomState>,
    rows: Vec<Row>,
    /// Number of the first page.
    first_page: u64,
    /// For each page, the index of its first row.
    pages: Vec<u32>,
    end: u64,
}

fn packed(rule: Rule) -> u128 {
    u128::from_ne_bytes(rule.to_bytes())
}

impl Default for TableBuilder {
    fn default() -> Self {
        Self {
            rules: [packed(Rule::Unknown)].into_iter().collect(),
            rows: Vec::new(),
            first_page: 0,
            pages: Vec::new(),
            end: 0,
        }
    }
}

impl TableBuilder {
    /// Adds a rule that holds from `address` on, which must not be below that of the call before. Of several rules for
    /// one address, the last one counts.
    pub(crate) fn push(&mut self, address: u64, rule: Rule) -> Result<(), TableError> {
        if address < self.end {
            return Err(TableError::NotAscending);
        }
        self.end = address;
        let page = address >> PAGE_BITS;
        let low = (address & ((1 << PAGE_BITS) - 1)) as u32;
        if self.pages.is_empty() {
            self.first_page = page;
            self.pages.push(0);
            self.rows.push(0);
        }
        if page - self.first_page >= PAGES_MAX {
            return Err(TableError::TooFarApart);
        }
        while self.first_page + (self.pages.len() as u64) <= page {
            let continued = self.last_rule();
            self.pages.push(row_number(self.rows.len())?);
            self.rows.push(continued << 16);
        }
        // A new rule beyond the limit becomes [`Rule::Unknown`].
        let number = if self.rules.len() < RULES_MAX {
            self.rules.insert_full(packed(rule)).0
        } else {
            self.rules.get_index_of(&packed(rule)).unwrap_or_default()
        };
        let row = low | (number as u32) << 16;
        match self.rows.last_mut() {
            Some(last) if *last & 0xffff == low => *last = row,
            Some(last) if *last >> 16 == row >> 16 => {}
            _ => {
                row_number(self.rows.len())?;
                self.rows.push(row);
            }
        }
        Ok(())
    }

    fn last_rule(&self) -> u32 {
        self.rows.last().map_or(0, |row| row >> 16)
    }

    /// Returns the table; `None` if it has no rule but [`Rule::Unknown`].
    pub(crate) fn finish(self) -> Option<UnwindTable> {
        let Self { rules, rows, first_page, pages, .. } = self;
        if rules.len() == 1 {
            return None;
        }
        let rules_at = (pages.len() * 8).next_multiple_of(RULE_BYTES);
        let rows_at = rules_at + rules.len() * RULE_BYTES;
        let mut head = Vec::with_capacity(rows_at);
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut put = |number: usize| head.extend(narrow(number).to_ne_bytes());
        let ends = pages.iter().skip(1).map(|&row| row as usize).chain([rows.len()]);
        for (&first, end) in pages.iter().zip(ends) {
            put(first as usize);
            put(end - first as usize);
        }
        head.resize(rules_at, 0);
        rules.iter().for_each(|rule| head.extend(rule.to_ne_bytes()));
        let layout = TableLayout {
            first_page: u32::try_from(first_page).ok()?,
            pages: narrow(pages.len()),
            rules_at: narrow(rules_at),
            rows_at: narrow(rows_at),
        };
        Some(UnwindTable { head, rows, layout, rules: rules.len() })
    }
}

fn row_number(rows: usize) -> Result<u32, TableError> {
    u32::try_from(rows).ok().filter(|_| rows < ROWS_MAX).ok_or(TableError::TooManyRows)
}

/// An unwind table.
#[derive(Debug)]
pub(crate) struct UnwindTable {
    /// The encoded pages and rules.
    head: Vec<u8>,
    rows: Vec<Row>,
    pub(crate) layout: TableLayout,
    /// Number of distinct rules.
    pub(crate) rules: usize,
}

impl UnwindTable {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Length of the encoded table, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.rows.len() * size_of::<Row>()
    }

    /// Returns the encoded table in blocks. The last one is filled with zeros.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = [u8; BLOCK_BYTES]> + '_ {
        let mut head = self.head.as_slice();
        let mut rows = self.rows.iter();
        (0..self.bytes().div_ceil(BLOCK_BYTES)).map(move |_| {
            let mut block = [0; BLOCK_BYTES];
            let (first, rest) = head.split_at(head.len().min(BLOCK_BYTES));
            head = rest;
            block[..first.len()].copy_from_slice(first);
            // The lengths of the head, of the rows and of a block are multiples of a row's length, so no row lies in
            // two blocks.
            for (to, row) in block[first.len()..].as_chunks_mut().0.iter_mut().zip(rows.by_ref()) {
                *to = row.to_ne_bytes();
            }
            block
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rule::{Cfa, Register, Saved};
    use super::*;

    impl UnwindTable {
        /// Adds a row that belongs to no page.
        pub(crate) fn pad(&mut self) {
            self.rows.push(0);
        }

        fn word(&self, at: usize) -> u32 {
            u32::from_ne_bytes(self.bytes_at(at))
        }

        /// Returns the bytes at an offset of the encoded table.
        fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
            let in_head = self.head.get(at..at + N).map(|bytes| bytes.try_into().unwrap());
            in_head.unwrap_or_else(|| self.rows[(at - self.head.len()) / 4].to_ne_bytes()[..N].try_into().unwrap())
        }

        /// Returns the rule at an address, searched as BPF searches it.
        pub(crate) fn rule(&self, address: u64) -> [u8; RULE_BYTES] {
            let TableLayout { first_page, pages, rules_at, rows_at } = self.layout;
            let unknown = Rule::Unknown.to_bytes();
            let Some(page) = (address >> PAGE_BITS).checked_sub(first_page.into()).filter(|page| *page < pages.into())
            else {
                return unknown;
            };
            let at = page as usize * 8;
            let first = self.word(at);
            let count = self.word(at + 4);
            let rows: Vec<u32> = (first..first + count).map(|row| self.word((rows_at + row * 4) as usize)).collect();
            let low = (address & 0xfff) as u32;
            let row = rows[rows.partition_point(|row| row & 0xffff <= low) - 1];
            let at = rules_at as usize + (row >> 16) as usize * RULE_BYTES;
            self.bytes_at(at)
        }
    }

    fn rule(offset: i32) -> Rule {
        let cfa = Cfa::Register { base: Register(7), offset };
        Rule::Frame { cfa, fp: Saved::InPlace, bx: Saved::InPlace, return_address: -1 }
    }

    proptest! {
        #[test]
        fn every_address_has_the_rule_of_the_last_row_at_or_before_it(
            start in 0..0x1_0000_0000_u64,
            rows in prop::collection::vec((prop_oneof![4 => 0..40_u64, 1 => 0..300_000_u64], 0..5_i32), 1..200),
            picked in prop::collection::vec(0..0x40_0000_u64, 50),
        ) {
            let mut builder = TableBuilder::default();
            let mut all = std::collections::BTreeMap::new();
            let mut address = start;
            for (step, offset) in rows {
                address += step;
                let rule = if offset == 0 { Rule::Unknown } else { rule(offset) };
                builder.push(address, rule).unwrap();
                all.insert(address, rule);
            }
            let Some(table) = builder.finish() else {
                prop_assert!(all.values().all(|rule| *rule == Rule::Unknown));
                return Ok(());
            };
            prop_assert!(table.rows() <= all.len() + ((address >> 12) - (start >> 12)) as usize + 1);
            let rows = table.rows.iter().flat_map(|row| row.to_ne_bytes());
            let mut bytes: Vec<u8> = table.head.iter().copied().chain(rows).collect();
            prop_assert_eq!(bytes.len(), table.bytes());
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            prop_assert!(table.blocks().flatten().eq(bytes));
            let end = address | 0xfff;
            let near = all.keys().flat_map(|&at| [at.saturating_sub(1), at, at + 1]);
            for at in picked.into_iter().map(|of| start.saturating_sub(1000) + of).chain(near).filter(|at| *at <= end) {
                let wanted = all.range(..=at).next_back().map_or(Rule::Unknown, |(_, rule)| *rule);
                prop_assert_eq!(table.rule(at), wanted.to_bytes(), "{:#x}", at);
            }
            prop_assert_eq!(table.rule(end + 1), Rule::Unknown.to_bytes());
        }
    }

    #[test]
    fn tables_beyond_the_limits_are_refused() {
        let mut builder = TableBuilder::default();
        builder.push(5, rule(8)).unwrap();
        assert_eq!(builder.push(4, rule(8)), Err(TableError::NotAscending));
        assert_eq!(builder.push(PAGES_MAX << PAGE_BITS, rule(8)), Err(TableError::TooFarApart));
        let mut builder = TableBuilder::default();
        let refused = (0..).map(|i| builder.push(i, rule(i as i32 % 2))).find(Result::is_err);
        assert_eq!(refused, Some(Err(TableError::TooManyRows)));
        assert!(builder.rows.len() == ROWS_MAX);
        // A table with too many distinct rules is not refused, but the rules beyond the limit are unknown.
        let mut builder = TableBuilder::default();
        (0..70_000).for_each(|i| builder.push(i, rule(i as i32)).unwrap());
        let table = builder.finish().unwrap();
        assert_eq!((table.rule(65_534), table.rule(69_999)), (rule(65_534).to_bytes(), Rule::Unknown.to_bytes()));
    }
}
