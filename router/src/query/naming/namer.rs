//! Gives names to locations: those that came with lines have them, the others' are the symbol store's.
//!
//! Names are kept beside the dictionary whose locations they belong to. So naming has three steps: what is there to ask
//! ([`Definitions::questions`]), asking, which may wait for symbol tables that must be made first and holds nothing meanwhile, but
//! where names were taken again and again before it was their turn ([`Namer::ask`]), and taking what was told ([`Definitions::take`]).

use std::time::{Duration, Instant};

use symbol_store::SymbolStore;

use crate::query::naming::named_dictionary::{Definitions, Mapping, Question, Symbolized, Told};

/// Asks the symbol store.
#[derive(Debug)]
pub(crate) struct Namer {
    symbols: SymbolStore,
    deadline: Instant,
}

impl Namer {
    /// `deadline`: until when it waits for symbol tables that must be made first.
    pub(crate) fn new(symbols: SymbolStore, deadline: Instant) -> Self {
        Self { symbols, deadline }
    }

    /// What must be asked so that these locations of a dictionary have names; `None`: they have.
    pub(crate) fn questions(&self, definitions: &Definitions, wanted: &[u32]) -> Option<Vec<Question>> {
        definitions.questions(wanted, self.symbols.changes())
    }

    /// Asks; blocks while symbol tables are read or made.
    pub(crate) fn ask(&self, questions: Vec<Question>) -> Vec<Told> {
        // Before what is told: what comes meanwhile is asked for again.
        let changes = self.symbols.changes();
        // Without addresses and without waiting first: so all tables that are missing are made at once, and the time until
        // the deadline is not spent on the first of them alone.
        for question in &questions {
            let _none_asked: Vec<Symbolized> = self.symbols.symbolize(&question.key(), &[], Duration::ZERO);
        }
        let wait = || self.deadline.saturating_duration_since(Instant::now());
        let ask = |question: Question| {
            let source = self.symbols.table_number(&question.key(), wait());
            // Of another table, names are those of all or of none.
            let holds = question.known.as_ref() == Some(&source);
            let asked = if holds { &question.unnamed } else { &question.wanted };
            let (locations, addresses): (Vec<u32>, Vec<_>) = asked.iter().copied().unzip();
            let told = match addresses.is_empty() {
                true => Vec::new(),
                false => self.symbols.symbolize(&question.key(), &addresses, wait()),
            };
            let now = Mapping { source, changes, asked: Instant::now() };
            Told { mapping: question.mapping, symbolized: locations.into_iter().zip(told).collect(), now }
        };
        questions.into_iter().map(ask).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use symbol_store::Frame as Found;

    use super::*;
    use crate::query::naming::frame::FrameTable;
    use crate::query::naming::named_dictionary::tests::{addresses, named_by};
    use crate::query::tests::symbols::symbols;

    // Found by review: those that had names of the old table were left without any.
    #[test]
    fn names_of_another_table_are_those_of_all_that_are_wanted() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, Instant::now());
        let (mut definitions, mut table) = (addresses(3), FrameTable::default());
        let old: Arc<[Found]> = Arc::from([Found {
            function: Arc::from("old"),
            system_name: Arc::from("old"),
            file: Arc::from(""),
            line: 1,
            start_line: 1,
            is_cut: false,
        }]);
        let symbolized = [0, 1].map(|location| (location, Ok(Arc::clone(&old)))).to_vec();
        let told = Told { mapping: 0, symbolized, now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        assert!(definitions.is_named(1) && !definitions.is_named(2));
        assert!(namer.questions(&definitions, &[0, 1]).is_none(), "they have names");
        let all = definitions.all();
        let told = namer.ask(namer.questions(&definitions, &all).unwrap());
        definitions.take(&all, told, &mut table);
        for location in all {
            let why = definitions.lines(location)[0].unnamed.unwrap();
            assert_eq!(table.unnamed[why as usize].code, "no_debug_file", "location {location}");
        }
    }
    // Found by review: names that the store had cut were kept as if whole.
    #[test]
    fn a_frame_whose_inlined_calls_are_left_out_has_its_name_and_says_so_and_is_asked_for_again() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, Instant::now());
        let (mut definitions, mut table) = (addresses(2), FrameTable::default());
        let frame = |is_cut| -> Symbolized {
            let (function, file) = (Arc::from("outer"), Arc::from(""));
            Ok(Arc::from([Found {
                system_name: Arc::clone(&function),
                function,
                file,
                line: 1,
                start_line: 1,
                is_cut,
            }]))
        };
        let told = vec![(0, frame(false)), (1, frame(true))];
        let told = Told { mapping: 0, symbolized: told, now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        let lacking = |location: u32| {
            let line = definitions.lines(location)[0];
            assert_eq!(table.text(table.key(line.line.frame).unwrap().name), "outer");
            line.unnamed.and_then(|why| table.unnamed[why as usize].lacking())
        };
        assert_eq!(lacking(0), None);
        assert!(
            lacking(1).unwrap().to_string().starts_with("\"/usr/bin/app\": so many calls are inlined"),
            "{:?}",
            lacking(1)
        );
        let again = namer.questions(&definitions, &[0, 1]).unwrap();
        assert_eq!(again[0].unnamed.iter().map(|of| of.0).collect::<Vec<_>>(), [1], "alone, so that there is room");
        let told = Told { mapping: 0, symbolized: vec![(1, frame(false))], now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        assert!(namer.questions(&definitions, &[0, 1]).is_none());
    }
}
