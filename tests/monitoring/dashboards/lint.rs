//! What every dashboard must hold, whatever the data: rules of Grafana's dashboard-linter
//! (<https://github.com/grafana/dashboard-linter/blob/main/docs/index.md>), and our own about what a drawn page shows.

use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;

use genv_enforcer::metrics::FAMILIES;
use genv_tests::dashboard::{Dashboard, Panel, Target, Variable, list, text};
use genv_tests::history::RulesFile;
use promql_parser::parser::{Expr, token};
use serde_json::{Value, json};

use crate::dashboards::drawn::{self, FRAME_PIXELS, columns, pixels, properties, width};
use crate::dashboards::interpolate::names;
use crate::dashboards::promql::{self, MARK, RATE_INTERVAL};

/// The dashboard about one host: what names a host or a GPU links to it.
const ABOUT_ONE_HOST: &str = "genv-host";
const RUNBOOK: &str = "http://127.0.0.1:9820/runbooks#${__value.text}";
const CARRIED: [&str; 3] = ["${__url_time_range}", "${datasource:queryparam}", "${job:queryparam}"];
/// Panels that need no plugin, and units that Grafana knows: a misspelt one is shown as a text behind the number.
const TYPES: [&str; 9] =
    ["bargauge", "gauge", "heatmap", "row", "stat", "state-timeline", "table", "text", "timeseries"];
const UNITS: &str = "none string short percent percentunit bytes Bps watt kwatt watth kwatth joule celsius hertz rothz ms s m \
    h d dtdurations dateTimeAsIso dateTimeFromNow bool_yes_no bool_on_off";
static SHIPPED: LazyLock<Vec<Dashboard>> = LazyLock::new(|| Dashboard::shipped().expect("are shipped"));
/// What the shipped rules record once an hour.
static HOURLY: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let file = RulesFile::shipped("genv-recording.yml").expect("is shipped");
    let hourly = file.groups.into_iter().filter(|group| group.interval.as_deref() == Some("1h"));
    hourly.flat_map(|group| group.rules).map(|rule| rule.record).collect()
});

pub(crate) struct Lint<'a> {
    dashboard: &'a Dashboard,
    /// Metrics that have a hostname.
    with_hostname: &'a BTreeSet<String>,
    pub(crate) rules: BTreeSet<&'static str>,
    pub(crate) faults: Vec<(&'static str, String)>,
}

impl<'a> Lint<'a> {
    pub(crate) fn of(dashboard: &'a Dashboard, with_hostname: &'a BTreeSet<String>) -> Self {
        let mut lint = Self { dashboard, with_hostname, rules: BTreeSet::new(), faults: Vec::new() };
        lint.whole();
        lint.variables();
        for panel in dashboard.panels() {
            lint.panel(panel);
        }
        for panel in dashboard.queried_panels() {
            lint.queried(panel);
            lint.links(panel);
            panel.targets().for_each(|target| lint.target(panel, target));
        }
        lint
    }

    fn want(&mut self, rule: &'static str, holds: bool, place: &str, what: &str) {
        self.rules.insert(rule);
        if !holds {
            self.faults.push((rule, format!("{rule}: {}, {place}: {what}", self.dashboard.title())));
        }
    }

