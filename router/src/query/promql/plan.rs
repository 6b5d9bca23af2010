//! Chooses the grouping of each leaf (a selector with its function). The leaf then has only the labels that the
//! operators above it need.
//!
//! A label in an enclosing `by (...)` or `on (...)` becomes part of the leaf's grouping even if it is not a series
//! label. It may be a sample attribute, or a label of stacks. If a sum is directly above a sum over time, both are
//! computed together.

use crate::query::promql::expr::{Aggregation, Cardinality, Expr, Group, Grouping, Leaf, Matching, Query};

/// Sets the grouping of every leaf.
pub(crate) fn plan(query: &mut Query) {
    demand(&query.root, &mut query.leaves, &[]);
}

/// Sets the grouping of the leaves below `expr`. `named` are the labels by which the operators above distinguish
/// series.
fn demand(expr: &Expr, leaves: &mut [Leaf], named: &[String]) {
    match expr {
        Expr::Number(_) => {}
        Expr::Leaf(i) => {
            if let Some(leaf) = leaves.get_mut(*i) {
                leaf.group = Group::Series(named.to_vec());
            }
        }
        Expr::Negate(of) => demand(of, leaves, named),
        Expr::Aggregate { operator, parameter: _, grouping, of } => {
            if let (Aggregation::Sum, Grouping::By(labels), Expr::Leaf(i)) = (operator, grouping, of.as_ref())
                && let Some(leaf) = leaves.get_mut(*i)
                && leaf.function.is_linear()
            {
                leaf.group = Group::By(labels.clone());
                return;
            }
            let below = match grouping {
                // Selected series keep their labels, so labels named above must reach the leaves below.
                Grouping::By(labels) if operator.selects() => union(named, labels),
                Grouping::By(labels) => labels.clone(),
                Grouping::Without(labels) => difference(named, labels),
            };
            demand(of, leaves, &below);
        }
        Expr::Binary { left, right, matching, .. } => {
            let (left_names, right_names) = sides(matching, named);
            demand(left, leaves, &left_names);
            demand(right, leaves, &right_names);
        }
    }
}

/// Returns the labels that distinguish the series of each side of a binary operator.
fn sides(matching: &Matching, named: &[String]) -> (Vec<String>, Vec<String>) {
    let passed = if matching.on { union(named, &matching.labels) } else { difference(named, &matching.labels) };
    let matched = if matching.on { matching.labels.clone() } else { passed.clone() };
    match &matching.cardinality {
        Cardinality::OneToOne => (matched.clone(), matched),
        Cardinality::ManyToOne(copied) => (difference(&passed, copied), union(&matched, copied)),
        Cardinality::OneToMany(copied) => (union(&matched, copied), difference(&passed, copied)),
    }
}

fn union(a: &[String], b: &[String]) -> Vec<String> {
    let mut all: Vec<String> = a.iter().chain(b).cloned().collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn difference(a: &[String], b: &[String]) -> Vec<String> {
    a.iter().filter(|name| !b.contains(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::promql::parse::parse;

    fn check(text: &str, want: &[Group]) {
        let mut query = parse(text).unwrap();
        plan(&mut query);
        let got: Vec<_> = query.leaves.into_iter().map(|leaf| leaf.group).collect();
        assert_eq!(got, want, "{text}");
    }

    fn series(labels: &[&str]) -> Group {
        Group::Series(labels.iter().map(|&label| label.to_owned()).collect())
    }

    fn by(labels: &[&str]) -> Group {
        Group::By(labels.iter().map(|&label| label.to_owned()).collect())
    }

    #[test]
    fn a_sum_of_rates_is_computed_with_the_rates() {
        check("sum(rate(a[5m]))", &[by(&[])]);
        check("topk(3, sum by (leaf_function) (rate(a[5m])))", &[by(&["leaf_function"])]);
        check("sum by (x) ((rate(a[5m]))) / sum(increase(b[5m]))", &[by(&["x"]), by(&[])]);
        check("sum by (x) (a)", &[series(&["x"])]);
        check("max by (x) (rate(a[5m]))", &[series(&["x"])]);
        check("sum without (x) (rate(a[5m]))", &[series(&[])]);
    }

    #[test]
    fn labels_named_above_reach_the_selectors() {
        check("sum by (thread_name) (rate(a[5m]) * 2 - b)", &[series(&["thread_name"]), series(&["thread_name"])]);
        check("sum by (x) (topk by (y) (1, -a))", &[series(&["x", "y"])]);
        check("sum by (x) (max by (y) (a))", &[series(&["y"])]);
        check("sum by (x, y) (max without (y) (a))", &[series(&["x"])]);
        check("a * on (x) b", &[series(&["x"]), series(&["x"])]);
        check("sum by (y, z) (a * on (x) group_left (z) b)", &[series(&["x", "y"]), series(&["x", "z"])]);
        check("sum by (y) (a * ignoring (y) b)", &[series(&[]), series(&[])]);
        check("topk(3, a)", &[series(&[])]);
    }
}
