use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::state::change;

prop_compose! {
    fn any_step()(
        environment in 0..4_u8,
        memory in option::of(1..20_u64),
        selection in prop_oneof![
            (0..6_u32).prop_map(Selection::Count),
            proptest::collection::btree_set(0..6_u32, 1..3).prop_map(Selection::Indices),
        ],
        busy in proptest::collection::btree_set(0..5_u32, 0..3),
        own in proptest::collection::btree_set(0..5_u32, 0..3),
        lost in proptest::collection::btree_set(0..5_u32, 0..2),
        models in proptest::collection::vec("[ab]", 0..5),
    ) -> Step {
        Step { environment, memory, selection, busy, own, lost, models }
    }
}

proptest! {
    #[test]
    fn no_device_is_assigned_beyond_its_memory(
        steps in proptest::collection::vec(any_step(), 1..12),
        totals in proptest::collection::vec(4..17_u64, 1..5),
    ) {
        let mut state = change::tests::machine(
            &totals.iter().map(|gibibytes| gibibytes << 10).collect::<Vec<_>>(),
        );
        for step in steps {
            let eid = step.environment.to_string();
            change::tests::configure(
                &mut state,
                &eid,
                step.memory.map(|gibibytes| MemoryAmount::mebibytes(gibibytes << 10)),
            );
            let request = AttachRequest {
                usage: DeviceUsage {
                    busy: step.busy,
                    own: step.own,
                    lost: step.lost.clone(),
                    models: models(&step.models),
                    ..DeviceUsage::default()
                },
                ..AttachRequest::new(step.selection.clone())
            };
            let before = state.clone();
            let had = state.attached(&eid);
            match state.attach(&eid, &request) {
                Ok(indices) => {
                    prop_assert_eq!(&indices, &state.attached(&eid));
                    match step.selection {
                        Selection::Count(count) => {
                            prop_assert_eq!(indices.len(), usize::try_from(count).unwrap());
                            prop_assert!(indices.iter().all(|index| !step.lost.contains(index)));
                        }
                        Selection::Indices(wanted) => {
                            prop_assert!(wanted.iter().all(|index| indices.contains(index)));
                            prop_assert!(had.iter().all(|index| indices.contains(index)));
                        }
                    }
                }
                Err(_) => {
                    let requested = state.requested.clone();
                    prop_assert_eq!(&state, &crate::state::EditableState { requested, ..before });
                }
            }
            for device in state.devices() {
                let total = device.total_memory.map(MemoryAmount::bytes).unwrap();
                let claimed = device.attachments.iter().map(|it| {
                    it.gpu_memory.map_or(total, MemoryAmount::bytes)
                });
                prop_assert!(claimed.sum::<u64>() <= total, "{:?}", device);
            }
        }
    }

    #[test]
    fn over_subscription_gets_every_count_up_to_the_number_of_devices(
        steps in proptest::collection::vec(any_step(), 1..8),
        count in 0..7_u32,
    ) {
        let mut state = change::tests::machine(&[16 << 10; 4]);
        for step in steps {
            let eid = step.environment.to_string();
            change::tests::configure(&mut state, &eid, None);
            let request = over(Selection::Count(step.busy.len().try_into().unwrap()));
            state.attach(&eid, &request).unwrap();
        }
        change::tests::configure(&mut state, "x", None);
        let attached = state.attach("x", &over(Selection::Count(count)));
        prop_assert_eq!(attached.is_ok(), count <= 4);
    }
}
