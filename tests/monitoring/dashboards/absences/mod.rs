//! Queries that may return nothing, and fields that no answer has: whether those that do are the ones that are listed.

mod shipped;

use genv_tests::dashboard::{Dashboard, Panel};

use self::shipped::FIELDS;
pub(crate) use self::shipped::SHIPPED;
use crate::dashboards::queries::Silence;

/// Where queries may return nothing.
#[derive(Debug)]
pub(crate) struct Absence {
    /// The dashboard's uid.
    pub(crate) dashboard: &'static str,
    /// Titles of panels, or `TITLE / REFID` of one of its targets.
    pub(crate) places: &'static [&'static str],
    pub(crate) when: When,
    pub(crate) reason: &'static str,
}

/// With which choices of variables.
#[derive(Debug)]
pub(crate) enum When {
    /// Whatever is chosen, with everything at All too.
    Always,
    /// With each of these values of these variables; with everything at All there is data.
    Chosen(Choices),
}

/// Variables, or `range`, each with values.
type Choices = &'static [(&'static str, &'static [&'static str])];

/// The fields that a panel may name although no answer has them.
pub(crate) fn fields(dashboard: &Dashboard, panel: Panel<'_>) -> Vec<&'static str> {
    let here = (dashboard.uid(), panel.title());
    let fields = FIELDS.iter().filter(|(uid, title, ..)| (*uid, *title) == here);
    fields.map(|(_, _, field, _)| *field).collect()
}

/// What is silent although it is not listed, and what is listed although it is not silent.
pub(crate) fn judge(dashboard: &str, silences: &[Silence], absences: &[Absence]) -> Vec<String> {
    let of_dashboard = || absences.iter().filter(|absence| absence.dashboard == dashboard);
    let mut faults = Vec::new();
    for silence in silences {
        if !of_dashboard().any(|absence| absence.excuses(silence)) {
            let chosen = match &silence.chosen {
                None => "everything at All".to_owned(),
                Some((variable, value)) => format!("{variable}={value}"),
            };
            let Silence { panel, target, .. } = silence;
            faults.push(format!("panel '{panel}', target {target}: returns nothing with {chosen}"));
        }
    }
    for absence in of_dashboard() {
        for place in absence.places {
            faults.extend(absence.unneeded(place, silences).map(|with| {
                let reason = absence.reason;
                format!("panel '{place}': returns data with {with}, and is listed as absent: {reason}")
            }));
        }
    }
    faults
}

impl Absence {
    fn excuses(&self, silence: &Silence) -> bool {
        let chosen = |choices: Choices, variable: &str, value: &str| {
            let mut values = choices.iter().filter(|(name, _)| *name == variable);
            values.any(|(_, values)| values.contains(&value))
        };
        self.places.iter().any(|place| silence.is_at(place))
            && match (&self.when, &silence.chosen) {
                (When::Always, _) => true,
                (When::Chosen(choices), Some((variable, value))) => chosen(choices, variable, value),
                (When::Chosen(_), None) => false,
            }
    }

    /// With what this place does return data.
    fn unneeded(&self, place: &str, silences: &[Silence]) -> Option<String> {
        let here = || silences.iter().filter(|silence| silence.is_at(place));
        match self.when {
            When::Always => {
                let silent = here().any(|silence| silence.chosen.is_none());
                (!silent).then(|| "everything at All".to_owned())
            }
            When::Chosen(choices) => {
                let each = choices.iter().flat_map(|(variable, values)| {
                    values.iter().map(|value| ((*variable).to_owned(), (*value).to_owned()))
                });
                let mut unneeded = each.filter(|chosen| !here().any(|silence| silence.chosen.as_ref() == Some(chosen)));
                unneeded.next().map(|(variable, value)| format!("{variable}={value}"))
            }
        }
    }
}

impl Silence {
    fn is_at(&self, place: &str) -> bool {
        match place.split_once(" / ") {
            Some((panel, target)) => self.panel == panel && self.target == target,
            None => self.panel == place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &[Absence] = &[
        Absence { dashboard: "genv-a", places: &["Alerts"], when: When::Always, reason: "calm" },
        Absence {
            dashboard: "genv-a",
            places: &["XIDs / B"],
            when: When::Chosen(&[("user", &["alice"])]),
            reason: "luck",
        },
    ];

    fn silence(panel: &str, target: &str, chosen: Option<(&str, &str)>) -> Silence {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Silence { panel: panel.to_owned(), target: target.to_owned(), chosen: chosen.map(owned) }
    }

    #[test]
    fn what_is_listed_may_be_silent() {
        let silences = [
            silence("Alerts", "A", None),
            silence("Alerts", "A", Some(("user", "bob"))),
            silence("XIDs", "B", Some(("user", "alice"))),
        ];
        assert_eq!(judge("genv-a", &silences, LISTED), [""; 0]);
    }

    #[test]
    fn what_is_not_listed_may_not() {
        let listed = [silence("Alerts", "A", None), silence("XIDs", "B", Some(("user", "alice")))];
        for (other, told) in [
            (silence("Users", "A", None), "panel 'Users', target A: returns nothing with everything at All"),
            (silence("XIDs", "B", None), "panel 'XIDs', target B: returns nothing with everything at All"),
            (silence("XIDs", "A", Some(("user", "alice"))), "panel 'XIDs', target A: returns nothing with user=alice"),
            (silence("XIDs", "B", Some(("user", "bob"))), "panel 'XIDs', target B: returns nothing with user=bob"),
            (silence("XIDs", "B", Some(("host", "alice"))), "panel 'XIDs', target B: returns nothing with host=alice"),
        ] {
            let silences: Vec<_> = listed.iter().cloned().chain([other]).collect();
            assert_eq!(judge("genv-a", &silences, LISTED), [told]);
        }
    }

    #[test]
    fn what_is_listed_without_need_is_told() {
        assert_eq!(
            judge("genv-a", &[silence("Alerts", "A", Some(("user", "bob")))], LISTED),
            [
                "panel 'Alerts': returns data with everything at All, and is listed as absent: calm",
                "panel 'XIDs / B': returns data with user=alice, and is listed as absent: luck",
            ]
        );
        assert_eq!(judge("genv-b", &[], LISTED), [""; 0]);
    }
}
