//! The books of all tenants. Those that were not used for longest go when they take too many bytes together, and a tenant that is too
//! large for all of them is answered without one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use proto::TenantId;

use crate::query::naming::tenant_names::Book;

/// See the module. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    books: Arc<Mutex<Books>>,
    bytes_max: usize,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Books {
    kept: HashMap<TenantId, Kept>,
    uses: u64,
}

#[derive(Debug, Default)]
struct Kept {
    book: Book,
    used: u64,
    bytes: usize,
    /// It was too large to be kept: what shards have more is asked for only where a query cannot do without.
    is_too_large: bool,
}

#[derive(Clone, Debug, Default)]
struct Metrics {
    bytes: Gauge,
    let_go: Family<Why, Counter<u64, AtomicU64>>,
}

/// Why a book was let go.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    reason: &'static str,
}

const RENUMBERED: Why = Why { reason: "renumbered" };
const TOO_LARGE: Why = Why { reason: "too_large" };
const NO_ROOM: Why = Why { reason: "no_room" };

impl Shelf {
    /// An empty one that holds so many bytes; counts in this registry, under `varve_router`.
    pub(crate) fn new(bytes_max: usize, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        let registry = registry.sub_registry_with_prefix("varve_router");
        registry.register(
            "names_bytes",
            "Bytes of the locations and their names that are kept between queries",
            metrics.bytes.clone(),
        );
        registry.register(
            "names_let_go",
            "Tenants whose names were let go, to be asked for again: a shard began to number locations anew, they were too large to be \
             kept at all, or others were used that needed the room",
            metrics.let_go.clone(),
        );
        Self { books: Arc::default(), bytes_max, metrics }
    }

    /// The book of a tenant, new or old.
    pub(crate) fn book(&self, tenant: &TenantId) -> Book {
        let Books { kept, uses } = &mut *self.books.lock();
        *uses += 1;
        let kept = kept.entry(tenant.clone()).or_default();
        kept.used = *uses;
        kept.book.clone()
    }

    /// Whether the book of a tenant was too large to be kept.
    pub(crate) fn is_too_large(&self, tenant: &TenantId) -> bool {
        self.books.lock().kept.get(tenant).is_some_and(|kept| kept.is_too_large)
    }

    /// Begins a new book of a tenant, if this is still the one: a shard has begun another generation.
    pub(crate) fn renew(&self, tenant: &TenantId, book: &Book) {
        let kept = &mut self.books.lock().kept;
        if kept.get(tenant).is_some_and(|kept| kept.book.is(book)) {
            kept.remove(tenant);
            self.metrics.let_go.get_or_create(&RENUMBERED).inc();
            self.tell(kept);
        }
    }

    /// Notes how large a book is, and lets it go if it is too large by itself; and those that were used the longest time ago while
    /// all are too large together.
    pub(crate) fn weigh(&self, tenant: &TenantId, book: &Book, bytes: usize) {
        let kept = &mut self.books.lock().kept;
        if let Some(known) = kept.get_mut(tenant).filter(|kept| kept.book.is(book)) {
            let is_too_large = bytes > self.bytes_max;
            if is_too_large {
                *known = Kept { used: known.used, is_too_large, ..Kept::default() };
                self.metrics.let_go.get_or_create(&TOO_LARGE).inc();
            }
            let own = if is_too_large { 0 } else { bytes };
            known.bytes = own + size_of::<Kept>() + tenant.as_str().len();
        }
        while total(kept) > self.bytes_max {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used).map(|(tenant, _)| tenant.clone());
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
            self.metrics.let_go.get_or_create(&NO_ROOM).inc();
        }
        self.tell(kept);
    }

    fn tell(&self, kept: &HashMap<TenantId, Kept>) {
        self.metrics.bytes.set(i64::try_from(total(kept)).unwrap_or(i64::MAX));
    }
}

fn total(kept: &HashMap<TenantId, Kept>) -> usize {
    kept.values().map(|kept| kept.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_go_when_there_are_too_many_bytes_and_one_that_is_too_large_is_not_kept() {
        const MAX: usize = 1 << 20;
        let shelf = Shelf::new(MAX, &mut Registry::default());
        let let_go = |why| shelf.metrics.let_go.get_or_create(&why).get();
        let tenants = ["a", "b", "c"].map(|name| TenantId::new(name).unwrap());
        let books = [0, 1, 2].map(|i| shelf.book(&tenants[i]));
        shelf.weigh(&tenants[0], &books[0], MAX / 2);
        shelf.weigh(&tenants[1], &books[1], MAX / 4);
        assert!(shelf.book(&tenants[0]).is(&books[0]));
        assert!((MAX as i64 / 4 * 3..MAX as i64 / 4 * 3 + 1000).contains(&shelf.metrics.bytes.get()));
        // The second was used before the first was again.
        shelf.weigh(&tenants[2], &books[2], MAX / 2 - 1000);
        assert!(shelf.book(&tenants[0]).is(&books[0]) && shelf.book(&tenants[2]).is(&books[2]));
        assert!(!shelf.book(&tenants[1]).is(&books[1]));
        assert_eq!((let_go(NO_ROOM), let_go(TOO_LARGE)), (1, 0));
        shelf.weigh(&tenants[2], &books[2], MAX + 1);
        assert!(!shelf.book(&tenants[2]).is(&books[2]), "too large for all of them");
        assert!(shelf.is_too_large(&tenants[2]) && shelf.metrics.bytes.get() < MAX as i64 / 2 + 1000);
        assert_eq!((let_go(NO_ROOM), let_go(TOO_LARGE)), (1, 1));
        // What is a tenant's book no more does not count.
        shelf.weigh(&tenants[2], &books[2], MAX * 2);
        let again = shelf.book(&tenants[0]);
        shelf.renew(&tenants[0], &books[1]);
        assert!(shelf.book(&tenants[0]).is(&again) && let_go(RENUMBERED) == 0, "it is another one's");
        shelf.renew(&tenants[0], &again);
        assert!(!shelf.book(&tenants[0]).is(&again) && let_go(RENUMBERED) == 1);
        assert!(shelf.metrics.bytes.get() < 1000, "{:?}", shelf.metrics.bytes);
        // One that was too large once and is not any more is kept.
        let smaller = shelf.book(&tenants[2]);
        shelf.weigh(&tenants[2], &smaller, MAX / 2);
        assert!(shelf.metrics.bytes.get() > MAX as i64 / 2);
    }
}
