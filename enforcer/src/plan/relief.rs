//! What would end a violation: the fewest, and among equals the newest.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// What a rule could take to relieve a violation.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// By how much the violation shrinks with it.
    pub(super) weight: u64,
    /// When it began, in any unit that all candidates of one violation share; the larger the newer.
    pub(super) newest: f64,
    /// It is going already: whatever is chosen comes after it.
    pub(super) going: bool,
}

/// Positions of the candidates to take, so that together they weigh at least `excess`, the newest first; absent if all of
/// them would not do.
///
/// Those that are going already cost nothing. Of the rest it is as few as possible, and of all such sets the one with the
/// newest, then the second newest, and so on; of two as new as each other, the later in the list is the newer.
pub(super) fn choose(candidates: &[Candidate], excess: u64) -> Option<Vec<usize>> {
    let listed = |going: bool| {
        let mut positions: Vec<usize> = (0..candidates.len())
            .filter(|&position| candidates[position].going == going)
            .filter(|&position| candidates[position].weight > 0)
            .collect();
        positions.sort_by(|&a, &b| by_newest(candidates, a, b));
        positions
    };
    let weigh = |positions: &[usize]| {
        let weights = positions.iter().map(|&position| candidates[position].weight);
        weights.fold(0_u64, u64::saturating_add)
    };
    let going = listed(true);
    let more = fewest(candidates, &listed(false), excess.saturating_sub(weigh(&going)))?;
    let mut chosen = fewest(candidates, &going, excess.saturating_sub(weigh(&more)))?;
    chosen.extend(more);
    chosen.sort_by(|&a, &b| by_newest(candidates, a, b));
    Some(chosen)
}

/// The order of two candidates by their positions.
fn by_newest(candidates: &[Candidate], a: usize, b: usize) -> Ordering {
    candidates[b].newest.total_cmp(&candidates[a].newest).then(b.cmp(&a))
}

/// The fewest of `newest_first` that weigh `excess`, and of those the newest.
fn fewest(candidates: &[Candidate], newest_first: &[usize], excess: u64) -> Option<Vec<usize>> {
    if excess == 0 {
        return Some(Vec::new());
    }
    // Of equal weights the newest suffice: any choice needs the same number.
    let first = candidates[*newest_first.first()?].weight;
    if newest_first.iter().all(|&position| candidates[position].weight == first) {
        let number = usize::try_from(excess.div_ceil(first)).ok()?;
        return newest_first.get(..number).map(<[usize]>::to_vec);
    }
    // The heaviest that are not passed yet, as many as may still be taken; the others wait in `lighter`.
    let mut heaviest: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut lighter: BTreeSet<(u64, usize)> =
        newest_first.iter().map(|&position| (candidates[position].weight, position)).collect();
    let mut weight: u128 = 0;
    while weight < u128::from(excess) {
        let next = lighter.pop_last()?;
        weight += u128::from(next.0);
        heaviest.insert(next);
    }

    let mut needed = u128::from(excess);
    let mut chosen = Vec::with_capacity(heaviest.len());
    for &position in newest_first {
        if heaviest.is_empty() {
            break;
        }
        let item = (candidates[position].weight, position);
        // As many as may be taken beside this one: without it, or without the lightest.
        let beside = if heaviest.contains(&item) { item } else { *heaviest.first()? };
        let others = weight - u128::from(beside.0);
        if others + u128::from(item.0) >= needed {
            heaviest.remove(&beside);
            if beside != item {
                lighter.remove(&item);
                lighter.insert(beside);
            }
            weight = others;
            needed = needed.saturating_sub(u128::from(item.0));
            chosen.push(position);
        } else {
            // Never one of the heaviest: with these it would do.
            lighter.remove(&item);
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(of: &[(u64, u8, bool)]) -> Vec<Candidate> {
        let candidate =
            |&(weight, newest, going): &(u64, u8, bool)| Candidate { weight, newest: f64::from(newest), going };
        of.iter().map(candidate).collect()
    }

    #[test]
    fn one_that_suffices_is_taken_rather_than_two_and_of_those_the_newest() {
        let of = candidates(&[(50, 1, false), (40, 2, false), (10, 3, false), (30, 4, false)]);
        assert_eq!(choose(&of, 35), Some(vec![1]));
        assert_eq!(choose(&of, 30), Some(vec![3]));
        assert_eq!(choose(&of, 60), Some(vec![3, 1]));
        assert_eq!(choose(&of, 130), Some(vec![3, 2, 1, 0]));
        assert_eq!(choose(&of, 131), None);
        assert_eq!(choose(&of, 0), Some(vec![]));
        let heaviest = candidates(&[(u64::MAX, 1, false), (u64::MAX, 2, false)]);
        assert_eq!(choose(&heaviest, u64::MAX), Some(vec![1]));
    }

    /// All subsets: the fewest that are not going, then the newest of them.
    fn oracle(candidates: &[Candidate], excess: u64) -> Option<Vec<usize>> {
        let weigh = |set: u32| -> u64 {
            let all = 0..candidates.len();
            all.filter(|position| set & (1 << position) != 0).map(|position| candidates[position].weight).sum()
        };
        let going: u32 =
            (0..candidates.len()).filter(|&position| candidates[position].going).map(|position| 1 << position).sum();
        let listed = |set: u32| {
            let mut list: Vec<usize> = (0..candidates.len()).filter(|position| set & (1 << position) != 0).collect();
            list.sort_by(|&a, &b| by_newest(candidates, a, b));
            list
        };
        let all = 0..1_u32 << candidates.len();
        all.filter(|set| set & going == 0 && weigh(set | going) >= excess).map(listed).min_by(|a, b| {
            let newer = a.iter().zip(b).find(|(a, b)| a != b).map(|(&a, &b)| by_newest(candidates, a, b));
            a.len().cmp(&b.len()).then(newer.unwrap_or(Ordering::Equal))
        })
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_trying_every_set(
            of in prop::collection::vec((0_u64..6, 0_u8..4, prop::bool::weighted(0.2)), 0..9),
            excess in 0_u64..30,
        ) {
            let candidates = candidates(&of);
            let chosen = choose(&candidates, excess);
            let more = chosen.clone().map(|chosen| {
                let mut more = chosen;
                more.retain(|&position| !candidates[position].going);
                more
            });
            prop_assert_eq!(more, oracle(&candidates, excess));
            if let Some(chosen) = chosen {
                let weight: u64 = chosen.iter().map(|&position| candidates[position].weight).sum();
                prop_assert!(weight >= excess);
                // Nothing is chosen in vain.
                for &position in &chosen {
                    prop_assert!(weight - candidates[position].weight < excess);
                }
            }
        }
    }
}
