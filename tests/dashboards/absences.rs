//! What the demonstration legitimately has no data about, each with its reason.

use crate::queries::Silence;
use genv_tests::dashboard::{Dashboard, Panel};

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

const A100_40GB: &str = "NVIDIA A100-SXM4-40GB";
/// One GPU, which is split and serves heidi: the driver tells no utilization of split GPUs, and their memory is their parts'.
const SPLIT: &str = "NVIDIA A100-SXM4-80GB";
const H100: &str = "NVIDIA H100 80GB HBM3";
const RTX_3090: &str = "NVIDIA GeForce RTX 3090";

/// Who has no environment: one computes outside of any, the other's display is shown by a GPU.
const WITHOUT_ENVIRONMENT: &[&str] = &["dave", "root"];

/// Fields that a panel names for what does not happen here: the dashboard's uid, the panel, the field, and why it is absent.
const FIELDS: &[(&str, &str, &str, &str)] = &[(
    "genv-overview",
    "What fires now",
    "instance",
    "only alerts about exporters have it, and none is down",
)];

/// The absences of the shipped dashboards.
pub(crate) const SHIPPED: &[Absence] = &[
    Absence {
        dashboard: "genv-overview",
        places: &[
            "Held and used / B",
            "GPUs, free ones first / D",
            "Fullness over time / C",
            "Utilization / A",
            "Utilization of each GPU / A",
            "Utilization of each GPU / B",
        ],
        when: When::Chosen(&[("model", &[SPLIT])]),
        reason: "the only one is split: it has neither utilization nor memory of its own",
    },
    Absence {
        dashboard: "genv-overview",
        places: &[
            "GPUs and their holders / A",
            "GPUs and their holders / C",
            "GPUs and their holders / D",
            "GPUs and their holders / E",
            "GPUs and their holders / G",
        ],
        when: When::Chosen(&[("username", WITHOUT_ENVIRONMENT)]),
        reason: "they have no environment",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["GPUs and their holders / B", "GPUs and their holders / F"],
        when: When::Chosen(&[
            ("model", &[SPLIT]),
            ("username", &["dave", "heidi", "root"]),
        ]),
        reason: "they have no environment, or one on a split GPU, of which no utilization is known",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["GPUs used outside environments"],
        when: When::Chosen(&[
            ("model", &[SPLIT, H100]),
            (
                "username",
                &["alice", "bob", "erin", "frank", "grace", "heidi", "ivan"],
            ),
        ]),
        reason: "only carol, dave and root use GPUs outside, none of them of these models",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["Environments over the memory they asked for"],
        when: When::Chosen(&[
            ("hostname", &["gpu02"]),
            ("model", &[SPLIT, H100, RTX_3090]),
            (
                "username",
                &[
                    "alice", "bob", "carol", "dave", "frank", "grace", "heidi", "ivan", "root",
                ],
            ),
        ]),
        reason: "only erin takes more than she asked for, on an A100 of gpu01",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["Trouble with GPUs / D"],
        when: When::Chosen(&[("hostname", &["gpu02"]), ("model", &[RTX_3090])]),
        reason: "memory without ECC has no ECC errors",
    },
    Absence {
        dashboard: "genv-overview",
        places: &[
            "XID errors in the last day, by GPU",
            "XID errors in the last day, by holder",
            "Throttled now",
        ],
        when: When::Chosen(NOT_RTX_3090),
        reason: "only the RTX 3090s of gpu02 report XIDs and are throttled",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["XID errors in the last day, by holder"],
        when: When::Chosen(NOT_HIT),
        reason: "they held no GPU that reported an XID",
    },
    Absence {
        dashboard: "genv-users",
        places: &["Idle share", "Users / D", "GPU models / F"],
        when: When::Chosen(&[
            ("model", &[SPLIT]),
            ("username", &["dave", "heidi", "root"]),
        ]),
        reason: "they held nothing, or a split GPU, of which no utilization is known",
    },
    Absence {
        dashboard: "genv-users",
        places: &["Users / G", "GPU models / I"],
        when: When::Chosen(&[("model", &[SPLIT]), ("username", &["heidi"])]),
        reason: "the utilization of a split GPU is not known",
    },
    Absence {
        dashboard: "genv-users",
        places: &[
            "Users / I",
            "XID errors that hit users",
            "XID errors by GPU",
        ],
        when: When::Chosen(NOT_RTX_3090),
        reason: "only the RTX 3090s of gpu02 report XIDs",
    },
    Absence {
        dashboard: "genv-users",
        places: &["Users / I", "XID errors that hit users"],
        when: When::Chosen(NOT_HIT),
        reason: "they held no GPU that reported an XID",
    },
    Absence {
        dashboard: "genv-users",
        places: &["Environments now"],
        when: When::Chosen(&[("username", WITHOUT_ENVIRONMENT)]),
        reason: "they have no environment",
    },
    Absence {
        dashboard: "genv-users",
        places: &["Environments now / B"],
        when: When::Chosen(&[("username", &["heidi"])]),
        reason: "the utilization of a split GPU is not known",
    },
    Absence {
        dashboard: "genv-enforcement",
        places: &["Who breaks which rule"],
        when: When::Chosen(&[("username", &["frank", "grace", "heidi", "ivan", "root"])]),
        reason: "they break no rule",
    },
    Absence {
        dashboard: "genv-enforcement",
        places: &["Warnings and actions by user"],
        when: When::Chosen(&[(
            "username",
            &["alice", "frank", "grace", "heidi", "ivan", "root"],
        )]),
        reason: "they break no rule, or as alice one that only reports, since before the time range",
    },
    Absence {
        dashboard: "genv-host",
        places: &["Fans"],
        when: When::Chosen(&[("hostname", &["gpu01"]), ("index", &["4", "5", "6", "7"])]),
        reason: "only the GPUs of gpu02, four in number, have fans of their own",
    },
    Absence {
        dashboard: "genv-host",
        places: &[
            "GPUs of the host / E",
            "Processes on the GPUs / B",
            "Utilization of the GPUs",
            "Utilization by environment",
        ],
        when: When::Chosen(&[("index", &["7"])]),
        reason: "the utilization of a split GPU is not known",
    },
    Absence {
        dashboard: "genv-host",
        places: &["Memory errors found by ECC"],
        when: When::Chosen(&[("hostname", &["gpu02"])]),
        reason: "memory without ECC has no ECC errors",
    },
    Absence {
        dashboard: "genv-host",
        places: &[
            "XID errors and who held the GPU",
            "XID errors in the time range",
        ],
        when: When::Chosen(&[
            ("hostname", &["gpu01"]),
            ("index", &["0", "4", "5", "6", "7"]),
            ("range", &["5m"]),
        ]),
        reason: "only GPUs 1 to 3 of gpu02 report XIDs, the last one more than five minutes ago",
    },
];

