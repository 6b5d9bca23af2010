//! Pages of locations for routers. A router caches locations by number, so responses need not repeat the known ones.

use std::sync::Arc;

use proto::{Dictionary, Importer, KnownLocations, LocationPage, TenantId};

use crate::engine::store::Store;
use crate::memory::interner::saturating_u32;

/// Maximum number of locations in one page. Reading a page locks the tenant dictionary, so `apply` waits some
/// milliseconds.
const LOCATIONS_MAX: usize = 1 << 14;

/// Size of a page, in bytes, after which no location is added. The last location may exceed this size.
const BYTES_MAX: usize = 32 << 20;

/// Returns the next page of a tenant's locations in memory, after those that the router has already. The generation in
/// `known` identifies the dictionary that numbered these locations. If it is not the current one, the router gets the
/// first page. Returns an empty page for a tenant without locations.
pub(crate) fn locations(store: &Store, tenant: &TenantId, known: KnownLocations) -> LocationPage {
    let shared = {
        let state = store.state();
        let tenant = state.tenants.number(tenant);
        tenant.and_then(|tenant| state.partitions.loaded_dictionary(tenant)).map(Arc::clone)
    };
    let Some(shared) = shared else { return LocationPage::default() };
    let shared = shared.read();
    let generation = shared.generation();
    let count = saturating_u32(shared.dictionary.locations.len());
    let is_known = known.generation == generation && known.count <= count;
    let first = if is_known { known.count } else { 0 };
    let mut importer = Importer::new(&shared.dictionary);
    let mut dictionary = Dictionary::default();
    for location in (first..count).take(LOCATIONS_MAX) {
        importer.location(&mut dictionary, location);
        if dictionary.memory_bytes() > BYTES_MAX {
            break;
        }
    }
    LocationPage { generation, first, count, dictionary }
}
