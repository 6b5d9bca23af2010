//! Tests of retention classes: which tenants share one, and which changes apply to stored samples.

use super::*;

/// Returns the number and the retention of a tenant's class, and whether the tenant owns the class.
fn class_of(meta: &MetaState, name: &str) -> (u8, u64, bool) {
    let known = &meta.state().tenants[&tenant(name)];
    let Retention([raw, ..]) = meta.state().retention_classes[usize::from(known.retention_class)];
    (known.retention_class, raw / 86_400, known.owns_class)
}

fn applied(meta: &mut MetaState, command: Command) -> Applied {
    let applied = meta.apply(meta.state().revision + 1, 0, &command).unwrap();
    meta.state().check().unwrap();
    applied
}

#[test]
fn a_tenant_that_is_alone_in_its_class_changes_the_class() {
    let mut meta = cluster();
    assert_eq!(class_of(&meta, "acme"), (1, 30, true));
    applied(&mut meta, Command::UpdateTenant(tenant("acme"), policy(7)));
    assert_eq!(class_of(&meta, "acme"), (1, 7, true));
    assert_eq!(meta.state().retention_classes.len(), 2);
}

#[test]
fn a_class_that_two_tenants_have_had_is_never_changed() {
    let mut meta = cluster();
    applied(&mut meta, Command::CreateTenant(tenant("other"), policy(30)));
    assert_eq!([class_of(&meta, "acme"), class_of(&meta, "other")], [(1, 30, false); 2]);
    applied(&mut meta, Command::UpdateTenant(tenant("other"), policy(7)));
    assert_eq!(class_of(&meta, "other"), (2, 7, true));
    // The stored samples of the other tenant are still in the class that only acme has now.
    applied(&mut meta, Command::UpdateTenant(tenant("acme"), policy(1)));
    assert_eq!(class_of(&meta, "acme"), (3, 1, true));
    assert_eq!(meta.state().retention_classes[1], policy(30).retention);
    // Another limit moves nobody to another class.
    applied(&mut meta, Command::CreateTenant(tenant("third"), policy(30)));
    let limits = Limits::default();
    applied(&mut meta, Command::UpdateTenant(tenant("third"), Policy { limits, ..policy(30) }));
    assert_eq!(class_of(&meta, "third"), (1, 30, false));
    // Samples of a deleted tenant stay in their class.
    applied(&mut meta, Command::DeleteTenant(tenant("other")));
    applied(&mut meta, Command::CreateTenant(tenant("fourth"), policy(7)));
    applied(&mut meta, Command::UpdateTenant(tenant("fourth"), policy(2)));
    assert_eq!((class_of(&meta, "fourth"), meta.state().retention_classes[2]), ((4, 2, true), policy(7).retention));
}

#[test]
fn the_first_class_is_that_of_the_default_tenant_alone() {
    let mut meta = cluster();
    assert_eq!(applied(&mut meta, Command::SetDefaultRetention(policy(5).retention)), Applied::Changed);
    // Another tenant with the same retention has another class.
    applied(&mut meta, Command::CreateTenant(tenant("other"), policy(5)));
    assert_eq!(class_of(&meta, "other"), (2, 5, true));
    assert_eq!(applied(&mut meta, Command::SetDefaultRetention(policy(5).retention)), Applied::Unchanged);
    applied(&mut meta, Command::CreateTenant(TenantId::default_tenant(), policy(6)));
    assert_eq!((class_of(&meta, "default"), class_of(&meta, "other").0), ((0, 6, true), 2));
    applied(&mut meta, Command::UpdateTenant(TenantId::default_tenant(), policy(8)));
    assert_eq!(class_of(&meta, "default"), (0, 8, true));
    let refusal = meta.apply(99, 0, &Command::SetDefaultRetention(policy(5).retention)).unwrap_err().to_string();
    assert!(refusal.contains("varve admin tenant update default"), "{refusal}");
    applied(&mut meta, Command::DeleteTenant(TenantId::default_tenant()));
    applied(&mut meta, Command::SetDefaultRetention(policy(5).retention));
    assert_eq!(meta.state().retention_classes[0], policy(5).retention);
}
