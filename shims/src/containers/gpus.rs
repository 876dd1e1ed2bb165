//! The values of docker's `--gpus`: a line of CSV, such as `2`, `all`, `device=0` or
//! `"device=0,1",capabilities=utility`.

use super::client::RestrictedValue;
use super::names::AttachedDevices;
use crate::outcome::{NOT_ENOUGH_DEVICES, Refusal, USAGE};

/// Restricts a request to the attached devices. `None`: it does not request NVIDIA devices.
pub(super) fn restrict(request: &str, attached: &AttachedDevices<'_>) -> Result<Option<RestrictedValue>, Refusal> {
    let unreadable = || {
        Refusal::new(
            USAGE,
            format!("cannot read --gpus {request:?}: it is not what docker takes: write a number, all, or 'device=0'"),
        )
    };
    let mut fields = split(request).ok_or_else(unreadable)?;
    let value = |field: &str, key: &str| Some(field.strip_prefix(key)?.strip_prefix('=')?.to_owned());
    let find = |key: &str| fields.iter().position(|field| value(field, key).is_some());

    if find("driver").is_some_and(|driver| fields[driver] != "driver=nvidia" && fields[driver] != "driver=") {
        return Ok(None);
    }
    // Of several bare numbers docker takes the last, as a number of devices: `1,2` gives two devices, and not devices 1 and 2.
    let bare: Vec<&str> = fields.iter().map(String::as_str).filter(|field| !field.contains('=')).collect();
    let device = find("device").and_then(|position| value(&fields[position], "device"));
    let is_id = |id: &str| {
        let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
        is_number || id.starts_with("GPU-") || id.starts_with("MIG-")
    };
    let is_quoted_list = matches!(&*bare, [list] if list.contains(',') && list.split(',').all(is_id));
    if is_quoted_list || bare.len() + usize::from(device.is_some()) + usize::from(find("count").is_some()) > 1 {
        let mut cause = "docker takes one of a number of devices, all, or a list of devices".to_owned();
        if find("count").is_none() && bare.iter().all(|list| list.split(',').all(is_id)) {
            let ids: Vec<&str> = device.as_deref().into_iter().chain(bare).filter(|id| !id.is_empty()).collect();
            cause += &format!(": write a list as '\"device={}\"', with both kinds of quotes", ids.join(","));
        }
        return Err(Refusal::new(USAGE, format!("cannot run with --gpus {request:?}: {cause}")));
    }
    let mut dropped = Vec::new();
    let (position, devices) = if let Some(position) = find("device") {
        let ids = value(&fields[position], "device").ok_or_else(unreadable)?;
        let devices;
        // NVIDIA's runtime also accepts `all` in the list of devices.
        (devices, dropped) = attached.named(ids.split(','), || attached.indices());
        if devices.is_empty() {
            return Err(too_few("--gpus", request, attached.devices));
        }
        (position, devices)
    } else {
        let bare = fields.iter().position(|field| !field.contains('='));
        let position = bare.or_else(|| find("count"));
        let count = position.map_or("1".to_owned(), |position| {
            value(&fields[position], "count").unwrap_or_else(|| fields[position].clone())
        });
        let count = if count == "all" { -1 } else { count.parse::<i64>().map_err(|_| unreadable())? };
        let count = match usize::try_from(count) {
            Ok(0) => {
                return Err(Refusal::new(
                    USAGE,
                    format!(
                        "cannot run with --gpus {request:?}: docker does not take 0 for none: leave --gpus out; for device 0 \
                         write 'device=0'"
                    ),
                ));
            }
            Ok(count) if count > attached.devices.len() => {
                return Err(too_few("--gpus", request, attached.devices));
            }
            Ok(count) => count,
            // docker reads every negative number as all.
            Err(_) => attached.devices.len(),
        };
        let devices = attached.indices()[..count].to_vec();
        (position.unwrap_or(fields.len()), devices)
    };
    let devices = format!("device={}", devices.join(","));
    match fields.get_mut(position) {
        Some(field) => *field = devices,
        None => fields.push(devices),
    }
    let fields: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
    Ok(Some(RestrictedValue { value: fields.join(","), dropped }))
}

/// The refusal of a flag or variable that requests no attached device.
pub(super) fn too_few(flag: &str, request: &str, attached: &[u32]) -> Refusal {
    let attached = match attached {
        [] => "this environment is not attached to any device".to_owned(),
        [device] => format!("this environment is attached to device {device} only"),
        devices => format!("this environment is attached to devices {} only", crate::devices::join(devices)),
    };
    Refusal::new(
        NOT_ENOUGH_DEVICES,
        format!("cannot run with {flag} {request:?}: {attached}: ask for less, or run 'genv attach' first"),
    )
}

/// The fields of one line of CSV, by Go's rules. `None`: the line is malformed.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    if line.contains(['\n', '\r']) {
        return None;
    }
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, behind) = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let field = &rest[..end];
                (!field.contains('"')).then(|| (field.to_owned(), &rest[end..]))?
            }
            Some(quoted) => {
                let mut field = String::new();
                let mut inside = quoted;
                loop {
                    let (text, behind) = inside.split_once('"')?;
                    field.push_str(text);
                    match behind.strip_prefix('"') {
                        Some(behind) => {
                            field.push('"');
                            inside = behind;
                        }
                        None => break (field, behind),
                    }
                }
            }
        };
        fields.push(field);
        match behind.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return behind.is_empty().then_some(fields),
        }
    }
}

