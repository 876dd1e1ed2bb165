//! The names of fields that a panel speaks of, in legends, transformations, overrides and sorting: whether its queries'
//! answers have them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use genv_tests::metrics::Labels;
use regex::{Captures, Regex};
use serde_json::Value;

use genv_tests::dashboard::{Panel, Target, list, text};

static LEGEND_LABEL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{\s*(\w+)\s*\}\}").expect("a regular expression"));

/// What a panel names and no answer has; `answers` are the labels of the series that each target returned, and `absent` are
/// names that none of them has for a reason.
pub(crate) fn faults(panel: Panel<'_>, answers: &[(Target<'_>, Vec<Labels>)], absent: &[&str]) -> Vec<String> {
    let mut faults: Vec<String> = answers.iter().flat_map(|(target, series)| legend_faults(*target, series)).collect();
    // Where there is no answer, its fields are not known.
    if answers.iter().any(|(_, series)| series.is_empty()) {
        return faults;
    }
    let mut names = Names { known: answered(answers), unknown: BTreeSet::new(), wrong: Vec::new() };
    for transformation in panel.transformations() {
        names.transform(transformation, answers);
    }
    for field in panel.overrides() {
        let (kind, wanted) = (text(&field["matcher"]["id"]), &field["matcher"]["options"]);
        match kind {
            "byName" => names.want(text(wanted)),
            "byRegexp" => names.want_match(text(wanted)),
            "byFrameRefID" => {
                if !answers.iter().any(|(target, _)| target.reference() == text(wanted)) {
                    names.wrong.push(format!("an override is for the target {wanted}, which there is not"));
                }
            }
            "byType" => {}
            other => names.wrong.push(format!("the override {other:?} is not known to this test")),
        }
    }
    for field in list(&panel.0["options"]["sortBy"]) {
        names.want(text(&field["displayName"]));
    }
    for name in absent {
        if !names.unknown.contains(*name) {
            let fault = format!("the field {name:?} is listed as absent, and not missed");
            names.wrong.push(fault);
        }
    }
    names.unknown.retain(|name| !absent.contains(&name.as_str()));
    let unknown = names.unknown.iter();
    faults.extend(unknown.map(|name| format!("names the field {name:?}, which there is not")));
    faults.extend(names.wrong);
    faults
}

/// Labels that a legend names, and that a series lacks.
fn legend_faults(target: Target<'_>, series: &[Labels]) -> Option<String> {
    let mut labels = LEGEND_LABEL.captures_iter(target.legend()).map(|found| found[1].to_owned());
    let lacking = labels.find(|label| series.iter().any(|series| !series.contains_key(label)))?;
    let reference = target.reference();
    Some(format!("target {reference}: the legend {:?} names {lacking}, which a series lacks", target.legend()))
}

