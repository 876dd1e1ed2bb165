use proptest::prelude::*;

use super::*;
use crate::state::change;

proptest! {
    #[test]
    fn over_subscription_gets_every_count_up_to_the_number_of_devices(
        steps in proptest::collection::vec((0..4_u8, 0..3_u32), 1..8),
        count in 0..7_u32,
    ) {
        let mut state = change::tests::machine(&[16 << 10; 4]);
        for (environment, held) in steps {
            let eid = environment.to_string();
            change::tests::configure(&mut state, &eid, None);
            state.attach(&eid, &over(Selection::Count(held))).unwrap();
        }
        change::tests::configure(&mut state, "x", None);
        let attached = state.attach("x", &over(Selection::Count(count)));
        prop_assert_eq!(attached.is_ok(), count <= 4);
    }
}
