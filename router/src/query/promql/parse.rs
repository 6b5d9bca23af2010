//! The parser of PromQL.
//!
//! The parser's tree can be as deep as the number of operators in the text, and it is dropped recursively. So texts
//! with very many operators are parsed on a thread with a large stack. The parser panics on some numbers (a range of
//! `1e30`). Such a panic is reported as a syntax error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::Chars;
use std::time::{Duration, SystemTime};

use promql_parser::label::Labels as ParsedLabels;
use promql_parser::parser::token::{
    T_ADD, T_AVG, T_BOTTOMK, T_COUNT, T_DIV, T_EQLC, T_GTE, T_GTR, T_LSS, T_LTE, T_MAX, T_MIN, T_MOD, T_MUL, T_NEQ,
    T_POW, T_SUB, T_SUM, T_TOPK, TokenType,
};
use promql_parser::parser::{
    self, AggregateExpr, AtModifier, BinaryExpr, Call, Expr as Parsed, LabelModifier, Offset, VectorMatchCardinality,
    VectorSelector,
};

use crate::query::error::QueryError;
use crate::query::limits::{
    ANY_STACK_OPERATORS_MAX, DURATION_MAX_NS, PARSER_STACK_BYTES, QUERY_BYTES_MAX, QUERY_DEPTH_MAX,
    QUERY_OPERATORS_MAX, QUERY_REGEXES_MAX, QUERY_SELECTORS_MAX,
};
use crate::query::promql::expr::{
    AGGREGATIONS, Aggregation, At, Cardinality, Expr, FUNCTIONS, Function, Group, Grouping, Leaf, Matching, OPERATORS,
    Operator, Query,
};
use crate::query::selection::selector::Selector;

/// Longest time before the evaluation in which an instant selector looks for its last point, in nanoseconds.
pub(crate) const LOOKBACK_NS: i64 = 300 * 1_000_000_000;

/// Parses a query. Blocks the thread.
///
/// # Errors
/// Returns any [`QueryError`] that depends only on the text.
pub(crate) fn parse(text: &str) -> Result<Query, QueryError> {
    read(text, |parsed| {
        let mut leaves = Vec::new();
        let root = convert(parsed, &mut leaves, 0)?;
        Ok(Query { root, leaves })
    })
}

/// Parses a selector without a range, offset or `@`.
///
/// # Errors
/// Returns the errors of [`parse`], and [`QueryError::Syntax`] if the text is not such a selector.
pub(crate) fn parse_selector(text: &str) -> Result<Selector, QueryError> {
    read(text, |parsed| match parsed {
        Parsed::VectorSelector(selector) if selector.offset.is_none() && selector.at.is_none() => {
            Selector::new(selector)
        }
        _ => {
            let problem =
                "expected a selector, such as process_cpu{service_name=\"api\"}, without function, range, offset or @";
            Err(QueryError::Syntax { problem: problem.to_owned() })
        }
    })
}

fn read<T: Send + 'static>(
    text: &str,
    read: impl FnOnce(&Parsed) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, QueryError> {
    if text.len() > QUERY_BYTES_MAX {
        return Err(QueryError::TooComplex { what: "bytes", max: QUERY_BYTES_MAX });
    }
    if text.matches("=~").count() + text.matches("!~").count() > QUERY_REGEXES_MAX {
        return Err(QueryError::TooComplex { what: "regular expressions", max: QUERY_REGEXES_MAX });
    }
    let operators = operators(text);
    if operators > QUERY_OPERATORS_MAX {
        return Err(QueryError::TooComplex { what: "operators", max: QUERY_OPERATORS_MAX });
    }
    let text = text.to_owned();
    let parse = move || {
        let parsed = parser::parse(&text).map_err(|problem| QueryError::Syntax { problem })?;
        read(&parsed)
    };
    let parsed = if operators <= ANY_STACK_OPERATORS_MAX {
        // After a panic, no state of the parser is used again, so it is safe to catch the panic.
        catch_unwind(AssertUnwindSafe(parse))
    } else {
        let thread = std::thread::Builder::new().name("promql".to_owned()).stack_size(PARSER_STACK_BYTES);
        let parsing = thread.spawn(parse).map_err(|error| {
            tracing::error!(%error, "no thread could be started to parse a query");
            QueryError::Broken
        })?;
        parsing.join()
    };
    parsed.unwrap_or_else(|_panic| {
        let problem = "a number or duration in it is out of range".to_owned();
        Err(QueryError::Syntax { problem })
    })
}

