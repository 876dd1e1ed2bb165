//! Rules about the queries of panels.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use genv_tests::history::RulesFile;
use promql_parser::parser::{Expr, token};

use super::Fault;
use crate::dashboards::promql::{self, RATE_INTERVAL};
use genv_tests::dashboard::{Dashboard, Panel, Target};

/// Panels that draw a course of time.
const OF_TIME: [&str; 4] = ["heatmap", "state-timeline", "status-history", "timeseries"];

/// Each query has a name of its own, by which transformations and overrides find it.
pub(super) fn references(dashboard: &Dashboard) -> Vec<Fault> {
    let mut faults = Vec::new();
    for panel in dashboard.queried_panels() {
        let mut seen = BTreeSet::new();
        for target in panel.targets() {
            if target.reference().is_empty() || !seen.insert(target.reference()) {
                faults.push(Fault::panel(panel, format!("the refId {:?} is empty or there twice", target.reference())));
            }
        }
    }
    faults
}

/// A query wants the present or the course of time, and not both; a panel that draws time gets time.
pub(super) fn query_types(dashboard: &Dashboard) -> Vec<Fault> {
    let mut faults = Vec::new();
    for panel in dashboard.queried_panels() {
        for target in panel.targets() {
            let range = target.0["range"] == true;
            if target.is_instant() && range {
                faults.push(at(panel, target, "is both instant and range"));
            } else if target.is_instant() && OF_TIME.contains(&panel.kind()) {
                faults.push(at(panel, target, "is instant in a panel that shows time"));
            }
        }
    }
    faults
}

/// It is PromQL, with variables that there are.
pub(super) fn promql(dashboard: &Dashboard) -> Vec<Fault> {
    let mut faults = Vec::new();
    for panel in dashboard.queried_panels() {
        for target in panel.targets() {
            if let Err(error) = promql::parse(target.expression(), dashboard) {
                faults.push(at(panel, target, &format!("{error}: {}", target.expression())));
            }
        }
    }
    faults
}

/// Every selector keeps to the chosen labs.
pub(super) fn job_matchers(dashboard: &Dashboard) -> Vec<Fault> {
    each_selector(dashboard, |selector| {
        let lacks = || {
            format!(
                "lacks job=~\"$job\", of enforcers job=~\"$job-enforcer\", of alerts job=~\"$job|$job-enforcer\": {selector}"
            )
        };
        (!selector.matches_job()).then(lacks)
    })
}

/// Every selector of a metric with a hostname keeps to the chosen hosts; `with_hostname` are those metrics.
/// Stands where Grafana's linter wants a matcher of `instance`: see the variable hostname.
pub(super) fn hostname_matchers(dashboard: &Dashboard, with_hostname: &BTreeSet<String>) -> Vec<Fault> {
    each_selector(dashboard, |selector| {
        let wanted = with_hostname.contains(&selector.metric());
        let right = selector.matches_variable("hostname", "hostname");
        (wanted && !right).then(|| format!("lacks hostname=~\"$hostname\": {selector}"))
    })
}

/// Rates are taken over what Grafana finds right for the scrape interval and the width of the panel.
pub(super) fn rate_intervals(dashboard: &Dashboard) -> Vec<Fault> {
    each_part(dashboard, |part, function| {
        let range = match part {
            Expr::MatrixSelector(matrix) => matrix.range,
            Expr::Subquery(subquery) => subquery.range,
            _ => return None,
        };
        let rate = matches!(function, Some("rate" | "irate"));
        (rate && range != RATE_INTERVAL).then(|| "takes a rate over other than $__rate_interval".to_owned())
    })
}

/// A counter's value tells nothing: it begins anew with the exporter.
pub(super) fn counters(dashboard: &Dashboard) -> Vec<Fault> {
    each_selector(dashboard, |selector| {
        let raw = !matches!(selector.range_function, Some("rate" | "irate" | "increase"));
        (selector.metric().ends_with("_total") && raw)
            .then(|| format!("shows a counter without rate or increase: {selector}"))
    })
}

/// A sample of an hour lasts five minutes for an instant query: hourly series are asked over a range.
pub(super) fn hourly(dashboard: &Dashboard) -> Vec<Fault> {
    each_selector(dashboard, |selector| {
        let hourly = HOURLY.contains(&selector.metric());
        (hourly && selector.range_function.is_none())
            .then(|| format!("asks an hourly series outside a range function: {selector}"))
    })
}

/// What the shipped rules record once an hour.
static HOURLY: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let file = RulesFile::shipped("genv-recording.yml").expect("is shipped");
    let groups = file.groups.into_iter();
    let hourly = groups.filter(|group| group.interval.as_deref() == Some("1h"));
    hourly.flat_map(|group| group.rules).map(|rule| rule.record).collect()
});

/// No data is not zero. Where it is, something that is known says so: `or 0 * count(…)`.
pub(super) fn vector_zero(dashboard: &Dashboard) -> Vec<Fault> {
    each_part(dashboard, |part, _| {
        let Expr::Binary(binary) = part else {
            return None;
        };
        let zero = binary.op.id() == token::T_LOR && (is_zero(&binary.lhs) || is_zero(&binary.rhs));
        zero.then(|| "says 0 where no data is: 'or vector(0)'".to_owned())
    })
}

fn is_zero(expression: &Expr) -> bool {
    match expression {
        Expr::Paren(paren) => is_zero(&paren.expr),
        Expr::Call(call) => call.func.name == "vector" && call.args.args.iter().all(|argument| is_zero(argument)),
        Expr::NumberLiteral(number) => number.val == 0.0,
        _ => false,
    }
}

fn each_selector(dashboard: &Dashboard, check: impl Fn(&promql::Selector<'_>) -> Option<String>) -> Vec<Fault> {
    each_expression(dashboard, |expression| promql::selectors(expression).iter().filter_map(&check).collect())
}

fn each_part(dashboard: &Dashboard, check: impl Fn(&Expr, Option<&str>) -> Option<String>) -> Vec<Fault> {
    each_expression(dashboard, |expression| {
        let mut found = Vec::new();
        promql::visit(expression, None, &mut |part, function| found.extend(check(part, function)));
        found
    })
}

/// Calls `check` for each expression that parses: of the others another rule tells.
fn each_expression(dashboard: &Dashboard, check: impl Fn(&Expr) -> Vec<String>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for panel in dashboard.queried_panels() {
        for target in panel.targets() {
            if let Ok(expression) = promql::parse(target.expression(), dashboard) {
                faults.extend(check(&expression).iter().map(|what| at(panel, target, what)));
            }
        }
    }
    faults
}

fn at(panel: Panel<'_>, target: Target<'_>, what: &str) -> Fault {
    Fault::panel(panel, format!("target {}: {what}", target.reference()))
}
