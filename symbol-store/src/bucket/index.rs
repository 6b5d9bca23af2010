//! A copy of all names in a bucket. The names have all metadata of the tables.
//!
//! Invariant: which table is used for a build ID follows from the set of names alone. It does not depend on the order
//! in which routers added them, so concurrent uploads need no lock. The function [`kept`] never gives up a table that
//! any larger set of names would use, so routers may delete superseded tables at the same time.

use std::collections::{BTreeSet, HashMap};

use proto::TenantId;

use super::name::{FileName, ObjectName, TableName};

/// Maximum number of names of other files that are followed for one build ID. A file and its debug file share one name.
const ALIASES_MAX: usize = 8;

/// All names in a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Number of all objects, also of those that are not varve's.
    pub(crate) objects: usize,
    tenants: HashMap<TenantId, Names>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    /// Tables of each file, with their sizes in bytes.
    tables: HashMap<FileName, HashMap<TableName, u64>>,
    aliases: HashMap<FileName, BTreeSet<FileName>>,
}

/// A table in a bucket, with its path and size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) file: FileName,
    pub(crate) table: TableName,
    pub(crate) bytes: u64,
}

/// The tables that together have the names for one build ID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// The best table.
    pub(crate) table: Stored,
    /// Another table of the same file, whose segments replace those of `table`. `None` if `table` has file offsets, or
    /// if no table has.
    pub(crate) segments: Option<Stored>,
}

impl Index {
    /// Adds the name of an object of `bytes` bytes.
    pub(crate) fn add(&mut self, name: ObjectName, bytes: u64) {
        match name {
            ObjectName::Table { tenant, file, table } => {
                self.tenants.entry(tenant).or_default().tables.entry(file).or_default().insert(table, bytes);
            }
            ObjectName::Alias { tenant, alias, file } => {
                self.tenants.entry(tenant).or_default().aliases.entry(alias).or_default().insert(file);
            }
        }
    }

    /// Returns the tables to use for the build ID `id` of a tenant. `None` if there is none.
    pub(crate) fn wanted(&self, tenant: &TenantId, id: &FileName) -> Option<Wanted> {
        let names = self.tenants.get(tenant)?;
        let aliased = names.aliases.get(id).into_iter().flatten().take(ALIASES_MAX);
        let files: BTreeSet<&FileName> = aliased.chain([id]).collect();
        let of_file = |file: &FileName| {
            let tables = names.tables.get(file).into_iter().flatten();
            let stored =
                |(table, bytes): (&TableName, &u64)| Stored { file: file.clone(), table: *table, bytes: *bytes };
            tables.map(stored).collect::<Vec<_>>()
        };
        let all: Vec<Stored> = files.into_iter().flat_map(of_file).collect();
        let best = |all: &mut dyn Iterator<Item = &Stored>| all.max_by_key(|stored| stored.table).cloned();
        let table = best(&mut all.iter())?;
        let is_complete = table.table.has_file_offsets;
        let segments = if is_complete {
            None
        } else {
            // Another file with the same alias is another program, whose segments would be wrong.
            best(&mut all.iter().filter(|stored| stored.file == table.file && stored.table.has_file_offsets))
        };
        Some(Wanted { table, segments })
    }

    /// Returns the tables of one file of a tenant.
    pub(crate) fn tables(&self, tenant: &TenantId, file: &FileName) -> Vec<TableName> {
        let tables = self.tenants.get(tenant).and_then(|names| names.tables.get(file));
        tables.into_iter().flatten().map(|(table, _)| *table).collect()
    }

    /// Returns the names of all objects of a tenant that belong to `file`, or of all objects of the tenant.
    pub(crate) fn objects(&self, tenant: &TenantId, of: Option<&FileName>) -> Vec<ObjectName> {
        let Some(names) = self.tenants.get(tenant) else { return Vec::new() };
        let is_wanted = |file: &FileName| of.is_none_or(|wanted| wanted == file);
        let tables = names.tables.iter().filter(|(file, _)| is_wanted(file)).flat_map(|(file, tables)| {
            let name =
                |table: &TableName| ObjectName::Table { tenant: tenant.clone(), file: file.clone(), table: *table };
            tables.keys().map(name)
        });
        let aliases = names.aliases.iter().flat_map(|(alias, files)| {
            let name = |file: &FileName| ObjectName::Alias {
                tenant: tenant.clone(),
                alias: alias.clone(),
                file: file.clone(),
            };
            files.iter().filter(|file| is_wanted(file)).map(name)
        });
        tables.chain(aliases).collect()
    }