/// Returns an upper limit of the depth of a text's tree: the number of operators and parentheses outside of strings and
/// comments.
///
/// Strings and comments are recognized as in the parser's lexer. Unlike in Prometheus, `\` is an escape character in
/// back-quotes too.
fn operators(text: &str) -> usize {
    let mut outside = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\'' | '`' => skip_string(c, &mut rest),
            '#' => skip_comment(&mut rest),
            c => {
                outside.push(c);
                continue;
            }
        }
        // A skipped string or comment separates the words on both of its sides.
        outside.push(' ');
    }
    let words = outside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let operators = ["and", "or", "unless", "atan2"];
    let words = words.filter(|word| operators.iter().any(|operator| word.eq_ignore_ascii_case(operator))).count();
    outside.chars().filter(|c| "([+-*/%^<>=!".contains(*c)).count() + words
}

fn skip_string(quote: char, rest: &mut Chars<'_>) {
    while let Some(c) = rest.next() {
        if c == quote {
            return;
        }
        if c == '\\' {
            rest.next();
        }
    }
}

fn skip_comment(rest: &mut Chars<'_>) {
    rest.find(|&c| c == '\n' || c == '\r');
}

fn convert(parsed: &Parsed, leaves: &mut Vec<Leaf>, depth: usize) -> Result<Expr, QueryError> {
    if depth > QUERY_DEPTH_MAX {
        return Err(QueryError::TooComplex { what: "operators inside one another", max: QUERY_DEPTH_MAX });
    }
    let depth = depth + 1;
    match parsed {
        Parsed::NumberLiteral(number) => Ok(Expr::Number(number.val)),
        Parsed::Paren(inner) => convert(&inner.expr, leaves, depth),
        Parsed::Unary(inner) => Ok(Expr::Negate(Box::new(convert(&inner.expr, leaves, depth)?))),
        Parsed::VectorSelector(selector) => add_leaf(leaves, Function::Instant, selector, LOOKBACK_NS),
        Parsed::Call(call) => convert_call(call, leaves),
        Parsed::Aggregate(aggregate) => convert_aggregate(aggregate, leaves, depth),
        Parsed::Binary(binary) => convert_binary(binary, leaves, depth),
        Parsed::MatrixSelector(_) => Err(unsupported("a range selector without a function around it", FUNCTIONS)),
        Parsed::Subquery(_) => Err(unsupported("a subquery", "ranges of selectors, such as process_cpu[5m]")),
        Parsed::StringLiteral(_) => Err(unsupported("a string as a query", "numbers and vectors")),
        Parsed::Extension(_) => Err(unsupported("an extension", "plain PromQL")),
    }
}

fn unsupported(feature: &str, supported: &'static str) -> QueryError {
    QueryError::Unsupported { feature: feature.to_owned(), supported }
}

fn convert_call(call: &Call, leaves: &mut Vec<Leaf>) -> Result<Expr, QueryError> {
    let function = Function::named(call.func.name).ok_or_else(|| unsupported(call.func.name, FUNCTIONS))?;
    // The parser checked the arguments: each of the supported functions has one argument, which is a range.
    let mut argument = call.args.args.first().map(AsRef::as_ref);
    while let Some(Parsed::Paren(inner)) = argument {
        argument = Some(&inner.expr);
    }
    match argument {
        Some(Parsed::MatrixSelector(matrix)) => {
            let range_ns = nanoseconds(matrix.range, "the range")?;
            if range_ns == 0 {
                return Err(QueryError::TimeOutOfRange { what: "the range" });
            }
            add_leaf(leaves, function, &matrix.vs, range_ns)
        }
        _ => Err(unsupported("a subquery", "ranges of selectors, such as process_cpu[5m]")),
    }
}

fn add_leaf(
    leaves: &mut Vec<Leaf>,
    function: Function,
    selector: &VectorSelector,
    range_ns: i64,
) -> Result<Expr, QueryError> {
    if leaves.len() == QUERY_SELECTORS_MAX {
        return Err(QueryError::TooComplex { what: "selectors", max: QUERY_SELECTORS_MAX });
    }
    let offset_ns = match &selector.offset {
        None => 0,
        Some(Offset::Pos(offset)) => nanoseconds(*offset, "the offset")?,
        Some(Offset::Neg(offset)) => -nanoseconds(*offset, "the offset")?,
    };
    let at = selector.at.as_ref().map(convert_at).transpose()?;
    let group = Group::Series(Vec::new());
    leaves.push(Leaf { function, selector: Selector::new(selector)?, range_ns, offset_ns, at, group });
    Ok(Expr::Leaf(leaves.len() - 1))
}

