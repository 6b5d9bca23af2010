//! Symbolization: sends the requests of a dictionary to the symbol store. Locations that were sent with lines need no
//! request.

use std::time::{Duration, Instant};

use proto::TenantId;
use symbol_store::SymbolStore;

use crate::query::naming::named_dictionary::{
    MappingSource, NamedDictionary, SymbolRequest, SymbolResponse, Symbolized,
};

/// The symbol store, with the time limit of one query.
#[derive(Debug)]
pub(crate) struct Namer {
    symbols: SymbolStore,
    tenant: TenantId,
    deadline: Instant,
}

impl Namer {
    /// Creates a namer for the profiles of a tenant. The query waits until `deadline` for symbol tables that are being
    /// built.
    pub(crate) fn new(symbols: SymbolStore, tenant: &TenantId, deadline: Instant) -> Self {
        Self { symbols, tenant: tenant.clone(), deadline }
    }

    /// Returns the requests that these locations of a dictionary need, as [`NamedDictionary::requests`] does.
    pub(crate) fn requests(&self, dictionary: &NamedDictionary, wanted: &[u32]) -> Option<Vec<SymbolRequest>> {
        dictionary.requests(wanted, self.symbols.changes())
    }

    /// Symbolizes addresses. Blocks while symbol tables are read or built.
    pub(crate) fn symbolize(&self, requests: Vec<SymbolRequest>) -> Vec<SymbolResponse> {
        // The counter is read first, so that tables that arrive during this call are requested again.
        let changes = self.symbols.changes();
        // The first calls ask for no address and do not wait. They start the construction of all missing tables at
        // once, so that the first table does not use up the time until the deadline.
        for request in &requests {
            let _none_wanted: Vec<Symbolized> = self.symbols.symbolize(&request.key(&self.tenant), &[], Duration::ZERO);
        }
        let wait = || self.deadline.saturating_duration_since(Instant::now());
        let symbolize = |request: SymbolRequest| {
            let table = self.symbols.table_number(&request.key(&self.tenant), wait());
            // All names of a mapping must come from the same table.
            let is_same = request.known.as_ref() == Some(&table);
            let wanted = if is_same { &request.unnamed } else { &request.wanted };
            let (locations, addresses): (Vec<u32>, Vec<_>) = wanted.iter().copied().unzip();
            let symbolized = match addresses.is_empty() {
                true => Vec::new(),
                false => self.symbols.symbolize(&request.key(&self.tenant), &addresses, wait()),
            };
            let now = MappingSource { table, changes, requested: Instant::now() };
            SymbolResponse {
                mapping: request.mapping,
                symbolized: locations.into_iter().zip(symbolized).collect(),
                now,
            }
        };
        requests.into_iter().map(symbolize).collect()
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

    // Once, locations whose names came from the old table were left without names.
    #[test]
    fn all_wanted_locations_have_names_of_a_new_table() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, &TenantId::default_tenant(), Instant::now());
        let mut dictionary = addresses(3);
        let mut table = FrameTable::default();
        let old: Arc<[Found]> = Arc::from([Found {
            function: Arc::from("old"),
            system_name: Arc::from("old"),
            file: Arc::from(""),
            line: 1,
            start_line: 1,
            is_cut: false,
        }]);
        let symbolized = [0, 1].map(|location| (location, Ok(Arc::clone(&old)))).to_vec();
        let told = SymbolResponse { mapping: 0, symbolized, now: named_by(Ok(7), 0, Duration::ZERO) };
        dictionary.apply(&[0, 1], vec![told], &mut table);
        assert!(dictionary.is_named(1) && !dictionary.is_named(2));
        assert!(namer.requests(&dictionary, &[0, 1]).is_none(), "they have names");
        let all = dictionary.all();
        let responses = namer.symbolize(namer.requests(&dictionary, &all).unwrap());
        dictionary.apply(&all, responses, &mut table);
        for location in all {
            let why = dictionary.lines(location)[0].unnamed.unwrap();
            assert_eq!(table.unnamed[why as usize].code, "no_debug_file", "location {location}");
        }
    }

    // Once, names without their inlined calls were kept as if they were complete.
    #[test]
    fn a_frame_with_omitted_inlined_calls_is_requested_again() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, &TenantId::default_tenant(), Instant::now());
        let mut dictionary = addresses(2);
        let mut table = FrameTable::default();
        let frame = |is_cut| -> Symbolized {
            let function = Arc::from("outer");
            let file = Arc::from("");
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
        let told = SymbolResponse { mapping: 0, symbolized: told, now: named_by(Ok(7), 0, Duration::ZERO) };
        dictionary.apply(&[0, 1], vec![told], &mut table);
        let missing = |location: u32| {
            let line = dictionary.lines(location)[0];
            assert_eq!(table.text(table.key(line.line.frame).unwrap().name), "outer");
            line.unnamed.and_then(|why| table.unnamed[why as usize].missing_names())
        };
        assert_eq!(missing(0), None);
        assert!(
            missing(1).unwrap().to_string().starts_with("\"/usr/bin/app\": this file has too many inlined calls"),
            "{:?}",
            missing(1)
        );
        let again = namer.requests(&dictionary, &[0, 1]).unwrap();
        assert_eq!(
            again[0].unnamed.iter().map(|of| of.0).collect::<Vec<_>>(),
            [1],
            "alone, so that nothing is omitted"
        );
        let told =
            SymbolResponse { mapping: 0, symbolized: vec![(1, frame(false))], now: named_by(Ok(7), 0, Duration::ZERO) };
        dictionary.apply(&[0, 1], vec![told], &mut table);
        assert!(namer.requests(&dictionary, &[0, 1]).is_none());
    }
}
