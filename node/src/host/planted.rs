//! Faults that show that the tests detect them. Without the feature `planted-faults`, only a unit test can have one,
//! and the compiler removes their code from programs.

/// Returns true if the environment variable `VARVE_PLANTED` has this value.
pub(crate) fn is_planted(fault: &str) -> bool {
    cfg!(any(test, feature = "planted-faults")) && std::env::var("VARVE_PLANTED").is_ok_and(|chosen| chosen == fault)
}
