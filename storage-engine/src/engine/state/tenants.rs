//! Tenants of a shard, and the numbers that keys use for them.

use std::collections::BTreeMap;

use proto::TenantId;

/// Names and numbers of tenants. Tenants are numbered in the order of their first entries.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    numbers: BTreeMap<TenantId, u32>,
    /// Tenants that are not in the database yet.
    unwritten: BTreeMap<u32, TenantId>,
}

impl Tenants {
    /// Creates the tenants that are in the database.
    pub(crate) fn stored(numbers: BTreeMap<TenantId, u32>) -> Self {
        Self { numbers, unwritten: BTreeMap::new() }
    }

    /// Returns a tenant's number; `None` if the shard has no entry of the tenant.
    pub(crate) fn number(&self, name: &TenantId) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns a tenant's number, or the number that an unknown tenant will have.
    pub(crate) fn number_or_next(&self, name: &TenantId) -> u32 {
        self.number(name).unwrap_or_else(|| u32::try_from(self.numbers.len()).unwrap_or(u32::MAX))
    }

    /// Returns the name of the tenant with a number.
    pub(crate) fn name(&self, number: u32) -> Option<&TenantId> {
        self.numbers.iter().find(|(_, of)| **of == number).map(|(name, _)| name)
    }

    /// Returns the numbers of all tenants.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.numbers.values().copied().collect()
    }

    /// Adds a tenant, unless it is known.
    pub(crate) fn add(&mut self, name: &TenantId) {
        if !self.numbers.contains_key(name) {
            let number = self.number_or_next(name);
            self.numbers.insert(name.clone(), number);
            self.unwritten.insert(number, name.clone());
        }
    }

    /// Returns the tenants that are not in the database yet.
    pub(crate) fn unwritten(&self) -> BTreeMap<u32, TenantId> {
        self.unwritten.clone()
    }

    /// Records that tenants were written.
    pub(crate) fn wrote(&mut self, written: &BTreeMap<u32, TenantId>) {
        for number in written.keys() {
            self.unwritten.remove(number);
        }
    }
}