/// A field of a line of CSV.
pub(super) fn quoted(field: &str) -> String {
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::names::tests::ATTACHED;
    use super::*;

    fn restricted(request: &str) -> Result<Option<RestrictedValue>, Refusal> {
        restrict(request, &ATTACHED)
    }

    #[test]
    fn every_request_becomes_one_for_attached_devices() {
        for (request, expected) in [
            ("all", "\"device=1,3,4\""),
            ("-1", "\"device=1,3,4\""),
            ("1", "device=1"),
            ("2", "\"device=1,3\""),
            ("3", "\"device=1,3,4\""),
            ("count=2", "\"device=1,3\""),
            ("count=all,capabilities=utility", "\"device=1,3,4\",capabilities=utility"),
            ("all,\"capabilities=compute,utility\"", "\"device=1,3,4\",\"capabilities=compute,utility\""),
            ("capabilities=utility", "capabilities=utility,device=1"),
            ("driver=nvidia,count=1", "driver=nvidia,device=1"),
            ("device=3", "device=3"),
            ("\"device=3,1\"", "\"device=3,1\""),
            ("\"capabilities=utility,x\",\"device=1,3\"", "\"capabilities=utility,x\",\"device=1,3\""),
            ("device=03", "device=3"),
            ("device=GPU-3", "device=GPU-3"),
            ("device=3:0", "device=3:0"),
            ("device=all", "\"device=1,3,4\""),
        ] {
            let expected = RestrictedValue { value: expected.to_owned(), dropped: Vec::new() };
            assert_eq!(restricted(request), Ok(Some(expected)), "{request}");
        }
        // That of another driver is left alone.
        assert_eq!(restricted("driver=amd,count=all"), Ok(None));
    }

    #[test]
    fn devices_of_others_are_dropped() {
        let found = restricted("\"device=0,3,GPU-0,nosuch\"").unwrap().unwrap();
        assert_eq!(found.value, "device=3");
        assert_eq!(found.dropped, ["0", "GPU-0", "nosuch"]);
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for (request, code) in [
            ("4", NOT_ENOUGH_DEVICES),
            ("device=0", NOT_ENOUGH_DEVICES),
            ("device=", NOT_ENOUGH_DEVICES),
            ("device=none", NOT_ENOUGH_DEVICES),
            ("0", USAGE),
            ("count=0", USAGE),
            ("", USAGE),
            ("some", USAGE),
            ("1.5", USAGE),
            ("\"device=1", USAGE),
            ("a\"b", USAGE),
            ("\"a\"b", USAGE),
            ("device=1\nall", USAGE),
        ] {
            assert_eq!(restricted(request).unwrap_err().code, code, "{request:?}");
        }
    }

    #[test]
    fn a_list_without_its_quotes_is_refused_with_the_right_spelling() {
        for (request, spelling) in [
            ("1,2", "\"device=1,2\""),
            ("0,1,2", "\"device=0,1,2\""),
            ("device=0,1", "\"device=0,1\""),
            ("1,3,capabilities=utility", "\"device=1,3\""),
            ("\"1,2\"", "\"device=1,2\""),
            ("\"device=1,3\",4", "\"device=1,3,4\""),
            ("GPU-1,GPU-3", "\"device=GPU-1,GPU-3\""),
            ("0", "device=0"),
            // No list is meant.
            ("all,1", ""),
            ("count=2,3", ""),
        ] {
            let refusal = restricted(request).unwrap_err();
            assert_eq!(refusal.code, USAGE, "{request}");
            let spelled = refusal.message.split('\'').nth(1).unwrap_or_default();
            assert_eq!(spelled, spelling, "{}", refusal.message);
        }
    }

    proptest! {
        #[test]
        fn fields_survive_being_written_and_read(fields in proptest::collection::vec("[a-z=\", ]{0,8}", 1..5)) {
            let line: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
            prop_assert_eq!(split(&line.join(",")), Some(fields));
        }

        #[test]
        fn a_restricted_request_stays_as_it_is(count in 1..4_u32) {
            let first = restricted(&count.to_string()).unwrap().unwrap();
            prop_assert_eq!(restricted(&first.value).unwrap().unwrap().value, first.value);
        }

        #[test]
        fn no_request_gets_devices_of_others(request in "(\"?(all|device|count|driver|capabilities)?=?(all|0|1|2|3|,|GPU-0)*\"?,?){0,4}") {
            if let Ok(Some(found)) = restricted(&request) {
                let fields = split(&found.value).unwrap();
                let devices: Vec<&str> = fields.iter().filter_map(|field| field.strip_prefix("device=")).collect();
                prop_assert!(!devices.is_empty());
                for id in devices[0].split(',') {
                    prop_assert!(["1", "3", "4"].contains(&id), "{} -> {}", request, found.value);
                }
            }
        }
    }
}
