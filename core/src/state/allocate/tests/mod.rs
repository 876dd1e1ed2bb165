mod properties;

use super::*;

fn amount(text: &str) -> MemoryAmount {
    MemoryAmount::from_file(text).unwrap()
}

/// Devices of 16 GiB with attachments: `eid` or `eid:memory`.
fn devices(attached: &[&[&str]]) -> Vec<DeviceState> {
    let attachment = |text: &&str| {
        let (eid, memory) = text.split_once(':').unwrap_or((text, ""));
        AttachmentState {
            eid: eid.to_owned(),
            gpu_memory: MemoryAmount::from_file(memory).ok(),
            attached_timestamp_seconds: None,
        }
    };
    (0..)
        .zip(attached)
        .map(|(index, attached)| DeviceState {
            index,
            total_memory: Some(amount("16gi")),
            attachments: attached.iter().map(attachment).collect(),
        })
        .collect()
}

fn request(selection: Selection) -> AttachRequest {
    AttachRequest::new(selection)
}

fn count(count: u32) -> AttachRequest {
    request(Selection::Count(count))
}

fn index(index: u32) -> AttachRequest {
    request(Selection::Indices([index].into()))
}

fn over(selection: Selection) -> AttachRequest {
    AttachRequest { over_subscribe: true, ..request(selection) }
}

fn chosen(devices: &[DeviceState], memory: &str, request: &AttachRequest) -> Result<Vec<u32>, String> {
    let memory = MemoryAmount::from_file(memory).ok();
    let chosen = choose(devices, "me", memory, request);
    chosen.map(|chosen| chosen.into_iter().collect()).map_err(|error| error.to_string())
}

#[test]
fn whole_devices_are_taken_in_order_of_index() {
    let list = devices(&[&["a"], &[], &["b:1g"], &[], &[]]);
    assert_eq!(chosen(&list, "", &count(2)), Ok(vec![1, 3]));
    assert_eq!(chosen(&list, "", &count(3)), Ok(vec![1, 3, 4]));
    assert_eq!(chosen(&list, "", &count(0)), Ok(vec![]));
    assert_eq!(
        chosen(&list, "", &count(4)).unwrap_err(),
        "cannot attach 4 devices: 3 of 5 can be had, and 2 environments hold the others. 'genv devices' tells who, '--wait' waits"
    );
    assert_eq!(
        chosen(&devices(&[&["a"]]), "", &count(1)).unwrap_err(),
        "cannot attach 1 device: 0 of 1 can be had, and one environment holds it. 'genv devices' tells who, '--wait' waits"
    );
    assert_eq!(
        chosen(&[], "", &count(1)).unwrap_err(),
        "cannot attach 1 device: this machine has none. 'genv doctor' tells why"
    );
    assert_eq!(
        chosen(&devices(&[&[], &[]]), "", &count(u32::MAX)).unwrap_err(),
        "cannot attach 4294967295 devices: this machine has 2. Ask for 2 at most, by a flag or by 'genv config gpus 2'"
    );
}

#[test]
fn a_part_of_a_device_is_assigned_if_enough_memory_is_left() {
    let list = devices(&[&["a:10gi"], &["a:10gi", "b:2gi"], &["c"], &[]]);
    assert_eq!(chosen(&list, "6gi", &count(2)), Ok(vec![0, 3]));
    assert_eq!(chosen(&list, "4gi", &count(3)), Ok(vec![0, 1, 3]));
    assert_eq!(chosen(&list, "17179869184b", &count(1)), Ok(vec![3]));
    chosen(&list, "17179869185b", &count(1)).unwrap_err();
    assert_eq!(
        chosen(&list, "17gi", &count(1)).unwrap_err(),
        "cannot attach 1 device with 17gi of memory: 0 of 4 have so much. Ask for less, by a flag or by 'genv config gpu-memory'"
    );
    assert_eq!(
        chosen(&list, "15gi", &count(2)).unwrap_err(),
        "cannot attach 2 devices with 15gi of memory: 1 of 4 can be had, and 3 environments hold the others. 'genv devices' tells who, '--wait' waits"
    );
    let unknown = vec![DeviceState { index: 0, ..DeviceState::default() }];
    assert_eq!(chosen(&unknown, "4gi", &count(1)), Ok(vec![0]));
}