/// The names of all fields of the answers.
fn answered(answers: &[(Target<'_>, Vec<Labels>)]) -> BTreeSet<String> {
    let mut names = BTreeSet::from(["Time".to_owned()]);
    for (target, series) in answers {
        for labels in series {
            names.extend(labels.keys().cloned());
            if target.0["format"] != "table" {
                let label = |found: &Captures<'_>| labels.get(&found[1]).cloned().unwrap_or_default();
                names.insert(LEGEND_LABEL.replace_all(target.legend(), label).into_owned());
            }
        }
        names.insert(match answers {
            [_] => "Value".to_owned(),
            _ => format!("Value #{}", target.reference()),
        });
    }
    names
}

struct Names {
    /// What fields are called.
    known: BTreeSet<String>,
    /// What the panel calls fields that are not known.
    unknown: BTreeSet<String>,
    /// What else is wrong.
    wrong: Vec<String>,
}

impl Names {
    fn want(&mut self, name: &str) {
        // Joined frames number the fields that several have.
        let numbered = name.rsplit_once(' ').filter(|(_, number)| number.parse::<u8>().is_ok());
        let known = self.known.contains(name) || numbered.is_some_and(|(name, _)| self.known.contains(name));
        if !known {
            self.unknown.insert(name.to_owned());
        }
    }

    fn want_match(&mut self, pattern: &str) {
        let regex = Regex::new(pattern.trim_matches('/'));
        if !regex.is_ok_and(|regex| self.known.iter().any(|name| regex.is_match(name))) {
            self.wrong.push(format!("an override is for {pattern}, which no field matches"));
        }
    }

    fn transform(&mut self, transformation: &Value, answers: &[(Target<'_>, Vec<Labels>)]) {
        let options = &transformation["options"];
        match text(&transformation["id"]) {
            "merge" | "labelsToFields" => {}
            "organize" => {
                for key in ["excludeByName", "indexByName", "renameByName", "includeByName"] {
                    for (name, value) in options[key].as_object().into_iter().flatten() {
                        self.want(name);
                        if key == "renameByName" {
                            self.known.insert(text(value).to_owned());
                        }
                    }
                }
            }
            "joinByField" => {
                let field = text(&options["byField"]);
                let lacks =
                    |series: &Vec<Labels>| field != "Time" && series.iter().any(|labels| !labels.contains_key(field));
                if answers.iter().any(|(_, series)| lacks(series)) {
                    self.wrong.push(format!("joins by {field:?}, which a series lacks"));
                }
            }
            "groupingToMatrix" => {
                let [row, column, value] = ["rowField", "columnField", "valueField"].map(|key| text(&options[key]));
                for name in [row, column, value] {
                    self.want(name);
                }
                self.known.insert(format!("{row}\\{column}"));
                let series = answers.iter().flat_map(|(_, series)| series);
                self.known.extend(series.filter_map(|labels| labels.get(column).cloned()));
            }
            other => self.wrong.push(format!("the transformation {other:?} is not known to this test")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(change: impl FnOnce(&mut Value)) -> Vec<String> {
        found_without(&[], change)
    }

    fn found_without(absent: &[&str], change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut panel = json!({
            "targets": [
                {"refId": "A", "expr": "a", "format": "table"},
                {"refId": "B", "expr": "b", "legendFormat": "of {{host}}"},
            ],
            "transformations": [
                {"id": "joinByField", "options": {"byField": "host"}},
                {"id": "organize", "options": {"renameByName": {"Value #A": "Used"}, "excludeByName": {"Time 2": true}}},
            ],
            "fieldConfig": {"overrides": [
                {"matcher": {"id": "byName", "options": "of gpu01"}, "properties": []},
                {"matcher": {"id": "byRegexp", "options": "/^Us/"}, "properties": []},
            ]},
            "options": {"sortBy": [{"displayName": "Used"}]},
        });
        change(&mut panel);
        let panel = Panel(&panel);
        let labels = Labels::from([("host".to_owned(), "gpu01".to_owned())]);
        let answers: Vec<_> = panel.targets().map(|target| (target, vec![labels.clone()])).collect();
        faults(panel, &answers, absent)
    }

    #[test]
    fn a_panel_may_name_what_its_answers_have() {
        assert_eq!(found(|_| {}), [""; 0]);
    }

    #[test]
    fn a_field_may_be_listed_as_absent_only_while_it_is() {
        let sorted = |panel: &mut Value| panel["options"]["sortBy"][0]["displayName"] = json!("Free");
        assert_eq!(found_without(&["Free"], sorted), [""; 0]);
        for unneeded in ["host", "Free"] {
            let told = format!("the field {unneeded:?} is listed as absent, and not missed");
            assert_eq!(found_without(&[unneeded], |_| {}), [told]);
        }
    }

    #[test]
    fn a_field_that_no_answer_has_is_told() {
        let organize =
            |key: &str, name: &str| found(|panel| panel["transformations"][1]["options"][key][name] = json!("x"));
        let wrong = [
            found(|panel| panel["targets"][1]["legendFormat"] = json!("of gpu01{{hostname}}")),
            found(|panel| panel["transformations"][0]["options"]["byField"] = json!("hostname")),
            organize("renameByName", "Value"),
            organize("excludeByName", "job"),
            found(|panel| panel["fieldConfig"]["overrides"][0]["matcher"]["options"] = json!("of gpu02")),
            found(|panel| panel["fieldConfig"]["overrides"][1]["matcher"]["options"] = json!("/^Free/")),
            found(|panel| panel["options"]["sortBy"][0]["displayName"] = json!("Free")),
            found(|panel| panel["transformations"][0]["id"] = json!("sqlExpressions")),
        ];
        let told = wrong.each_ref().map(|faults| match faults.as_slice() {
            [fault] => fault.as_str(),
            other => panic!("not one fault: {other:?}"),
        });
        insta::assert_snapshot!(told.join("\n"), @r#"
        target B: the legend "of gpu01{{hostname}}" names hostname, which a series lacks
        joins by "hostname", which a series lacks
        names the field "Value", which there is not
        names the field "job", which there is not
        names the field "of gpu02", which there is not
        an override is for /^Free/, which no field matches
        names the field "Free", which there is not
        the transformation "sqlExpressions" is not known to this test
        "#);
    }
}
