//! The expressions of dashboards, parsed: Grafana's variables stand in them as marks that the lint finds again.

use std::fmt;
use std::time::Duration;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, VectorSelector};

use crate::dashboards::interpolate::{Choice, Chosen};
use crate::dashboards::variables;
use genv_tests::dashboard::Dashboard;

/// What `$__rate_interval` stands for: a range that nobody writes.
pub(crate) const RATE_INTERVAL: Duration = Duration::from_secs(7_654_321);

/// What the value of a variable begins with.
const MARK: &str = "value_of_";

/// A selector of series where it stands in an expression.
#[derive(Debug)]
pub(crate) struct Selector<'a> {
    pub(crate) vector: &'a VectorSelector,
    /// The function that is applied to the selector's range, if it has one.
    pub(crate) range_function: Option<&'a str>,
}

/// Parses an expression or the selector of a variable's query.
///
/// # Errors
/// It is no PromQL, or has a variable that neither the dashboard nor Grafana knows.
pub(crate) fn parse(expression: &str, dashboard: &Dashboard) -> Result<Expr, String> {
    let text = variables::replace(expression, |name, _| match name {
        "__rate_interval" => Ok(format!("{}s", RATE_INTERVAL.as_secs())),
        "__range" | "__interval" => Ok("8765432s".to_owned()),
        "__range_s" | "__range_ms" | "__interval_ms" | "__from" | "__to" => Ok("8765432".to_owned()),
        _ => {
            let known = dashboard.variable(name).is_some();
            known.then(|| mark(name)).ok_or_else(|| format!("there is no variable ${name}"))
        }
    })?;
    parser::parse(&text)
}

/// What stands for a variable.
pub(crate) fn mark(variable: &str) -> String {
    format!("{MARK}{variable}")
}

/// All selectors of an expression.
pub(crate) fn selectors(expression: &Expr) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    visit(expression, None, &mut |expression, function| {
        let (vector, is_range) = match expression {
            Expr::VectorSelector(vector) => (vector, false),
            Expr::MatrixSelector(matrix) => (&matrix.vs, true),
            _ => return,
        };
        let range_function = function.filter(|_| is_range);
        found.push(Selector { vector, range_function });
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

impl fmt::Display for Selector<'_> {
    /// As the dashboard has it, with variables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.vector.to_string().replace(MARK, "$"))
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

    /// The selector alone, without offset and the like, as Prometheus' API of series wants it, where everything is at All.
    /// What is not chosen (`model!~"$model"`) would be nothing then: such a matcher is left out.
    pub(crate) fn series(&self, all: &Choice) -> String {
        let mut vector = VectorSelector { offset: None, at: None, ..self.vector.clone() };
        let matchers = &mut vector.matchers.matchers;
        let of_variable = |matcher: &Matcher| matcher.value.starts_with(MARK);
        matchers.retain(|matcher| !(of_variable(matcher) && matches!(matcher.op, MatchOp::NotRe(_))));
        for matcher in matchers {
            for (variable, chosen) in all {
                if let Chosen::All(regex) = chosen {
                    let all_of_it = matcher.value.replace(&mark(variable), regex);
                    matcher.value = all_of_it.trim_end_matches('|').to_owned();
                }
            }
        }
        vector.to_string()
    }

    /// Whether it keeps to the chosen labs. The job of a lab's enforcers is named as that of its exporters, with
    /// `-enforcer` behind it; alerts are of either.
    pub(crate) fn matches_job(&self) -> bool {
        let of_exporter = mark("job");
        let of_enforcer = format!("{of_exporter}-enforcer");
        let of_either = format!("{of_exporter}|{of_enforcer}");
        let matchers = self.vector.matchers.find_matchers("job");
        let is = |wanted: &str| {
            let mut matchers = matchers.iter();
            matchers.any(|it| matches!(it.op, MatchOp::Re(_)) && it.value == wanted)
        };
        match self.metric().as_str() {
            "up" => is(&of_exporter) || is(&of_enforcer),
            "ALERTS" | "ALERTS_FOR_STATE" => is(&of_either),
            metric if metric.starts_with("genv_enforcer_") => is(&of_enforcer),
            _ => is(&of_exporter),
        }
    }

    /// Whether it has the matcher `label=~"$variable"`. An alert that is about no host in particular is seen whichever is
    /// chosen, by `label=~"$variable|"`.
    pub(crate) fn matches_variable(&self, label: &str, variable: &str) -> bool {
        let matchers = self.vector.matchers.find_matchers(label);
        let own = self.metric().starts_with("ALERTS");
        let matches = |value: &str| match value.strip_suffix('|') {
            Some(value) => own && value == mark(variable),
            None => value == mark(variable),
        };
        matchers.iter().any(|matcher| matches!(matcher.op, MatchOp::Re(_)) && matches(&matcher.value))
    }
}
