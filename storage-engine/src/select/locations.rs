//! Locations for routers, page by page: what is known by its number need not be in every answer.

use std::sync::Arc;

use proto::{Dictionary, Importer, KnownLocations, LocationPage, TenantId};

use crate::engine::Engine;
use crate::memory::partition::saturating_u32;

/// Of one page. The vocabulary is held meanwhile, and `apply` waits for it: some milliseconds.
const LOCATIONS_MAX: usize = 1 << 14;

/// A page may be larger by one location.
const BYTES_MAX: usize = 32 << 20;

impl Engine {
    /// Locations of a tenant that are in memory: those behind what is known, or, where that is of another generation, the first
    /// ones. None of a tenant without any.
    pub fn locations(&self, tenant: &TenantId, known: KnownLocations) -> LocationPage {
        let vocabulary = {
            let state = self.state.read();
            state.tenants.get(tenant).and_then(|tenant| state.vocabularies.get(tenant)).map(Arc::clone)
        };
        let Some(vocabulary) = vocabulary else { return LocationPage::default() };
        let vocabulary = vocabulary.read();
        let (generation, count) = (vocabulary.generation(), saturating_u32(vocabulary.dictionary.locations.len()));
        let is_known = known.generation == generation && known.count <= count;
        let first = if is_known { known.count } else { 0 };
        let (mut importer, mut dictionary) = (Importer::new(&vocabulary.dictionary), Dictionary::default());
        for location in (first..count).take(LOCATIONS_MAX) {
            importer.location(&mut dictionary, location);
            if dictionary.memory_bytes() > BYTES_MAX {
                break;
            }
        }
        LocationPage { generation, first, count, dictionary }
    }
}
