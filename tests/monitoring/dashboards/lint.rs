//! What every dashboard must hold, whatever the data: rules of Grafana's dashboard-linter
//! (<https://github.com/grafana/dashboard-linter/blob/main/docs/index.md>), and our own about what a drawn page shows.

use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;

use genv_enforcer::metrics::FAMILIES;
use genv_tests::dashboard::{Dashboard, Panel, Target, list, text};
use promql_parser::parser::{Expr, token};
use serde_json::{Value, json};

use crate::dashboards::drawn::{columns, columns_fit, keeps_palette, pixels, properties};
use crate::dashboards::interpolate::names;
use crate::dashboards::promql::{self, MARK, RATE_INTERVAL};

const SOURCE: &str = "${datasource}";
/// Panels that need no plugin, and units that Grafana knows: a misspelt one is shown as a text behind the number.
const OF_ONE_MOMENT: [&str; 6] = ["bargauge", "gauge", "row", "stat", "table", "text"];
const OVER_TIME: [&str; 3] = ["heatmap", "state-timeline", "timeseries"];
const UNITS: &str = "none string short percent percentunit bytes Bps watt kwatt watth kwatth joule celsius hertz rothz ms s m \
    h d dtdurations dateTimeAsIso dateTimeFromNow bool_yes_no bool_on_off";
static OVERVIEW: LazyLock<Dashboard> = LazyLock::new(|| Dashboard::of_file("overview").expect("is shipped"));

pub(crate) struct Lint<'a> {
    dashboard: &'a Dashboard,
    /// Metrics that have a hostname.
    with_hostname: &'a BTreeSet<String>,
    /// Whether it shows one host at a time, which keeps queries small.
    is_of_a_host: bool,
    pub(crate) rules: BTreeSet<&'static str>,
    pub(crate) faults: Vec<(&'static str, String)>,
}

impl<'a> Lint<'a> {
    pub(crate) fn of(dashboard: &'a Dashboard, with_hostname: &'a BTreeSet<String>) -> Self {
        let is_of_a_host = dashboard.uid() == "genv-host";
        let mut lint = Self { dashboard, with_hostname, is_of_a_host, rules: BTreeSet::new(), faults: Vec::new() };
        lint.whole();
        lint.variables();
        dashboard.panels().into_iter().for_each(|panel| lint.panel(panel));
        for panel in dashboard.queried_panels() {
            lint.queried(panel);
            lint.links(panel);
            panel.targets().for_each(|target| lint.target(panel, target));
        }
        lint
    }

    fn want(&mut self, rule: &'static str, holds: bool, place: &str) {
        self.rules.insert(rule);
        if !holds {
            self.faults.push((rule, format!("{}, {place}: {rule}", self.dashboard.title())));
        }
    }