#[test]
fn devices_without_processes_come_first_and_lost_ones_never() {
    let list = devices(&[&[], &[], &[], &[]]);
    let mut request = count(1);
    request.usage.busy = [0, 1].into();
    assert_eq!(chosen(&list, "", &request), Ok(vec![2]));
    request.usage.lost = [2].into();
    assert_eq!(chosen(&list, "", &request), Ok(vec![3]));
    request.selection = Selection::Count(3);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1, 3]));
    request.selection = Selection::Count(4);
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        "cannot attach 4 devices: 3 of 4 can be had. 'genv free' tells which"
    );
    request.selection = Selection::Indices([2].into());
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        "cannot attach device 2: it does not answer. See whether 'nvidia-smi' works"
    );
}

#[test]
fn devices_with_unknown_processes_come_after_unused_ones_and_before_used_ones() {
    let list = devices(&[&[], &[], &[], &["a"]]);
    let mut request = count(1);
    request.usage.unknown = [0].into();
    request.usage.busy = [1].into();
    for (count, expected) in [(1, &[2][..]), (2, &[0, 2]), (3, &[0, 1, 2])] {
        request.selection = Selection::Count(count);
        assert_eq!(chosen(&list, "", &request), Ok(expected.to_vec()));
    }
    // A device on which a process is listed is used, whatever else runs there.
    request.usage.unknown = [0, 1].into();
    request.selection = Selection::Count(2);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 2]));
    request.selection = Selection::Indices([0].into());
    assert_eq!(chosen(&list, "", &request), Ok(vec![0]));
}

#[test]
fn a_device_in_mig_mode_without_mig_devices_is_never_assigned() {
    let list = devices(&[&["me"], &[], &["a"]]);
    let mut request = count(1);
    request.usage.mig_unsplit = [0].into();
    assert_eq!(chosen(&list, "", &request), Ok(vec![1]));
    request.selection = Selection::Count(3);
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        "cannot attach 3 devices: 1 of 3 can be had, and one environment holds the others; device 0 is in MIG mode without \
         MIG devices, and runs no CUDA program. 'genv devices' tells who, '--wait' waits"
    );
    request.over_subscribe = true;
    chosen(&list, "", &request).unwrap_err();
    request.selection = Selection::Indices([0].into());
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        format!(
            "cannot attach device 0: it is in MIG mode without MIG devices, and runs no CUDA program. {MIG_UNSPLIT_REMEDY}"
        )
    );
    request.usage.mig_unsplit = [0, 1].into();
    request.selection = Selection::Count(1);
    request.over_subscribe = false;
    assert_eq!(
        chosen(&devices(&[&[], &[]]), "", &request).unwrap_err(),
        "cannot attach 1 device: 0 of 2 can be had; devices 0, 1 are in MIG mode without MIG devices, and run no CUDA \
         program. 'genv free' tells which"
    );
}

#[test]
fn a_device_whose_memory_the_driver_does_not_tell_is_assigned_as_a_whole() {
    fn untold(attached: &[&[&str]]) -> Vec<DeviceState> {
        let devices = devices(attached).into_iter();
        devices.map(|it| DeviceState { total_memory: None, ..it }).collect()
    }
    let one = untold(&[&[]]);
    assert_eq!(chosen(&one, "", &count(1)), Ok(vec![0]));
    assert_eq!(chosen(&one, "4gi", &count(1)), Ok(vec![0]));
    let held = untold(&[&["a:4gi"]]);
    let why = "the driver does not tell the memory of device 0, so that only one environment can hold it";
    assert_eq!(
        chosen(&held, "4gi", &count(1)).unwrap_err(),
        format!(
            "cannot attach 1 device with 4gi of memory: 0 of 1 can be had, and one environment holds it; {why}. 'genv \
             devices' tells who, '--wait' waits"
        )
    );
    assert_eq!(
        chosen(&held, "4gi", &index(0)).unwrap_err(),
        format!(
            "cannot attach device 0 with 4gi of memory: environment a holds 4gi of it; {why}. 'genv who 0' tells more"
        )
    );
    let mut request = count(1);
    request.kind.memory_at_least = Some(amount("40g"));
    let unknown = "the driver does not tell the memory of device 0, and no device is known to have so much. Leave the \
        least memory out, or choose devices by '--index'";
    assert_eq!(chosen(&one, "", &request).unwrap_err(), format!("cannot attach 1 device of 40g or more: {unknown}"));
    // The type alone rules the device out.
    request.usage.models = models(&["NVIDIA GB10"]);
    request.kind.types = vec!["gb10".to_owned()];
    assert!(chosen(&one, "", &request).unwrap_err().ends_with(unknown));
    request.kind.types = vec!["h100".to_owned()];
    let other = chosen(&one, "", &request).unwrap_err();
    assert!(other.contains("this machine has none. Its devices are 1 NVIDIA GB10"), "{other}");
}

