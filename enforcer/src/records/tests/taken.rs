use super::*;

fn lab_at(attached: bool, read_seconds: f64) -> Vec<HostSnapshot> {
    let mut hosts = lab(attached);
    let state = snapshot(&mut hosts).collectors.get_mut("state").unwrap();
    state.timestamp_seconds = Some(read_seconds);
    hosts
}

fn attached(at_seconds: f64) -> Confirmed {
    Confirmed { change: ConfirmedChange::Attached { gpu: 0 }, ..released(at_seconds) }
}

#[test]
fn a_device_that_was_taken_has_to_be_borne_out_again() {
    let mut witness = FakeWitness::of_member();
    witness.confirmed = vec![attached(NOON - 60.0)];
    let mut records = Records::default();
    let count = |records: &mut Records, witness: &mut FakeWitness, read_seconds| {
        let hosts = lab_at(true, read_seconds);
        let counting = records.count(&hosts, Some(("gpu01", witness)), read_seconds);
        let why = counting.disputed.into_iter().map(|it| it.why);
        let is_unconfirmed = counting.unconfirmed.of("gpu01", "e1").is_some();
        (why.collect::<Vec<_>>(), is_unconfirmed)
    };
    let fine = (Vec::new(), false);
    assert_eq!(count(&mut records, &mut witness, NOON), fine);
    let taken_seconds = NOON + 10.0;
    records.note_taken("gpu01", "e1", 0, taken_seconds);
    witness.confirmed.push(released(taken_seconds));
    // A state from before the detach shows nothing new.
    assert_eq!(count(&mut records, &mut witness, taken_seconds), fine);
    let doubt = "device 0 came to it, and nothing shows that its user did that";
    for look in [20.0, 30.0] {
        let restored = count(&mut records, &mut witness, NOON + look);
        assert_eq!(restored, (vec![doubt.to_owned()], true), "{look}");
    }
    witness.confirmed.push(attached(NOON + 35.0));
    assert_eq!(count(&mut records, &mut witness, NOON + 40.0), fine);
}

#[test]
fn a_device_that_was_taken_is_not_held_while_a_process_still_uses_it() {
    let mut witness = FakeWitness::of_member();
    let mut records = Records::default();
    let mut count = |records: &mut Records, attached, read_seconds| {
        let hosts = lab_at(attached, read_seconds);
        records.count(&hosts, Some(("gpu01", &mut witness)), read_seconds)
    };
    assert!(is_attached(&count(&mut records, true, NOON)));
    records.note_taken("gpu01", "e1", 0, NOON + 10.0);
    // The confirmation of the detach could not be written.
    let counting = count(&mut records, false, NOON + 20.0);
    assert!(!is_attached(&counting));
    assert_eq!(counting.disputed, []);
}

#[test]
fn what_a_user_gave_back_stays_given_back_where_an_older_confirmation_is_put_in_place() {
    let mut witness = FakeWitness::of_member();
    let older = vec![attached(NOON - 60.0)];
    witness.confirmed.clone_from(&older);
    let mut records = Records::default();
    let mut count = |witness: &mut FakeWitness, attached, read_seconds| {
        let hosts = lab_at(attached, read_seconds);
        let counting = records.count(&hosts, Some(("gpu01", witness)), read_seconds);
        let is_unconfirmed = counting.unconfirmed.of("gpu01", "e1").is_some();
        records = serde_json::from_str(&serde_json::to_string(&records).unwrap()).unwrap();
        (is_attached(&counting), is_unconfirmed)
    };
    assert_eq!(count(&mut witness, true, NOON), (true, false));
    witness.confirmed = vec![released(NOON + 10.0)];
    assert_eq!(count(&mut witness, false, NOON + 20.0), (false, false));
    witness.confirmed = older;
    assert_eq!(count(&mut witness, true, NOON + 30.0), (true, true));
    witness.confirmed.push(attached(NOON + 35.0));
    assert_eq!(count(&mut witness, true, NOON + 40.0), (true, false));
}
