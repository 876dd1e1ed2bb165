use serde_json::json;

use super::*;

fn rules(text: &str, hash: &str) -> Rules {
    Rules {
        source: "enforcer.yaml".to_owned(),
        written: Written::Yaml(text.to_owned()),
        hash: hash.to_owned(),
        timezone: None,
    }
}

#[test]
fn rules_that_cannot_be_read_or_have_another_hash_are_refused() {
    let refused = |text: &str| config(&rules(text, "other")).map(|_| ()).unwrap_err();
    let unreadable = refused("version: 1\nrules:\n- {kind: idle, new_key: 1}\n");
    assert!(unreadable.contains("enforcer.yaml:3:16"), "{unreadable}");
    let other = refused("version: 1\nrules: []\n");
    assert!(other.contains("not the hash in the request"), "{other}");
}

#[test]
fn a_request_of_another_version_or_with_an_unknown_field_is_an_error() {
    let request = StepRequest {
        version: VERSION,
        asked_by: "monitor".to_owned(),
        hostname: "gpu01".to_owned(),
        now_seconds: 1_800_000_000.0,
        rules: rules("", ""),
        steps: Vec::new(),
    };
    let right = serde_json::to_value(&request).unwrap();
    assert_eq!(parse(right.to_string().as_bytes()).unwrap(), request);
    for (field, value, why) in [
        ("version", json!(VERSION + 1), "and this program reads 1"),
        ("spare", json!(["everybody"]), "unknown field `spare`"),
        ("hostname", json!(""), "they have no time, or no host"),
        ("steps", json!([{"pid": 7}]), "unknown field `pid`"),
    ] {
        let mut wrong = right.clone();
        wrong[field] = value;
        let error = parse(wrong.to_string().as_bytes()).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn users_under_never_on_either_side_are_exempt_and_the_lower_pace_counts() {
    let of = |user: u32, signals: u32| {
        let text = format!(
            "version: 1\nnever: {{users: [\"uid:{user}\"]}}\nbreaker: {{signals_per_minute: {signals}}}\nrules: []\n"
        );
        Config::of_machine("rules", &text, TimeZone::UTC).unwrap()
    };
    let policy = policy(Some(&of(54_321, 9)), Some(&of(54_322, 4)));
    assert_eq!(policy.never.users, ["uid:54321", "uid:54322"].map(str::to_owned).into());
    assert_eq!(policy.breaker.signals_per_minute, 4);
}
