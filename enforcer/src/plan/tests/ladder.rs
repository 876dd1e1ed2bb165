use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn outside() -> Lab {
    Lab::new(1, 2).runs(11, "bob", None, &[(0, GIB)])
}

fn warned_rule(action: Action) -> Rule {
    rule(NonEnvProcesses, action).timed(60, &[100, 30], 0)
}

fn told(steps: &[(f64, StepKind)]) -> Vec<String> {
    let line = |(at, kind): &(f64, StepKind)| match kind {
        StepKind::Warn { end_seconds: Some(end), .. } => format!("{at} {} until {}", short(kind), end - NOON),
        kind => format!("{at} {}", short(kind)),
    };
    steps.iter().map(line).collect()
}

#[test]
fn promise_07_no_signal_before_for_and_every_warning_have_passed() {
    let mut daemon = Daemon::new(vec![warned_rule(Action::Kill)]);
    assert_eq!(
        told(&daemon.run(&outside(), 1000)),
        ["60 report", "60 warn 1/2 until 160", "130 warn 2/2 until 160", "160 terminate 11", "220 kill 11",]
    );
}

#[test]
fn without_warnings_the_end_comes_after_for() {
    let steps = |action, warn: &[u64]| {
        let mut daemon = Daemon::new(vec![warned_rule(action).timed(60, warn, 0)]);
        told(&daemon.run(&outside(), 1000))
    };
    assert_eq!(steps(Action::Terminate, &[]), ["60 report", "60 terminate 11"]);
    for warn in [&[][..], &[100, 30]] {
        assert_eq!(steps(Action::Report, warn), ["60 report"]);
        assert_eq!(steps(Action::Warn, warn), ["60 report", "60 warn 1/1"]);
    }
    let mut daemon = Daemon::new(vec![warned_rule(Action::Report)]);
    daemon.run(&outside(), 1000);
    // A report keeps its time.
    let stage = daemon.plan(&outside()).violations[0].stage.clone();
    assert_eq!(stage, Stage::Acted { at_seconds: NOON + 60.0, kill_seconds: None });
}

#[test]
fn stages_follow_the_ladder() {
    let mut daemon = Daemon::new(vec![warned_rule(Action::Terminate)]);
    let mut stage_at = |seconds: f64| {
        while daemon.now_seconds < NOON + seconds {
            daemon.cycle(&outside());
            daemon.now_seconds += 10.0;
        }
        let plan = daemon.plan(&outside());
        assert_eq!(plan.violations[0].since_seconds, NOON);
        plan.violations[0].stage.clone()
    };
    let at = |seconds: f64| NOON + seconds;
    assert_eq!(stage_at(30.0), Stage::Pending { until_seconds: at(60.0) });
    assert_eq!(stage_at(60.0), Stage::Warned { given: 0, end_seconds: at(160.0) });
    assert_eq!(stage_at(100.0), Stage::Warned { given: 1, end_seconds: at(160.0) });
    assert_eq!(stage_at(150.0), Stage::Warned { given: 2, end_seconds: at(160.0) });
    assert_eq!(stage_at(160.0), Stage::Due);
    assert_eq!(stage_at(900.0), Stage::Acted { at_seconds: at(160.0), kill_seconds: None });
}
