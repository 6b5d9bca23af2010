//! Retention classes: each tenant's new samples go to the class that has the retention of its policy.
//!
//! Shards store the number of a class with the samples, so no class is ever removed. The retention of a class changes
//! only if one tenant alone has ever had samples of the class, because it also applies to the stored samples.

use proto::TenantId;
use proto::limits::RETENTION_CLASSES_MAX;
use proto::meta::{DEFAULT_CLASS, Retention, State};

use super::super::Applied;
use super::super::refusal::Refusal;

/// Returns the class for the new samples of a tenant with this retention, and whether the tenant is its only owner.
///
/// The class of a tenant that owns it gets the retention, which then also applies to the tenant's stored samples.
/// Other tenants get a class that has the retention, or a new one.
pub(super) fn retention_class(state: &mut State, name: &TenantId, retention: Retention) -> Result<(u8, bool), Refusal> {
    let known = state.tenants.get(name).map(|known| (known.retention_class, known.owns_class));
    let known = known.or_else(|| (*name == TenantId::default_tenant()).then_some((DEFAULT_CLASS, true)));
    if let Some((class, owns_class)) = known {
        let of_class = state.retention_classes.get_mut(usize::from(class));
        if let Some(of_class) = of_class.filter(|of_class| owns_class || **of_class == retention) {
            *of_class = retention;
            return Ok((class, owns_class));
        }
    }
    let is_shared =
        |(class, of_class): &(usize, &Retention)| *class != usize::from(DEFAULT_CLASS) && **of_class == retention;
    let shared = state.retention_classes.iter().enumerate().find(is_shared).map(|(class, _)| class);
    let class = shared.unwrap_or(state.retention_classes.len());
    if class >= RETENTION_CLASSES_MAX {
        return Err(Refusal::TooManyRetentions);
    }
    let number = u8::try_from(class).map_err(|_large| Refusal::TooManyRetentions)?;
    if shared.is_none() {
        state.retention_classes.push(retention);
    }
    let sharers = state.tenants.values_mut().filter(|tenant| tenant.retention_class == number);
    sharers.for_each(|tenant| tenant.owns_class = false);
    Ok((number, shared.is_none()))
}

/// Sets the retention of the tenant `default`, which has no policy.
pub(super) fn set_default_retention(state: &mut State, retention: Retention) -> Result<Applied, Refusal> {
    retention.check()?;
    if state.tenants.contains_key(&TenantId::default_tenant()) {
        return Err(Refusal::DefaultPolicy);
    }
    match state.retention_classes.get_mut(usize::from(DEFAULT_CLASS)) {
        Some(known) if *known != retention => {
            *known = retention;
            Ok(Applied::Changed)
        }
        _ => Ok(Applied::Unchanged),
    }
}
