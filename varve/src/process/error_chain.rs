//! An error with its causes, as one line.

/// Returns the error and its causes as one line. Omits each cause whose text is already in the line.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text += ": ";
        }
        text += &cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_that_is_already_in_the_text_is_not_repeated() {
        let error = anyhow!("Not a directory").context("x cannot be used: Not a directory").context("opening");
        assert_eq!(chain(&error), "opening: x cannot be used: Not a directory");
        assert_eq!(chain(&anyhow!("inner").context("outer")), "outer: inner");
    }
}