fn nanoseconds(duration: Duration, what: &'static str) -> Result<i64, QueryError> {
    let nanoseconds = i64::try_from(duration.as_nanos()).ok().filter(|&nanoseconds| nanoseconds <= DURATION_MAX_NS);
    nanoseconds.ok_or(QueryError::TimeOutOfRange { what })
}

fn convert_at(at: &AtModifier) -> Result<At, QueryError> {
    let out_of_range = || QueryError::TimeOutOfRange { what: "the time after @" };
    Ok(match at {
        AtModifier::Start => At::Start,
        AtModifier::End => At::End,
        AtModifier::At(time) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_before_1970| out_of_range())?;
            At::Time(i64::try_from(since.as_nanos()).map_err(|_overflow| out_of_range())?)
        }
    })
}

fn convert_aggregate(parsed: &AggregateExpr, leaves: &mut Vec<Leaf>, depth: usize) -> Result<Expr, QueryError> {
    let operator = match parsed.op.id() {
        T_SUM => Aggregation::Sum,
        T_AVG => Aggregation::Avg,
        T_MIN => Aggregation::Min,
        T_MAX => Aggregation::Max,
        T_COUNT => Aggregation::Count,
        T_TOPK => Aggregation::TopK,
        T_BOTTOMK => Aggregation::BottomK,
        _ => return Err(unsupported(&parsed.op.to_string(), AGGREGATIONS)),
    };
    let grouping = match &parsed.modifier {
        None => Grouping::By(Vec::new()),
        Some(LabelModifier::Include(labels)) => Grouping::By(names(labels)),
        Some(LabelModifier::Exclude(labels)) => Grouping::Without(names(labels)),
    };
    let parameter = parsed.param.as_ref().map(|parameter| convert(parameter, leaves, depth)).transpose()?;
    let of = Box::new(convert(&parsed.expr, leaves, depth)?);
    Ok(Expr::Aggregate { operator, parameter: parameter.map(Box::new), grouping, of })
}

fn names(labels: &ParsedLabels) -> Vec<String> {
    let mut names = labels.labels.clone();
    names.sort_unstable();
    names.dedup();
    names
}

fn convert_binary(parsed: &BinaryExpr, leaves: &mut Vec<Leaf>, depth: usize) -> Result<Expr, QueryError> {
    let operator = convert_operator(parsed.op)?;
    let mut matching = Matching { on: false, labels: Vec::new(), cardinality: Cardinality::OneToOne };
    if let Some(modifier) = &parsed.modifier {
        if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
            return Err(unsupported("fill", "on, ignoring, group_left and group_right"));
        }
        if let Some(labels) = &modifier.matching {
            matching.on = labels.is_include();
            matching.labels = names(labels.labels());
        }
        matching.cardinality = match &modifier.card {
            VectorMatchCardinality::ManyToOne(labels) => Cardinality::ManyToOne(names(labels)),
            VectorMatchCardinality::OneToMany(labels) => Cardinality::OneToMany(names(labels)),
            VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => Cardinality::OneToOne,
        };
    }
    let left = Box::new(convert(&parsed.lhs, leaves, depth)?);
    let right = Box::new(convert(&parsed.rhs, leaves, depth)?);
    Ok(Expr::Binary { operator, left, right, matching, returns_bool: parsed.return_bool() })
}

fn convert_operator(parsed: TokenType) -> Result<Operator, QueryError> {
    Ok(match parsed.id() {
        T_ADD => Operator::Add,
        T_SUB => Operator::Subtract,
        T_MUL => Operator::Multiply,
        T_DIV => Operator::Divide,
        T_MOD => Operator::Modulo,
        T_POW => Operator::Power,
        T_EQLC => Operator::Equal,
        T_NEQ => Operator::NotEqual,
        T_LSS => Operator::Less,
        T_LTE => Operator::LessOrEqual,
        T_GTR => Operator::Greater,
        T_GTE => Operator::GreaterOrEqual,
        _ => return Err(unsupported(&parsed.to_string(), OPERATORS)),
    })
}