fn outside(indices: &[u32]) -> BTreeMap<u32, Vec<OutsideUse>> {
    let use_of = |gpu: &u32| OutsideUse {
        gpu: *gpu,
        pid: 4711 + gpu,
        username: "bob".to_owned(),
        memory_used_bytes: Some(2 << 30),
        ..OutsideUse::default()
    };
    indices.iter().map(|it| (*it, vec![use_of(it)])).collect()
}

#[test]
fn a_device_that_others_use_without_holding_it_is_not_assigned() {
    let list = devices(&[&["a"], &[], &[], &["b:4gi"]]);
    let mut request = count(1);
    request.usage.outside = outside(&[1, 3]);
    assert_eq!(chosen(&list, "", &request), Ok(vec![2]));
    assert_eq!(chosen(&list, "4gi", &request), Ok(vec![2]));
    request.selection = Selection::Count(2);
    let remedy = "'--wait' waits until that ends, '--force' takes the device all the same";
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        format!(
            "cannot attach 2 devices: 1 of 4 can be had. Device 1: process 4712 of bob (2.0 GiB) uses it and does \
             not hold it; 2 environments hold others. {remedy}"
        )
    );
    assert_eq!(
        chosen(&list, "4gi", &request).unwrap_err(),
        format!(
            "cannot attach 2 devices with 4gi of memory: 1 of 4 can be had. Device 1: process 4712 of bob (2.0 GiB) uses it \
             and does not hold it, and 1 more device is used so; one environment holds others. {remedy}"
        )
    );
    request.selection = Selection::Indices([1].into());
    request.usage.outside.entry(1).or_default().extend(outside(&[1, 2]).into_values().flatten());
    assert_eq!(
        chosen(&list, "", &request).unwrap_err(),
        format!(
            "cannot attach device 1: process 4712 of bob (2.0 GiB) and 2 more processes use it and do not hold it. \
             {remedy}"
        )
    );
    // Over-subscription allows sharing with environments, not with processes outside of them.
    let mut over = over(Selection::Count(4));
    assert_eq!(chosen(&list, "", &over), Ok(vec![0, 1, 2, 3]));
    over.usage.outside = outside(&[1, 3]);
    assert!(chosen(&list, "", &over).is_err());
    over.selection = Selection::Count(2);
    assert_eq!(chosen(&list, "", &over), Ok(vec![0, 2]));
}

#[test]
fn an_environment_keeps_its_device_while_others_use_it() {
    let list = devices(&[&["me"], &[]]);
    let mut request = count(2);
    request.usage.outside = outside(&[0]);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1]));
    request.selection = Selection::Indices([0].into());
    assert_eq!(chosen(&list, "", &request), Ok(vec![0]));
}

#[test]
fn over_subscription_takes_available_devices_and_then_those_with_the_fewest_environments() {
    let list = devices(&[&["a", "b"], &["a"], &[], &["a"]]);
    let mut request = over(Selection::Count(2));
    assert_eq!(chosen(&list, "", &request), Ok(vec![1, 2]));
    request.usage.busy = [1].into();
    assert_eq!(chosen(&list, "", &request), Ok(vec![2, 3]));
    request.selection = Selection::Count(4);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1, 2, 3]));
    request.selection = Selection::Count(5);
    assert!(chosen(&list, "", &request).is_err());
}

#[test]
fn attaching_to_fewer_gives_up_those_without_processes_and_then_the_highest() {
    let list = devices(&[&["me"], &["me"], &["me"], &[]]);
    assert_eq!(chosen(&list, "", &count(2)), Ok(vec![0, 1]));
    assert_eq!(chosen(&list, "", &count(4)), Ok(vec![0, 1, 2, 3]));
    for (number, expected) in [(2, &[0, 2][..]), (1, &[2]), (0, &[])] {
        let mut request = count(number);
        request.usage.own = [2].into();
        assert_eq!(chosen(&list, "", &request), Ok(expected.to_vec()));
    }
}