const NOT_RTX_3090: Choices = &[
    ("hostname", &["gpu01"]),
    ("model", &[A100_40GB, SPLIT, H100]),
];
const NOT_HIT: Choices = &[(
    "username",
    &["alice", "carol", "dave", "grace", "heidi", "root"],
)];

/// The fields that a panel may name although no answer has them.
pub(crate) fn fields(dashboard: &Dashboard, panel: Panel<'_>) -> Vec<&'static str> {
    let here = (dashboard.uid(), panel.title());
    let fields = FIELDS
        .iter()
        .filter(|(uid, title, ..)| (*uid, *title) == here);
    fields.map(|(_, _, field, _)| *field).collect()
}

/// What is silent although it is not listed, and what is listed although it is not silent.
pub(crate) fn judge(dashboard: &str, silences: &[Silence], absences: &[Absence]) -> Vec<String> {
    let of_dashboard = || {
        absences
            .iter()
            .filter(|absence| absence.dashboard == dashboard)
    };
    let mut faults = Vec::new();
    for silence in silences {
        if !of_dashboard().any(|absence| absence.excuses(silence)) {
            let chosen = match &silence.chosen {
                None => "everything at All".to_owned(),
                Some((variable, value)) => format!("{variable}={value}"),
            };
            let Silence { panel, target, .. } = silence;
            faults.push(format!(
                "panel '{panel}', target {target}: returns nothing with {chosen}"
            ));
        }
    }
    for absence in of_dashboard() {
        for place in absence.places {
            faults.extend(absence.unneeded(place, silences).map(|with| {
                let reason = absence.reason;
                format!(
                    "panel '{place}': returns data with {with}, and is listed as absent: {reason}"
                )
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
                (When::Chosen(choices), Some((variable, value))) => {
                    chosen(choices, variable, value)
                }
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
                    values
                        .iter()
                        .map(|value| ((*variable).to_owned(), (*value).to_owned()))
                });
                let mut unneeded = each.filter(|chosen| {
                    !here().any(|silence| silence.chosen.as_ref() == Some(chosen))
                });
                unneeded
                    .next()
                    .map(|(variable, value)| format!("{variable}={value}"))
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

    #[test]
    fn what_is_listed_is_of_a_panel_that_exists() -> anyhow::Result<()> {
        let dashboards = Dashboard::shipped()?;
        let exists = |uid: &str, title: &str| {
            let dashboard = dashboards.iter().find(|dashboard| dashboard.uid() == uid);
            dashboard.is_some_and(|it| it.panels().iter().any(|panel| panel.title() == title))
        };
        for absence in SHIPPED {
            for place in absence.places {
                let title = place.split(" / ").next().unwrap_or(place);
                assert!(
                    exists(absence.dashboard, title),
                    "{} has no {title}",
                    absence.dashboard
                );
            }
        }
        for (uid, title, ..) in FIELDS {
            assert!(exists(uid, title), "{uid} has no {title}");
        }
        Ok(())
    }

    const LISTED: &[Absence] = &[
        Absence {
            dashboard: "genv-a",
            places: &["Alerts"],
            when: When::Always,
            reason: "calm",
        },
        Absence {
            dashboard: "genv-a",
            places: &["XIDs / B"],
            when: When::Chosen(&[("user", &["alice"])]),
            reason: "luck",
        },
    ];

    fn silence(panel: &str, target: &str, chosen: Option<(&str, &str)>) -> Silence {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Silence {
            panel: panel.to_owned(),
            target: target.to_owned(),
            chosen: chosen.map(owned),
        }
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
        let listed = [
            silence("Alerts", "A", None),
            silence("XIDs", "B", Some(("user", "alice"))),
        ];
        for (other, told) in [
            (
                silence("Users", "A", None),
                "panel 'Users', target A: returns nothing with everything at All",
            ),
            (
                silence("XIDs", "B", None),
                "panel 'XIDs', target B: returns nothing with everything at All",
            ),
            (
                silence("XIDs", "A", Some(("user", "alice"))),
                "panel 'XIDs', target A: returns nothing with user=alice",
            ),
            (
                silence("XIDs", "B", Some(("user", "bob"))),
                "panel 'XIDs', target B: returns nothing with user=bob",
            ),
            (
                silence("XIDs", "B", Some(("host", "alice"))),
                "panel 'XIDs', target B: returns nothing with host=alice",
            ),
        ] {
            let silences: Vec<_> = listed.iter().cloned().chain([other]).collect();
            assert_eq!(judge("genv-a", &silences, LISTED), [told]);
        }
    }

    #[test]
    fn what_is_listed_without_need_is_told() {
        assert_eq!(
            judge(
                "genv-a",
                &[silence("Alerts", "A", Some(("user", "bob")))],
                LISTED
            ),
            [
                "panel 'Alerts': returns data with everything at All, and is listed as absent: calm",
                "panel 'XIDs / B': returns data with user=alice, and is listed as absent: luck",
            ]
        );
        assert_eq!(judge("genv-b", &[], LISTED), [""; 0]);
    }
}
