//! The expressions of dashboards, parsed: Grafana's variables stand in them as marks that the lint finds again.

use std::time::Duration;

use anyhow::{Result, anyhow};
use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr, VectorSelector, token};

use crate::dashboards::interpolate::{Choice, Times, interpolate};
use genv_tests::dashboard::Dashboard;

/// What `$__rate_interval` stands for: a range that nobody writes.
pub(crate) const RATE_INTERVAL: Duration = Duration::from_millis(7_654_321);

/// What the value of a variable begins with.
pub(crate) const MARK: &str = "value_of_";

/// A selector of series where it stands in an expression.
pub(crate) struct Selector<'a> {
    pub(crate) vector: &'a VectorSelector,
    /// The function that is applied to the selector's range, if it has one.
    pub(crate) range_function: Option<&'a str>,
}

/// Parses an expression of a dashboard.
///
/// # Errors
/// It is no PromQL, or has a variable that neither the dashboard nor Grafana knows.
pub(crate) fn parse(expression: &str, dashboard: &Dashboard) -> Result<Expr> {
    let variables = dashboard.variables().into_iter();
    let marks: Choice = variables.map(|variable| (variable.name().to_owned(), mark(variable.name()))).collect();
    let interval = Duration::from_millis(8_765_432);
    let times = Times { start: 0, end: 8_765_432, interval, rate_interval: RATE_INTERVAL };
    parser::parse(&interpolate(expression, &marks, &times)?).map_err(|error| anyhow!(error))
}

/// What stands for a variable.
fn mark(variable: &str) -> String {
    format!("{MARK}{variable}")
}

/// All selectors of an expression.
pub(crate) fn selectors(expression: &Expr) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    visit(expression, None, &mut |part, function| match part {
        Expr::VectorSelector(vector) => found.push(Selector { vector, range_function: None }),
        Expr::MatrixSelector(matrix) => found.push(Selector { vector: &matrix.vs, range_function: function }),
        _ => {}
    });
    found
}

/// Calls `each` for an expression and all its parts, with the function whose argument a part is.
pub(crate) fn visit<'a>(
    expression: &'a Expr,
    function: Option<&'a str>,
    each: &mut impl FnMut(&'a Expr, Option<&'a str>),
) {
    each(expression, function);
    match expression {
        Expr::Aggregate(aggregate) => {
            visit(&aggregate.expr, None, each);
            if let Some(parameter) = &aggregate.param {
                visit(parameter, None, each);
            }
        }
        Expr::Unary(unary) => visit(&unary.expr, None, each),
        Expr::Binary(binary) => {
            visit(&binary.lhs, None, each);
            visit(&binary.rhs, None, each);
        }
        Expr::Paren(paren) => visit(&paren.expr, function, each),
        Expr::Subquery(subquery) => visit(&subquery.expr, None, each),
        Expr::Call(call) => {
            for argument in &call.args.args {
                visit(argument, Some(call.func.name), each);
            }
        }
        Expr::NumberLiteral(_)
        | Expr::StringLiteral(_)
        | Expr::VectorSelector(_)
        | Expr::MatrixSelector(_)
        | Expr::Extension(_) => {}
    }
}

/// Whether an expression is the number 0, as a vector or not.
pub(crate) fn is_zero(expression: &Expr) -> bool {
    match expression {
        Expr::Paren(paren) => is_zero(&paren.expr),
        Expr::Call(call) => call.func.name == "vector" && call.args.args.iter().all(|argument| is_zero(argument)),
        Expr::NumberLiteral(number) => number.val == 0.0,
        _ => false,
    }
}

/// Whether the result has a series for each target of Prometheus that tells a thing: nothing has made one of them yet.
pub(crate) fn is_told_by_targets(expression: &Expr) -> bool {
    let is_ours = |vector: &VectorSelector| vector.name.as_deref().is_some_and(|name| name.starts_with("genv_"));
    match expression {
        Expr::VectorSelector(vector) => is_ours(vector),
        Expr::MatrixSelector(matrix) => is_ours(&matrix.vs),
        Expr::Binary(binary) => {
            let filters = matches!(binary.op.id(), token::T_LAND | token::T_LUNLESS);
            is_told_by_targets(&binary.lhs) || !filters && is_told_by_targets(&binary.rhs)
        }
        Expr::Call(call) => call.args.args.iter().any(|argument| is_told_by_targets(argument)),
        Expr::Paren(paren) => is_told_by_targets(&paren.expr),
        Expr::Unary(unary) => is_told_by_targets(&unary.expr),
        Expr::Subquery(subquery) => is_told_by_targets(&subquery.expr),
        Expr::Aggregate(_) | Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => false,
    }
}

impl Selector<'_> {
    /// The name of the metric, also where it is written as a matcher of `__name__`.
    pub(crate) fn metric(&self) -> String {
        let by_matcher = || {
            let matchers = self.vector.matchers.find_matchers("__name__");
            matchers.first().map(|matcher| matcher.value.clone())
        };
        self.vector.name.clone().or_else(by_matcher).unwrap_or_default()
    }

    /// Whether it keeps to the chosen labs. The job of a lab's enforcers is named as that of its exporters, with
    /// `-enforcer` behind it; alerts are of either.
    pub(crate) fn matches_job(&self) -> bool {
        let of_exporter = mark("job");
        let of_enforcer = format!("{of_exporter}-enforcer");
        let is = |wanted: &str| self.matches("job", wanted);
        match self.metric().as_str() {
            "up" => is(&of_exporter) || is(&of_enforcer),
            "ALERTS" | "ALERTS_FOR_STATE" => is(&format!("{of_exporter}|{of_enforcer}")),
            metric if metric.starts_with("genv_enforcer_") => is(&of_enforcer),
            _ => is(&of_exporter),
        }
    }

    /// Whether it keeps to the chosen hosts. An alert that is about no host in particular is seen whichever is chosen, by
    /// `hostname=~"$hostname|"`.
    pub(crate) fn matches_hostname(&self) -> bool {
        let chosen = mark("hostname");
        let is_alert = self.metric().starts_with("ALERTS");
        self.matches("hostname", &chosen) || is_alert && self.matches("hostname", &format!("{chosen}|"))
    }

    /// Whether it keeps to the chosen users, nobody beside them or not.
    pub(crate) fn matches_username(&self) -> bool {
        let chosen = mark("username");
        self.matches("username", &chosen) || self.matches("username", &format!("{chosen}|[(]none[)]"))
    }

    fn matches(&self, label: &str, wanted: &str) -> bool {
        let matchers = self.vector.matchers.find_matchers(label);
        matchers.iter().any(|matcher| matches!(matcher.op, MatchOp::Re(_)) && matcher.value == wanted)
    }
}