#[test]
fn a_held_device_is_kept_unless_it_no_longer_suffices() {
    let list = devices(&[&["me:4gi", "a:4gi"], &[], &["me", "b"]]);
    assert_eq!(chosen(&list, "12gi", &count(1)), Ok(vec![0]));
    assert_eq!(chosen(&list, "13gi", &count(1)), Ok(vec![1]));
    assert_eq!(chosen(&list, "13gi", &over(Selection::Count(1))), Ok(vec![0]));
    // Device 2 was over-subscribed, and stays so.
    assert_eq!(chosen(&list, "", &count(2)), Ok(vec![1, 2]));
    assert_eq!(
        chosen(&list, "", &count(3)).unwrap_err(),
        "cannot attach 3 devices: 2 of 3 can be had, and one environment holds the other. 'genv devices' tells who, '--wait' waits"
    );
}

#[test]
fn a_device_by_its_index_is_added_to_the_others() {
    let list = devices(&[&["me"], &["a"], &[], &["a:4gi", "b:1gi"]]);
    assert_eq!(chosen(&list, "", &index(2)), Ok(vec![0, 2]));
    assert_eq!(chosen(&list, "", &index(0)), Ok(vec![0]));
    assert_eq!(
        chosen(&list, "", &index(1)).unwrap_err(),
        "cannot attach device 1: environment a holds it. 'genv who 1' tells more"
    );
    assert_eq!(chosen(&list, "", &over(Selection::Indices([1].into()))), Ok(vec![0, 1]));
    assert_eq!(chosen(&list, "11gi", &index(3)), Ok(vec![0, 3]));
    assert_eq!(
        chosen(&list, "12gi", &index(3)).unwrap_err(),
        "cannot attach device 3 with 12gi of memory: environment a holds 4gi of it, and 1 more hold parts of it. 'genv who 3' tells more"
    );
    assert_eq!(
        chosen(&list, "17gi", &index(2)).unwrap_err(),
        "cannot attach device 2 with 17gi of memory: it has not so much memory. Ask for less, by a flag or by 'genv config gpu-memory'"
    );
    let both = request(Selection::Indices([2, 0].into()));
    assert_eq!(chosen(&list, "", &both), Ok(vec![0, 2]));
    let one_held = request(Selection::Indices([1, 2].into()));
    chosen(&list, "", &one_held).unwrap_err();
    assert_eq!(
        chosen(&list, "", &index(99)).unwrap_err(),
        "there is no device 99: this machine has devices 0 to 3. 'genv devices' lists them"
    );
}

#[test]
fn the_control_characters_of_an_eid_are_escaped() {
    let list = devices(&[&["\u{1b}[2Jx\n"]]);
    assert_eq!(
        chosen(&list, "", &index(0)).unwrap_err(),
        "cannot attach device 0: environment \\u{1b}[2Jx\\n holds it. 'genv who 0' tells more"
    );
}

fn models<T: ToString>(names: &[T]) -> BTreeMap<u32, String> {
    (0..).zip(names.iter().map(T::to_string)).collect()
}

const A100: &str = "NVIDIA A100-SXM4-40GB";
const T4: &str = "Tesla T4";

#[test]
fn several_devices_are_of_one_model_if_one_has_enough() {
    let list = devices(&[&[], &[], &[], &[], &[]]);
    let mut request = count(2);
    request.usage.models = models(&[T4, A100, A100, T4, A100]);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 3]));
    // Those without processes come first.
    request.usage.busy = [0].into();
    assert_eq!(chosen(&list, "", &request), Ok(vec![1, 2]));
    request.usage.busy.clear();
    for (count, expected) in [(1, &[0][..]), (3, &[1, 2, 4]), (4, &[0, 1, 2, 3])] {
        request.selection = Selection::Count(count);
        assert_eq!(chosen(&list, "", &request), Ok(expected.to_vec()));
    }
    // A device with unknown processes is not taken for its model while another has none.
    request.usage.unknown = [0, 2, 4].into();
    for (count, expected) in [(2, &[1, 3][..]), (3, &[1, 2, 3])] {
        request.selection = Selection::Count(count);
        assert_eq!(chosen(&list, "", &request), Ok(expected.to_vec()));
    }
    request.usage.unknown.clear();
    // An unknown device of a model that is not chosen changes nothing. If the chosen model needs it while a device without
    // processes is left, the devices without processes are taken, although they are of two models.
    for (last, expected) in [("Tesla V100", &[0, 2][..]), (T4, &[0, 1])] {
        let mut request = count(2);
        request.usage.models = models(&[A100, T4, A100, last]);
        request.usage.busy = [2].into();
        request.usage.unknown = [3].into();
        assert_eq!(chosen(&list[..4], "", &request), Ok(expected.to_vec()), "{last}");
    }
    // Where models are not known, the order of index decides.
    request.usage.models.clear();
    request.selection = Selection::Count(3);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1, 2]));
}

