//! What the demonstration legitimately has no data about, each with its reason.

use super::{Absence, Choices, When};

const A100_40GB: &str = "NVIDIA A100-SXM4-40GB";
/// One GPU, which is split and serves heidi: the driver tells no utilization of split GPUs, and their memory is their parts'.
const SPLIT: &str = "NVIDIA A100-SXM4-80GB";
const H100: &str = "NVIDIA H100 80GB HBM3";
const RTX_3090: &str = "NVIDIA GeForce RTX 3090";

/// Who has no environment: one computes outside of any, the other's display is shown by a GPU.
const WITHOUT_ENVIRONMENT: &[&str] = &["dave", "root"];

/// Fields that a panel names for what does not happen here: the dashboard's uid, the panel, the field, and why it is absent.
pub(super) const FIELDS: &[(&str, &str, &str, &str)] =
    &[("genv-overview", "What fires now", "instance", "only alerts about exporters have it, and none is down")];

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
        when: When::Chosen(&[("model", &[SPLIT]), ("username", &["dave", "heidi", "root"])]),
        reason: "they have no environment, or one on a split GPU, of which no utilization is known",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["GPUs used outside environments"],
        when: When::Chosen(&[
            ("model", &[SPLIT, H100]),
            ("username", &["alice", "bob", "erin", "frank", "grace", "heidi", "ivan"]),
        ]),
        reason: "only carol, dave and root use GPUs outside, none of them of these models",
    },
    Absence {
        dashboard: "genv-overview",
        places: &["Environments over the memory they asked for"],
        when: When::Chosen(&[
            ("hostname", &["gpu02"]),
            ("model", &[SPLIT, H100, RTX_3090]),
            ("username", &["alice", "bob", "carol", "dave", "frank", "grace", "heidi", "ivan", "root"]),
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
        places: &["XID errors in the last day, by GPU", "XID errors in the last day, by holder", "Throttled now"],
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
        when: When::Chosen(&[("model", &[SPLIT]), ("username", &["dave", "heidi", "root"])]),
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
        places: &["Users / I", "XID errors that hit users", "XID errors by GPU"],
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
        when: When::Chosen(&[("username", &["alice", "frank", "grace", "heidi", "ivan", "root"]), ("range", &["5m"])]),
        reason: "they break no rule, or as alice one that only reports, since before the time range; in the last five \
                 minutes no rule warns or acts",
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
        places: &["XID errors and who held the GPU", "XID errors in the time range"],
        when: When::Chosen(&[("hostname", &["gpu01"]), ("index", &["0", "4", "5", "6", "7"]), ("range", &["5m"])]),
        reason: "only GPUs 1 to 3 of gpu02 report XIDs, the last one more than five minutes ago",
    },
];

const NOT_RTX_3090: Choices = &[("hostname", &["gpu01"]), ("model", &[A100_40GB, SPLIT, H100])];
const NOT_HIT: Choices = &[("username", &["alice", "carol", "dave", "grace", "heidi", "root"])];

#[test]
fn what_is_listed_is_of_a_panel_that_exists() -> anyhow::Result<()> {
    let dashboards = genv_tests::dashboard::Dashboard::shipped()?;
    let exists = |uid: &str, title: &str| {
        let dashboard = dashboards.iter().find(|dashboard| dashboard.uid() == uid);
        dashboard.is_some_and(|it| it.panels().iter().any(|panel| panel.title() == title))
    };
    for absence in SHIPPED {
        for place in absence.places {
            let title = place.split(" / ").next().unwrap_or(place);
            assert!(exists(absence.dashboard, title), "{} has no {title}", absence.dashboard);
        }
    }
    for (uid, title, ..) in FIELDS {
        assert!(exists(uid, title), "{uid} has no {title}");
    }
    Ok(())
}
