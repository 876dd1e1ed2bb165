//! Rules about the links from one dashboard to another: that they lead somewhere, and what they take along.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::Fault;
use genv_tests::dashboard::{Dashboard, Panel, list, text};

/// The dashboard about one host: what names a host or a GPU links to it.
pub(crate) const ABOUT_ONE_HOST: &str = "genv-host";

/// Tables of rules, some of which count all hosts together as the host `(all)`.
const OF_ALL_HOSTS: [&str; 2] = ["Who breaks which rule", "Warnings and actions by user"];

/// Tables that name devices which are no whole GPUs: there is no choice of one.
const WITH_PARTS: [&str; 1] = ["What fires now"];

/// What every link takes along.
const CARRIED: [&str; 3] = ["${__url_time_range}", "${datasource:queryparam}", "${job:queryparam}"];

const OWN_VALUE: &str = "${__value.text}";

/// Where links may lead: each dashboard's uid and the names of its variables.
static SHIPPED: LazyLock<Vec<(String, BTreeSet<String>)>> = LazyLock::new(|| {
    let shipped = Dashboard::shipped().expect("is shipped").into_iter();
    shipped
        .map(|dashboard| {
            let variables = dashboard.variables().into_iter();
            let names = variables.map(|it| it.name().to_owned()).collect();
            (dashboard.uid().to_owned(), names)
        })
        .collect()
});

/// A field of a panel, by the name that is shown, and where its values link to.
struct Link<'a> {
    panel: Panel<'a>,
    field: &'a str,
    url: &'a str,
}

/// Each leads to a dashboard that there is, with the time and the choice that were seen, and sets only what can be chosen
/// there, to what the panel shows.
pub(super) fn lead_somewhere(dashboard: &Dashboard) -> Vec<Fault> {
    let mut faults = Vec::new();
    for link in all(dashboard) {
        let fault = |what: String| {
            let field = link.field;
            Fault::panel(link.panel, format!("the link of {field:?} {what}"))
        };
        let address = link.url.strip_prefix("/d/");
        let Some((uid, query)) = address.and_then(|address| address.split_once('?')) else {
            faults.push(fault(format!("is no /d/UID?CHOICES: {}", link.url)));
            continue;
        };
        let Some((_, known)) = SHIPPED.iter().find(|(shipped, _)| shipped == uid) else {
            faults.push(fault(format!("leads to {uid}, which is not shipped")));
            continue;
        };
        let choices: Vec<&str> = query.split('&').collect();
        let lost = CARRIED.iter().filter(|carried| !choices.contains(carried));
        faults.extend(lost.map(|carried| fault(format!("does not take {carried} along"))));
        for choice in choices.iter().filter(|choice| !CARRIED.contains(choice)) {
            faults.extend(wrong(dashboard, link.panel, known, choice).map(&fault));
        }
        let names_host = choices.iter().any(|it| it.starts_with("var-hostname="));
        if uid == ABOUT_ONE_HOST && dashboard.uid() != uid && !names_host {
            faults.push(fault("leads to one host, and does not say which".to_owned()));
        }
    }
    faults
}

/// What is wrong with a choice that a link makes where `known` can be chosen.
fn wrong(dashboard: &Dashboard, panel: Panel<'_>, known: &BTreeSet<String>, choice: &str) -> Option<String> {
    let carried = choice.strip_prefix("${").and_then(|rest| rest.strip_suffix(":queryparam}"));
    let set = choice.strip_prefix("var-").and_then(|rest| rest.split_once('='));
    let (variable, value) = match (carried, set) {
        (Some(variable), _) => (variable, None),
        (None, Some((variable, value))) => (variable, Some(value)),
        (None, None) => return Some(format!("has {choice}, which is no choice")),
    };
    if !known.contains(variable) {
        return Some(format!("chooses {variable}, which cannot be chosen there"));
    }
    match value {
        None if dashboard.variable(variable).is_none() => {
            Some(format!("takes {variable} along, which is not chosen here"))
        }
        None | Some(OWN_VALUE) => None,
        Some(value) => {
            let field = value.strip_prefix("${__data.fields.").and_then(|rest| rest.strip_suffix('}'));
            let shown = field.is_some_and(|field| shown(panel).contains(field));
            (!shown).then(|| format!("takes {value}, which the panel does not show"))
        }
    }
}

/// A host or GPU that a table names is one click away from all about it.
pub(super) fn hosts(dashboard: &Dashboard) -> Vec<Fault> {
    let here = dashboard.uid() == ABOUT_ONE_HOST;
    let links: Vec<_> = all(dashboard).collect();
    let mut faults = Vec::new();
    for panel in dashboard.queried_panels() {
        let title = panel.title();
        if OF_ALL_HOSTS.contains(&title) {
            continue;
        }
        let host = if here { "${hostname:queryparam}" } else { "var-hostname=${__data.fields.Host}" };
        for (field, choices) in
            [("Host", vec!["var-hostname=${__value.text}"]), ("GPU", vec![host, "var-index=${__value.text}"])]
        {
            let needed = shown(panel).contains(field);
            if !needed || field == "GPU" && WITH_PARTS.contains(&title) {
                continue;
            }
            let leads = |link: &&Link<'_>| {
                let (uid, query) = link.url.split_once('?').unwrap_or_default();
                let mut choices = choices.iter();
                link.panel.title() == title
                    && link.field == field
                    && uid.strip_prefix("/d/") == Some(ABOUT_ONE_HOST)
                    && choices.all(|choice| query.split('&').any(|it| it == *choice))
            };
            if !links.iter().any(|link| leads(&link)) {
                faults.push(Fault::panel(
                    panel,
                    format!("the field {field:?} does not link to {ABOUT_ONE_HOST} with {}", choices.join("&")),
                ));
            }
        }
    }
    faults
}

/// The names that a panel gives to fields.
fn shown(panel: Panel<'_>) -> BTreeSet<&str> {
    let transformations = panel.transformations().iter();
    let renamed = transformations.filter_map(|it| it["options"]["renameByName"].as_object());
    renamed.flat_map(|names| names.values().map(text)).collect()
}

/// All links of fields.
fn all(dashboard: &Dashboard) -> impl Iterator<Item = Link<'_>> {
    dashboard.queried_panels().flat_map(|panel| {
        panel.overrides().iter().flat_map(move |field| {
            let properties = list(&field["properties"]).iter();
            let links = properties.filter(|property| property["id"] == "links");
            let links = links.flat_map(|property| list(&property["value"]));
            links.map(move |link: &Value| Link {
                panel,
                field: text(&field["matcher"]["options"]),
                url: text(&link["url"]),
            })
        })
    })
}