#[test]
fn more_devices_are_of_the_model_that_the_environment_has() {
    let list = devices(&[&[], &["me"], &[], &[], &["a"]]);
    let mut request = count(2);
    request.usage.models = models(&[T4, A100, T4, A100, A100]);
    assert_eq!(chosen(&list, "", &request), Ok(vec![1, 3]));
    request.selection = Selection::Count(3);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1, 2]));
}

#[test]
fn only_devices_of_the_requested_kind_are_taken_and_kept() {
    let mut list = devices(&[&["me"], &[], &[], &[]]);
    list[3].total_memory = Some(amount("80gi"));
    let mut request = count(1);
    request.usage.models = models(&[T4, T4, A100, "NVIDIA H100"]);
    request.kind.types = vec!["a100".to_owned()];
    assert_eq!(chosen(&list, "", &request), Ok(vec![2]));
    request.kind.types.push("t4".to_owned());
    request.selection = Selection::Count(3);
    assert_eq!(chosen(&list, "", &request), Ok(vec![0, 1, 2]));
    request.kind = DeviceKind { memory_at_least: Some(amount("80g")), ..DeviceKind::default() };
    request.selection = Selection::Count(1);
    assert_eq!(chosen(&list, "", &request), Ok(vec![3]));
}

#[test]
fn too_few_devices_of_a_kind_are_reported_with_their_holders() {
    let list = devices(&[&["a"], &[], &["b:4gi"], &[], &["c"]]);
    let mut request = count(2);
    request.usage.models = models(&[A100, A100, A100, T4, T4]);
    request.kind.types = vec!["a100".to_owned()];
    let refused = |request: &AttachRequest| chosen(&list, "", request).unwrap_err();
    assert_eq!(
        refused(&request),
        "cannot attach 2 devices of type 'a100': 1 of 3 such devices can be had, and environment a holds device 0, \
         environment b holds 4gi of device 2. 'genv devices' tells more, '--wait' waits"
    );
    let all_held = devices(&[&["a"], &["a"], &["b:4gi"], &["c"], &["d"]]);
    request.usage.models = models(&[A100, A100, A100, A100, A100]);
    assert_eq!(
        chosen(&all_held, "16gi", &request).unwrap_err(),
        "cannot attach 2 devices of type 'a100' with 16gi of memory: 0 of 5 such devices can be had, and environment a holds \
         devices 0, 1, environment b holds 4gi of device 2, environment c holds device 3, and 1 more environment holds \
         others. 'genv devices' tells more, '--wait' waits"
    );
    request.usage.models = models(&[A100, A100, A100, T4, T4]);
    assert_eq!(
        chosen(&list, "17gi", &request).unwrap_err(),
        "cannot attach 2 devices of type 'a100' with 17gi of memory: 0 of 3 such devices have so much. Ask for less, by a \
         flag or by 'genv config gpu-memory'"
    );
    request.usage.outside = outside(&[1]);
    assert_eq!(
        refused(&request),
        "cannot attach 2 devices of type 'a100': 0 of 3 such devices can be had. Device 1: process 4712 of bob (2.0 GiB) \
         uses it and does not hold it; 2 environments hold others. '--wait' waits until that ends, '--force' takes the \
         device all the same"
    );
    request.selection = Selection::Count(4);
    assert_eq!(
        refused(&request),
        "cannot attach 4 devices of type 'a100': this machine has 3. Its devices are 3 NVIDIA A100-SXM4-40GB (16.0 GiB \
         each), 2 Tesla T4 (16.0 GiB each): ask for 3 at most, or for others"
    );
    request.kind.types = vec!["h100".to_owned()];
    request.kind.memory_at_least = Some(amount("40g"));
    request.selection = Selection::Count(1);
    assert_eq!(
        refused(&request),
        "cannot attach 1 device of type 'h100' of 40g or more: this machine has none. Its devices are 3 NVIDIA \
         A100-SXM4-40GB (16.0 GiB each), 2 Tesla T4 (16.0 GiB each): ask for one of these"
    );
}
