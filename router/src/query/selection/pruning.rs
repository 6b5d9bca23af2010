//! Choice of the shards to ask. In each epoch of the placement, a service has one slot or few slots, so a matcher on
//! `service_name` is enough to leave out the other shards.

use proto::label::SERVICE_NAME_LABEL;
use proto::placement::Placement;
use proto::selection::Operation;
use proto::{Matcher, TenantId, Window};

/// Returns the shards that can have samples of a time range, of series that all matchers select; ascending, at least
/// one.
pub(crate) fn shards_of(placement: &Placement, tenant: &TenantId, matchers: &[Matcher], window: Window) -> Vec<u32> {
    let of_matcher = |matcher: &Matcher| {
        let services = services_of(matcher)?;
        let of_service = |name: &String| placement.shards_of_service(tenant, name, window);
        let mut shards: Vec<u32> = services.iter().flat_map(of_service).collect();
        shards.sort_unstable();
        shards.dedup();
        Some(shards)
    };
    // Each matcher alone allows a superset of the shards that all matchers allow.
    let fewest = matchers.iter().filter_map(of_matcher).min_by_key(Vec::len);
    fewest.unwrap_or_else(|| placement.shards_in(window))
}

/// Returns the names of the only services that a matcher allows; `None` if these are not known. No service has the name
/// "".
fn services_of(matcher: &Matcher) -> Option<Vec<String>> {
    if matcher.name != SERVICE_NAME_LABEL {
        return None;
    }
    let services = match matcher.operation {
        Operation::Equal => vec![matcher.value.clone()],
        Operation::Match => alternatives(&matcher.value)?,
        Operation::NotEqual | Operation::NotMatch => return None,
    };
    services.iter().all(|name| !name.is_empty()).then_some(services)
}

/// Returns the texts that a regular expression matches, if it is a list of texts, such as `a|b` or `(a|b\.c)`.
/// Dashboards write lists of values in this form.
fn alternatives(pattern: &str) -> Option<Vec<String>> {
    let list = pattern.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(pattern);
    let mut texts = vec![String::new()];
    let mut characters = list.chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            '|' => {
                texts.push(String::new());
                continue;
            }
            // An escaped operator is the character itself. Other escapes are classes or boundaries, such as `\<`.
            '\\' => characters.next().filter(|&escaped| is_operator(escaped))?,
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            literal => literal,
        };
        texts.last_mut()?.push(literal);
    }
    Some(texts)
}

/// Returns whether a character is an operator of regular expressions, which stands for itself only if it is escaped.
fn is_operator(character: char) -> bool {
    regex::escape(character.encode_utf8(&mut [0; 4])).len() > character.len_utf8()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proptest::prelude::*;
    use proto::placement::Slot;

    use super::*;

    const CHARACTERS: [char; 12] = ['a', 'b', '|', '\\', '.', '-', '<', '>', '(', ')', '#', 'é'];

    #[test]
    fn lists_of_texts_are_read_and_other_expressions_are_not() {
        for (pattern, texts) in [
            ("a", &["a"][..]),
            ("a|b-c|d_1", &["a", "b-c", "d_1"]),
            ("(a|b)", &["a", "b"]),
            ("a\\.b|c\\|d|\\(e\\)", &["a.b", "c|d", "(e)"]),
            ("é|日本", &["é", "日本"]),
        ] {
            assert_eq!(alternatives(pattern).unwrap(), texts, "{pattern}");
            let regex = regex::Regex::new(&format!("^(?s:{pattern})$")).unwrap();
            assert!(texts.iter().all(|text| regex.is_match(text)), "{pattern}");
        }
        for pattern in [
            ".*", "a.b", "a+", "(a)|(b)", "(?i)a", "[ab]", "a{2}", "^a$", "a\\d", "\\w", "a\\", "x(a|b)", "a?",
            "\\<a\\>", "\\<", "a|\\bb",
        ] {
            assert_eq!(alternatives(pattern), None, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn an_expression_that_is_read_matches_its_texts_and_no_other(
            pattern in proptest::collection::vec(proptest::sample::select(CHARACTERS.to_vec()), 0..8)
        ) {
            let pattern = String::from_iter(pattern);
            if let Some(texts) = alternatives(&pattern) {
                let regex = regex::Regex::new(&format!("^(?s:{pattern})$")).unwrap();
                let mut candidates = vec![String::new()];
                for _ in 0..3 {
                    let longer = candidates.iter().flat_map(|text| CHARACTERS.map(|next| format!("{text}{next}")));
                    candidates = longer.chain(candidates.iter().cloned()).collect();
                }
                for text in candidates.iter().chain(&texts) {
                    prop_assert_eq!(regex.is_match(text), texts.contains(text), "{} {}", pattern, text);
                }
            }
        }
    }

    #[test]
    fn only_the_shards_of_the_named_services_are_asked() {
        let tenant = TenantId::default_tenant();
        let placement = Placement::uniform(NonZeroU16::new(16).unwrap());
        let of = |conditions: &[(&str, Operation, &str)]| {
            let matcher = |&(name, operation, value): &(&str, Operation, &str)| Matcher {
                name: name.to_owned(),
                operation,
                value: value.to_owned(),
            };
            let window = Window { start_ns: 0, end_ns: 1 };
            shards_of(&placement, &tenant, &conditions.iter().map(matcher).collect::<Vec<_>>(), window)
        };
        let shard = |name| placement.newest().shard(Slot::of(&tenant, name));
        let all: Vec<u32> = (1..=16).collect();
        let mut both = vec![shard("api"), shard("web")];
        both.sort_unstable();
        assert_ne!(both[0], both[1], "the test needs services in different shards");
        assert_eq!(of(&[]), all);
        assert_eq!(of(&[("service_name", Operation::Equal, "api")]), vec![shard("api")]);
        assert_eq!(of(&[("service_name", Operation::Match, "api|web|api")]), both);
        let two = [("service_name", Operation::Match, "api|web"), ("service_name", Operation::Equal, "web")];
        assert_eq!(of(&two), vec![shard("web")]);
        for (operation, value) in [
            (Operation::NotEqual, "api"),
            (Operation::NotMatch, "api"),
            (Operation::Match, "api.*"),
            (Operation::Match, "api|"),
            (Operation::Equal, ""),
        ] {
            assert_eq!(of(&[("service_name", operation, value)]), all, "{value}");
        }
        assert_eq!(of(&[("region", Operation::Equal, "api")]), all);
    }
}