    fn whole(&mut self) {
        let (dashboard, json) = (self.dashboard, &self.dashboard.json);
        // An update would undo edits in place.
        self.want("uneditable", json["editable"] == false, "the whole");
        self.want("uid", json["uid"] == format!("genv-{}", dashboard.file) && json["id"].is_null(), "the whole");
        // All is no value of a variable that takes one host: the link to that dashboard carries no variable.
        let key = |link: &Value| json!([link["type"], link["keepTime"], link["tags"], link["includeVars"]]);
        let wanted = json!([["dashboards", true, ["genv-lab"], true], ["dashboards", true, ["genv-host"], false]]);
        let (tag, count) = if self.is_of_a_host { ("genv-host", 1) } else { ("genv-lab", 2) };
        let is_linked = list(&json["links"]).iter().map(key).eq(list(&wanted)[..count].iter().cloned());
        self.want("links", is_linked && json["tags"] == json!(["genv", tag]), "the whole");
        let annotations = list(&json["annotations"]["list"]);
        let parsed = annotations.iter().all(|of| promql::parse(text(&of["expr"]), dashboard).is_ok());
        let names = annotations.iter().map(|of| text(&of["name"]));
        self.want("annotations", parsed && names.eq(["XID errors", "Actions of the enforcer"]), "the whole");
        // Grafana mends the rest of a layout.
        let mut cells = HashSet::new();
        for panel in list(&json["panels"]) {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0));
            let stands = w * h > 0 && x + w <= 24 && (x..x + w).all(|x| (y..y + h).all(|y| cells.insert((x, y))));
            self.want("panel-grid", stands, text(&panel["title"]));
        }
    }

    fn variables(&mut self) {
        let variables = self.dashboard.variables();
        let sources = variables.iter().filter(|of| of.kind() == "datasource").map(|of| (of.label(), of.query()));
        self.want("template-datasource", sources.eq([("Data source", "prometheus")]), "variables");
        let in_order = variables.iter().map(|of| of.name()).take(3).eq(["datasource", "job", "hostname"]);
        self.want("template-order", in_order, "variables");
        let used: BTreeSet<_> = self.dashboard.queried_panels().flat_map(|panel| names(&panel.0.to_string())).collect();
        for variable in variables {
            let (own, name) = (variable.0, variable.name());
            self.want("template-unused", used.contains(name), name);
            // Values are read anew with the time range (2). What is chosen must mean the same in the Overview: links carry it.
            let several = !(self.is_of_a_host && name == "hostname");
            let asks = own["datasource"]["uid"] == SOURCE && own["refresh"] == 2 && !variable.label().is_empty();
            let offers = own["multi"] == several && own["includeAll"] == several;
            let [first, all] = if several { ["$__all", ".+"] } else { [""; 2] };
            let begins = variable.current() == first && text(&own["allValue"]) == all;
            let key = |of: &Value| if several { of.clone() } else { json!([of["label"], of["query"]]) };
            let alike = OVERVIEW.variable(name).is_none_or(|of| key(of.0) == key(own));
            let holds = variable.kind() == "datasource" || asks && offers && begins && alike;
            self.want("template-query", holds, name);
        }
    }

    fn panel(&mut self, panel: Panel<'_>) {
        let (title, panels) = (panel.title(), self.dashboard.panels());
        let alone = |key: &str| panels.iter().filter(|other| other.0[key] == panel.0[key]).count() == 1;
        self.want("panel-id", panel.0["id"].is_u64() && alone("id"), title);
        self.want("panel-type", OF_ONE_MOMENT.contains(&panel.kind()) || OVER_TIME.contains(&panel.kind()), title);
        let is_described = !text(&panel.0["description"]).trim().is_empty() && alone("title");
        self.want("panel-title", !title.trim().is_empty() && (is_described || panel.kind() == "row"), title);
        // Lines are drawn where no data is.
        let fields = properties(panel, "custom.spanNulls").into_iter().map(|(_, spans)| spans);
        let mut spans = fields.chain([&panel.0["fieldConfig"]["defaults"]["custom"]["spanNulls"]]);
        self.want("panel-span-nulls", spans.all(|spans| *spans != true), title);
        // A letter is 7.5 pixels wide. 100 are for the frame and the icons beside a title, and 100 for a time range of its own.
        let ranged = panel.0["timeFrom"].is_string() && panel.0["hideTimeOverride"] != true;
        let needed = 15 * title.chars().count() as u64 + if ranged { 400 } else { 200 };
        self.want("panel-title-width", needed <= 2 * pixels(panel), title);
        self.want("color-meaning", keeps_palette(&panel.0["fieldConfig"], "", title), title);
    }

    fn queried(&mut self, panel: Panel<'_>) {
        let (title, defaults) = (panel.title(), &panel.0["fieldConfig"]["defaults"]);
        let own = panel.targets().map(|target| &target.0["datasource"]).filter(|of| !of.is_null());
        self.want("panel-datasource", own.chain([&panel.0["datasource"]]).all(|of| of["uid"] == SOURCE), title);
        let mut units = properties(panel, "unit").into_iter().map(|(_, unit)| unit).chain([&defaults["unit"]]);
        let is_unit = |unit: &Value| text(unit).starts_with("suffix:") || UNITS.split(' ').any(|known| unit == known);
        self.want("panel-unit", units.all(is_unit), title);
        self.want("panel-target", panel.targets().next().is_some_and(|first| !first.expression().is_empty()), title);
        // No data never looks like idle, nor like an error of Grafana. In a table the text stands in each empty cell.
        let no_value = text(&defaults["noValue"]).trim();
        self.want("panel-no-value", !no_value.is_empty() || OVER_TIME.contains(&panel.kind()), title);
        let is_table = panel.kind() == "table";
        let mut texts = properties(panel, "noValue").into_iter().map(|(_, value)| text(value)).chain([no_value]);
        self.want("table-no-value", !is_table || texts.all(|text| text.chars().count() <= 15), title);
        self.want("table-width", !is_table || columns_fit(panel), title);
        // By their letters: critical, info, warning.
        let sorted = list(&panel.0["options"]["sortBy"]).iter().any(|sort| sort["displayName"] == "Severity");
        let by_word = sorted && panel.0["fieldConfig"].to_string().contains("\"critical\":");
        self.want("table-severity", !by_word, title);
        // Grafana merges mapped states, and shows the threshold's text in their place: give them a fixed colour.
        let is_fixed = defaults["color"]["mode"] != "thresholds";
        self.want("timeline-color", panel.kind() != "state-timeline" || is_fixed, title);
    }

    /// Where the cells of a column lead, with what is chosen here.
    fn url(&self, column: &str) -> String {
        let (dashboard, choices) = match column {
            "Alert" => return "http://127.0.0.1:9820/runbooks#${__value.text}".to_owned(),
            "Host" => ("genv-host", "var-hostname=${__value.text}"),
            "GPU" if self.is_of_a_host => ("genv-host", "${hostname:queryparam}&var-index=${__value.text}"),
            "GPU" => ("genv-host", "var-hostname=${__data.fields.Host}&var-index=${__value.text}"),
            _ if self.dashboard.variable("model").is_none() => {
                ("genv-users", "${hostname:queryparam}&var-username=${__value.text}")
            }
            _ => ("genv-users", "${hostname:queryparam}&${model:queryparam}&var-username=${__value.text}"),
        };
        format!("/d/{dashboard}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}&{choices}")
    }

    fn links(&mut self, panel: Panel<'_>) {
        let (title, shown, linked) = (panel.title(), columns(panel), properties(panel, "links"));
        for (column, links) in &linked {
            let leads = list(links).iter().all(|link| link["url"] == self.url(column));
            self.want("link-target", leads, &format!("{title} / {column}"));
        }
        for column in ["Host", "GPU"] {
            let is_linked = linked.iter().any(|(of, links)| *of == column && !list(links).is_empty());
            let names_host = column == "Host" || self.is_of_a_host || shown.contains("Host");
            self.want("link-host", !shown.contains(column) || is_linked && names_host, title);
        }
    }

    fn target(&mut self, panel: Panel<'_>, target: Target<'_>) {
        let place = format!("{} / {}", panel.name(), target.reference());
        let same = panel.targets().filter(|other| other.reference() == target.reference()).count();
        self.want("target-reference", same == 1 && !target.reference().is_empty(), &place);
        let one_moment = target.is_instant() && (OVER_TIME.contains(&panel.kind()) || target.0["range"] == true);
        self.want("target-type", !one_moment, &place);
        let parsed = promql::parse(target.expression(), self.dashboard);
        self.want("target-promql", parsed.is_ok(), &format!("{place}: {:?}", parsed.as_ref().err()));
        let Ok(expression) = parsed else { return };
        for selector in promql::selectors(&expression) {
            let (metric, function) = (selector.metric(), selector.range_function);
            let place = &format!("{place}: {}", selector.vector.to_string().replace(MARK, "$"));
            self.want("target-job", selector.matches_job(), place);
            // Grafana's linter wants `instance`; here that is the exporter that was asked, which may tell of many hosts.
            self.want("target-hostname", !self.with_hostname.contains(&metric) || selector.matches_hostname(), place);
            let has_user = FAMILIES.iter().any(|of| of.name == metric && of.labels.contains(&"username"));
            self.want("target-username", !has_user || selector.matches_username(), place);
            let increases = matches!(function, Some("rate" | "irate" | "increase"));
            self.want("target-counter", increases || !metric.ends_with("_total"), place);
            // A sample that is recorded once an hour lasts five minutes for an instant query; those of the last hour are renewed.
            let is_hourly = metric.ends_with("1h") && !metric.ends_with(":latest1h") && !metric.ends_with(":last1h");
            self.want("target-hourly", function.is_some() || !is_hourly, place);
            // Of a host that is read over SSH there is a collector `ssh`, and there may be more some day.
            self.want("target-collector", selector.vector.matchers.find_matchers("collector").is_empty(), place);
        }
        promql::visit(&expression, None, &mut |part, function| {
            let is_rate = matches!(function, Some("rate" | "irate"));
            match part {
                Expr::MatrixSelector(of) if is_rate => self.want("target-rate", of.range == RATE_INTERVAL, &place),
                Expr::Subquery(of) if is_rate => self.want("target-rate", of.range == RATE_INTERVAL, &place),
                // 0 where no data is: write `or 0 * count(…)` of what is known.
                Expr::Binary(of) if of.op.id() == token::T_LOR => {
                    self.want("target-zero", !promql::is_zero(&of.lhs) && !promql::is_zero(&of.rhs), &place);
                }
                // A host that is scraped twice counts twice.
                Expr::Aggregate(of) if [token::T_SUM, token::T_COUNT, token::T_AVG].contains(&of.op.id()) => {
                    self.want("target-once", !promql::is_told_by_targets(&of.expr), &place);
                }
                _ => {}
            }
        });
    }
}