    fn whole(&mut self) {
        let dashboard = self.dashboard;
        let Dashboard { file, json } = dashboard;
        self.want("uneditable", json["editable"] == false, "the whole", "an update would undo edits in place");
        let uid = format!("genv-{file}");
        let named = dashboard.uid() == uid && !dashboard.title().is_empty() && json["id"].is_null();
        self.want("uid", named, "the whole", &format!("needs the uid {uid}, a title, and no id of a database"));
        let is_tagged = json["tags"].as_array().is_some_and(|tags| tags.contains(&json!("genv")));
        let leads = |link: &Value, other: &Dashboard| {
            let tagged = list(&link["tags"]).iter().all(|tag| list(&other.json["tags"]).contains(tag));
            tagged && link["type"] == "dashboards" && link["keepTime"] == true && other.uid() != dashboard.uid()
        };
        let links = list(&json["links"]);
        let is_linked = |other: &Dashboard| other.file == *file || links.iter().any(|link| leads(link, other));
        let linked = is_tagged && SHIPPED.iter().all(is_linked);
        self.want("links", linked, "the whole", "needs the tag genv, and links to all others, with keepTime");
        let takes_one = |other: &Dashboard, name| other.variable(name).is_some_and(|of| of.0["includeAll"] != true);
        let offers_all = |own: &&Variable<'_>| own.0["includeAll"] == true;
        let variables = dashboard.variables();
        let loses = |other| variables.iter().filter(offers_all).any(|own| takes_one(other, own.name()));
        let carries = |other| links.iter().any(|link| link["includeVars"] == true && leads(link, other));
        let lost = SHIPPED.iter().any(|other| carries(other) && loses(other));
        self.want("links-all", !lost, "links", "includeVars hands All to a variable of one value");
        let annotations = list(&json["annotations"]["list"]);
        let names = annotations.iter().map(|of| text(&of["name"]));
        let marks = names.eq(["XID errors", "Actions of the enforcer"])
            && annotations.iter().all(|of| promql::parse(text(&of["expr"]), dashboard).is_ok());
        self.want("annotations", marks, "the whole", "needs marks of XID errors and of the enforcer's actions");
        // Grafana mends the rest of a layout.
        let mut cells = HashSet::new();
        for panel in list(&json["panels"]) {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0));
            let taken = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
            let stands = w * h > 0 && x + w <= 24 && taken.filter(|cell| !cells.insert(*cell)).count() == 0;
            self.want("panel-grid", stands, text(&panel["title"]), "leaves the grid, or overlaps another panel");
        }
    }

    fn variables(&mut self) {
        let dashboard = self.dashboard;
        let variables = dashboard.variables();
        let sources = variables.iter().filter(|variable| variable.kind() == "datasource");
        let sources: Vec<_> = sources.map(|source| (source.name(), source.label(), source.query())).collect();
        let is_known = sources == [("datasource", "Data source", "prometheus")];
        self.want("template-datasource", is_known, "datasource", "needs one, labelled 'Data source', of prometheus");
        let in_order = variables.iter().map(|variable| variable.name()).take(3).eq(["datasource", "job", "hostname"]);
        self.want("template-order", in_order, "variables", "must begin with datasource, job, hostname");
        let used = dashboard.queried_panels().flat_map(|panel| names(&panel.0.to_string()));
        let used: BTreeSet<String> = used.collect();
        let overview = SHIPPED.iter().find(|other| other.file == "overview");
        for variable in &variables {
            self.want("template-unused", used.contains(variable.name()), variable.name(), "is used by no panel");
            // One host at a time keeps queries small. What is chosen elsewhere must mean the same there: links carry it over.
            let several = !(dashboard.uid() == ABOUT_ONE_HOST && variable.name() == "hostname");
            let asked = |of: Variable<'_>| (of.label().to_owned(), of.query().to_owned());
            let is_same = |of: Variable<'_>| asked(of) == asked(*variable) && (!several || of.0 == variable.0);
            let json = variable.0;
            let asks = json["datasource"] == source() && json["refresh"] == 2 && !variable.label().is_empty();
            let chosen = json["multi"] == several && json["includeAll"] == several;
            let begins = if several { json["allValue"] == ".+" } else { json["allValue"].is_null() };
            let begins = begins && variable.current() == if several { "$__all" } else { "" };
            let alike = overview.and_then(|overview| overview.variable(variable.name())).is_none_or(is_same);
            let holds = variable.kind() == "datasource" || asks && chosen && begins && alike;
            let what = "must be as in the Overview, and offer All (.+), and be read anew with the time range (2)";
            self.want("template-query", holds, variable.name(), what);
        }
    }

    fn panel(&mut self, panel: Panel<'_>) {
        let (title, panels) = (panel.title(), self.dashboard.panels());
        let alone = |key: &str| panels.iter().filter(|other| other.0[key] == panel.0[key]).count() == 1;
        self.want("panel-id", panel.0["id"].is_u64() && alone("id"), title, "needs an id of its own");
        self.want("panel-type", TYPES.contains(&panel.kind()), title, "is of a type that not every Grafana has");
        let described = !text(&panel.0["description"]).trim().is_empty() && alone("title");
        let titled = !title.trim().is_empty() && (described || panel.kind() == "row");
        self.want("panel-title", titled, title, "needs a title of its own and a description");
        let spanned = panel.0["fieldConfig"]["defaults"]["custom"]["spanNulls"] == true
            || properties(panel, "custom.spanNulls").into_iter().any(|(_, value)| *value == true);
        self.want("panel-span-nulls", !spanned, title, "draws lines where no data is");
        // A letter is 7.5 pixels wide. 100 are for the frame and the icons beside a title, and 100 for a time range of its own.
        let ranged = panel.0["timeFrom"].is_string() && panel.0["hideTimeOverride"] != true;
        let beside = if ranged { 400 } else { 200 };
        let fits = 15 * title.chars().count() as u64 + beside <= 2 * pixels(panel);
        self.want("panel-title-width", fits, title, "its title is cut on a screen of 1366 pixels");
        self.want(
            "color-meaning",
            drawn::keeps_palette(panel),
            title,
            "gives a colour another meaning than the palette",
        );
    }

    fn queried(&mut self, panel: Panel<'_>) {
        let (title, defaults) = (panel.title(), &panel.0["fieldConfig"]["defaults"]);
        let mut sources = panel.targets().map(|target| &target.0["datasource"]);
        let chosen = panel.0["datasource"] == source() && sources.all(|of| of.is_null() || *of == source());
        self.want("panel-datasource", chosen, title, "does not use the data source ${datasource} throughout");
        let is_unit = |unit: &Value| text(unit).starts_with("suffix:") || UNITS.split(' ').any(|known| unit == known);
        let has_units =
            is_unit(&defaults["unit"]) && properties(panel, "unit").into_iter().all(|(_, unit)| is_unit(unit));
        self.want("panel-unit", has_units, title, "has no unit, or one that Grafana does not know");
        let asks = panel.targets().next().is_some_and(|first| !first.expression().is_empty());
        self.want("panel-target", asks, title, "asks nothing");
        // No data never looks like idle, nor like an error of Grafana. In a table the text stands in each empty cell.
        let is_table = panel.kind() == "table";
        let no_value = text(&defaults["noValue"]).trim();
        let told = !no_value.is_empty() || !is_table && !["stat", "gauge", "bargauge"].contains(&panel.kind());
        self.want("panel-no-value", told, title, "does not say what it means that there is no value: set noValue");
        let mut own = properties(panel, "noValue").into_iter().map(|(_, value)| text(value)).chain([no_value]);
        let is_short = !is_table || own.all(|value| value.chars().count() <= 15);
        self.want("table-no-value", is_short, title, "its noValue stands in each empty cell");
        let widths: u64 = columns(panel).iter().map(|column| width(panel, column)).sum();
        let fits = !is_table || widths + FRAME_PIXELS <= pixels(panel);
        self.want("table-width", fits, title, "is wider than its panel at 1366 pixels");
        let sorted = list(&panel.0["options"]["sortBy"]).iter().any(|sort| sort["displayName"] == "Severity");
        let by_word = sorted && panel.0["fieldConfig"].to_string().contains("\"critical\":");
        self.want("table-severity", !by_word, title, "sorts severities by their letters: map them from numbers");
        // Grafana merges such states, and shows the threshold's text in their place.
        let merged = defaults["color"]["mode"] == "thresholds" && !list(&defaults["mappings"]).is_empty();
        let holds = !merged || panel.kind() != "state-timeline";
        self.want("timeline-color", holds, title, "maps values and colours them by thresholds: give it a fixed colour");
    }

    fn links(&mut self, panel: Panel<'_>) {
        let (dashboard, title, shown) = (self.dashboard, panel.title(), columns(panel));
        let is_host = dashboard.uid() == ABOUT_ONE_HOST;
        let links = properties(panel, "links").into_iter();
        let links = links.flat_map(|(field, links)| list(links).iter().map(move |link| (field, text(&link["url"]))));
        let links: Vec<(&str, &str)> = links.filter(|(_, url)| *url != RUNBOOK).collect();
        for (field, url) in &links {
            let (uid, query) = url.strip_prefix("/d/").and_then(|rest| rest.split_once('?')).unwrap_or_default();
            let there = |name: &str| SHIPPED.iter().any(|of| of.uid() == uid && of.variable(name).is_some());
            let chooses = |choice: &str| {
                let carried = choice.strip_prefix("${").and_then(|rest| rest.strip_suffix(":queryparam}"));
                let set = choice.strip_prefix("var-").and_then(|rest| rest.split_once('='));
                let of_column = |value: &str| shown.iter().any(|name| value == format!("${{__data.fields.{name}}}"));
                carried.is_some_and(|name| there(name) && dashboard.variable(name).is_some())
                    || set.is_some_and(|(name, value)| there(name) && (value == "${__value.text}" || of_column(value)))
            };
            let choices: Vec<&str> = query.split('&').collect();
            let leads = CARRIED.iter().all(|carried| choices.contains(carried))
                && choices.iter().all(|choice| CARRIED.contains(choice) || chooses(choice))
                && (uid != ABOUT_ONE_HOST || is_host || query.contains("var-hostname="));
            let what = format!("{field} leads nowhere, or loses or invents a choice: {url}");
            self.want("link-target", leads && there("job"), title, &what);
        }
        let host = if is_host { "${hostname:queryparam}" } else { "var-hostname=${__data.fields.Host}" };
        let wanted = [("Host", ["var-hostname=${__value.text}"; 2]), ("GPU", [host, "var-index=${__value.text}"])];
        for (field, choices) in wanted {
            let leads = |url: &str| url.starts_with("/d/genv-host?") && choices.iter().all(|one| url.contains(one));
            let linked = links.iter().any(|(of, url)| *of == field && leads(url));
            self.want("link-host", linked || !shown.contains(&field), title, "Host or GPU links to no host");
        }
    }

    fn target(&mut self, panel: Panel<'_>, target: Target<'_>) {
        let place = &format!("{} / {}", panel.name(), target.reference());
        let same = panel.targets().filter(|other| other.reference() == target.reference()).count();
        self.want("target-reference", same == 1 && !target.reference().is_empty(), place, "needs a refId of its own");
        let draws_time = ["heatmap", "state-timeline", "timeseries"].contains(&panel.kind());
        let one_moment = target.is_instant() && (draws_time || target.0["range"] == true);
        self.want("target-type", !one_moment, place, "is instant, and range or in a panel that draws time");
        let parsed = promql::parse(target.expression(), self.dashboard);
        self.want("target-promql", parsed.is_ok(), place, &format!("{:?}", parsed.as_ref().err()));
        let Ok(expression) = parsed else { return };
        for selector in promql::selectors(&expression) {
            let (metric, function) = (selector.metric(), selector.range_function);
            let what = &selector.vector.to_string().replace(MARK, "$");
            self.want("target-job", selector.matches_job(), place, what);
            // Grafana's linter wants `instance`; here that is the exporter that was asked, which may tell of many hosts.
            let of_any_host = self.with_hostname.contains(&metric) && !selector.matches_hostname();
            self.want("target-hostname", !of_any_host, place, what);
            let has_user = FAMILIES.iter().any(|of| of.name == metric && of.labels.contains(&"username"));
            self.want("target-username", !has_user || selector.matches_username(), place, what);
            let increases = matches!(function, Some("rate" | "irate" | "increase"));
            self.want("target-counter", increases || !metric.ends_with("_total"), place, what);
            // A sample of an hour lasts five minutes for an instant query.
            self.want("target-hourly", function.is_some() || !HOURLY.contains(&metric), place, what);
            // Of a host that is read over SSH there is a collector `ssh`, and there may be more some day.
            let names_none = selector.vector.matchers.find_matchers("collector").is_empty();
            self.want("target-collector", names_none, place, what);
        }
        promql::visit(&expression, None, &mut |part, function| {
            let (fixed, zero, twice) = match part {
                Expr::MatrixSelector(matrix) => (matrix.range != RATE_INTERVAL, false, false),
                Expr::Subquery(subquery) => (subquery.range != RATE_INTERVAL, false, false),
                Expr::Binary(of) => {
                    let zero = promql::is_zero(&of.lhs) || promql::is_zero(&of.rhs);
                    (false, zero && of.op.id() == token::T_LOR, false)
                }
                Expr::Aggregate(of) => {
                    let sums = [token::T_SUM, token::T_COUNT, token::T_AVG].contains(&of.op.id());
                    (false, false, sums && promql::is_told_by_targets(&of.expr))
                }
                _ => (false, false, false),
            };
            let rate = matches!(function, Some("rate" | "irate"));
            self.want("target-rate", !(rate && fixed), place, "takes a rate over other than $__rate_interval");
            self.want("target-zero", !zero, place, "says 0 where no data is: write `or 0 * count(…)` of what is known");
            self.want("target-once", !twice, place, "counts a host twice that is scraped twice");
        });
    }
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}
