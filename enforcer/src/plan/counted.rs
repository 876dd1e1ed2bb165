//! What counts for a rule that the facts at hand cannot show to be broken: it counts over other hosts too, or over time.

use super::facts::Facts;
use super::history::Past;
use super::hold::Hold;
use super::reach::Reach;
use super::selector::View;
use super::{History, Input, Target};
use crate::config::Rule;
use crate::kinds;

/// What of a user's counts for a rule, however much is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// Whose it is.
    pub username: String,
    /// The uid, where the snapshot knows it.
    pub uid: Option<u32>,
    /// Why nothing is done about it now, if it is to wait.
    pub held: Option<String>,
    /// What could be ended or taken.
    pub targets: Vec<Target>,
}

/// What counts for a rule, by user. Of the kind `idle`: every device that is held.
pub fn counted(input: &Input<'_>, rule: &Rule) -> Vec<Counted> {
    let history = History::default();
    let facts = Facts::new(input, &history);
    let past = Past::new(&history, &facts);
    let reach = Reach::new(input, &past, &facts);
    let nothing_allowed = Rule { kind: rule.kind.counting_all().unwrap_or_else(|| rule.kind.clone()), ..rule.clone() };
    let view = View::new(&facts, &nothing_allowed);
    let hold = Hold::new(input, rule);
    let findings = kinds::findings(&view, &past, input.now_seconds).into_iter();
    let counted = findings.map(|finding| {
        let user = &facts.users[finding.user];
        let hostname = finding.host.map(|host| facts.hosts[host].hostname);
        let possible = finding.units.iter().filter(|unit| reach.is_possible(rule, unit));
        let targets = possible.flat_map(|unit| {
            let pieces = unit.pieces.iter();
            pieces.filter_map(|piece| reach.target(rule, *piece, &unit.pieces))
        });
        Counted {
            username: user.name.to_owned(),
            uid: user.uid,
            held: hold.why(user, hostname),
            targets: targets.collect(),
        }
    });
    counted.collect()
}