    /// Returns the size of all tables of a tenant except those of `file`, in bytes. `counted` returns the size with
    /// which a table counts.
    pub(crate) fn bytes_without(&self, tenant: &TenantId, file: &FileName, counted: impl Fn(u64) -> u64) -> u64 {
        let files = self.tenants.get(tenant).into_iter().flat_map(|names| &names.tables);
        let tables = files.filter(|(other, _)| *other != file).flat_map(|(_, tables)| tables.values());
        tables.map(|bytes| counted(*bytes)).sum()
    }
}

/// Returns those tables of one file that are needed: the best one, and the best one with file offsets.
pub(crate) fn kept(tables: &[TableName]) -> Vec<TableName> {
    let best = tables.iter().max();
    let with_offsets = tables.iter().filter(|table| table.has_file_offsets).max();
    let mut kept: Vec<TableName> = best.into_iter().chain(with_offsets).copied().collect();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::BuildId;

    use super::*;
    use crate::bucket::name::tests::table_name;
    use crate::source::Source;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn file(number: u8) -> FileName {
        FileName::of(&BuildId::Gnu(vec![number; 20]))
    }

    fn table(source: Source, uploaded_ms: u64, has_file_offsets: bool) -> TableName {
        TableName { source, uploaded_ms, has_file_offsets, sha256: [0; 32] }
    }

    fn index(objects: &[(&str, u8, TableName)]) -> Index {
        let mut index = Index::default();
        for (name, number, table) in objects {
            index.add(ObjectName::Table { tenant: tenant(name), file: file(*number), table: *table }, 1);
        }
        index
    }

    #[test]
    fn the_better_source_wins_and_of_equal_sources_the_later_upload() {
        let early = table(Source::Symtab, 1, true);
        let late = table(Source::Symtab, 2, true);
        let index = |tables: &[TableName]| {
            let index = index(&tables.iter().map(|table| ("a", 1, *table)).collect::<Vec<_>>());
            index.wanted(&tenant("a"), &file(1)).map(|wanted| (wanted.table.table, wanted.segments.map(|of| of.table)))
        };
        assert_eq!(index(&[early, late]), Some((late, None)));
        let dwarf = table(Source::Dwarf, 0, false);
        assert_eq!(index(&[dwarf, late, early]), Some((dwarf, Some(late))));
        assert_eq!(index(&[dwarf]), Some((dwarf, None)));
        assert_eq!(index(&[]), None);
    }

    #[test]
    fn another_tenant_finds_nothing() {
        let index = index(&[("a", 1, table(Source::Dwarf, 1, true))]);
        assert!(index.wanted(&tenant("a"), &file(1)).is_some());
        assert_eq!(index.wanted(&tenant("b"), &file(1)), None);
        assert_eq!(index.objects(&tenant("b"), None), []);
        assert_eq!(index.bytes_without(&tenant("b"), &file(2), |bytes| bytes), 0);
        assert_eq!(index.bytes_without(&tenant("a"), &file(2), |bytes| bytes), 1);
        assert_eq!(index.bytes_without(&tenant("a"), &file(1), |bytes| bytes), 0);
    }

    #[test]
    fn an_alias_leads_to_the_file_and_never_to_segments_of_another_one() {
        let debug = table(Source::Dwarf, 5, false);
        let program = table(Source::Symtab, 4, true);
        let mut index = index(&[("a", 1, debug), ("a", 2, program)]);
        for number in [1, 2] {
            index.add(ObjectName::Alias { tenant: tenant("a"), alias: file(9), file: file(number) }, 0);
        }
        let wanted = index.wanted(&tenant("a"), &file(9)).unwrap();
        assert_eq!((wanted.table.file, wanted.segments), (file(1), None));
        assert_eq!(index.objects(&tenant("a"), Some(&file(1))).len(), 2, "the table and its alias");
        assert_eq!(index.wanted(&tenant("b"), &file(9)), None);
    }

    proptest! {
        /// Routers see different subsets of the uploads, and each deletes what its own subset supersedes.
        #[test]
        fn routers_that_delete_superseded_tables_keep_what_is_used(
            tables in proptest::collection::vec(table_name(), 1..6),
            seen in proptest::collection::vec(any::<u8>(), 0..5),
        ) {
            let mut left = tables.clone();
            for mask in seen {
                let subset: Vec<TableName> =
                    tables.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, table)| *table).collect();
                let kept = kept(&subset);
                left.retain(|table| !subset.contains(table) || kept.contains(table));
            }
            let wanted = |tables: &[TableName]| {
                index(&tables.iter().map(|table| ("a", 1, *table)).collect::<Vec<_>>()).wanted(&tenant("a"), &file(1))
            };
            prop_assert_eq!(wanted(&left), wanted(&tables));
        }
    }
}
