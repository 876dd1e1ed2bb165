use proptest::prelude::*;

use super::*;

const OVER: Duration = Duration::from_secs(600);

fn sample(sampled_seconds: f64, utilization_ratio: f64) -> Sample {
    Sample { attached_seconds: Some(0), sampled_seconds, utilization_ratio }
}

fn observed(samples: impl Iterator<Item = (f64, f64)>) -> IdleWindow {
    let mut window = IdleWindow::default();
    for (at, utilization) in samples {
        window.observe(sample(at, utilization), OVER, 30.0);
    }
    window
}

fn measured(window: &IdleWindow) -> Option<f64> {
    window.average(OVER).map(|it| it.measured)
}

#[test]
fn what_was_not_measured_may_have_been_use() {
    let idle = || observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
    for (failed_seconds, lacks) in [(30.0, false), (32.0, true), (590.0, true)] {
        let mut window = idle();
        window.fail();
        window.observe(sample(600.0 + failed_seconds, 0.0), OVER, 30.0);
        let average = window.average(OVER).unwrap();
        assert_eq!(average.measured, 0.0);
        let at_most = failed_seconds / (600.0 + failed_seconds);
        assert!((average.at_most - at_most).abs() < 1e-6, "{average:?}");
        assert_eq!(average.gaps.as_secs_f64().round(), failed_seconds);
        assert_eq!(window.lacks(OVER, 0.05), lacks, "{failed_seconds}");
        let written = serde_json::to_string(&window).unwrap();
        assert_eq!(serde_json::from_str::<IdleWindow>(&written).unwrap(), window);
        // The answer is known again once all the time since the gap is measured.
        for i in 1..=60 {
            let at = 600.0 + failed_seconds + f64::from(i) * 10.0;
            window.observe(sample(at, 0.0), OVER, 30.0);
        }
        assert_eq!(window.average(OVER).unwrap().at_most, 0.0);
    }
    // A gap in which the enforcer did not run only makes the window longer.
    let mut window = idle();
    window.observe(sample(900.0, 0.0), OVER, 30.0);
    let average = window.average(OVER).unwrap();
    assert_eq!((average.at_most, average.gaps.as_secs()), (0.0, 300));
}

#[test]
fn windows_that_an_earlier_version_wrote_are_read() {
    let text = r#"{"over_milliseconds":600000,"buckets":[[50.0,2.5],[10.0,0.0]]}"#;
    let window: IdleWindow = serde_json::from_str(text).unwrap();
    assert_eq!(window.seconds(), 60.0);
}

#[test]
fn a_gap_and_a_clock_that_is_set_back_do_not_count_and_longer_than_the_window_begin_anew() {
    let idle = || observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
    for (at, goes_on) in [(600.0, true), (631.0, true), (1200.0, true), (1201.0, false), (0.0, true), (-1.0, false)] {
        let mut window = idle();
        assert_eq!(measured(&window), Some(0.0));
        // This sample does not measure the time in between.
        window.observe(sample(at, 1.0), OVER, 30.0);
        assert_eq!(measured(&window), goes_on.then_some(0.0), "{at}");
        assert_eq!(window.is_interrupted, !goes_on, "{at}");
        for i in 1..=60 {
            window.observe(sample(at + f64::from(i) * 10.0, 0.0), OVER, 30.0);
        }
        assert_eq!(measured(&window), Some(0.0), "{at}");
        assert!(!window.is_interrupted, "{at}");
    }
}

#[test]
fn a_new_attachment_begins_anew() {
    let mut window = observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
    let anew = Sample { attached_seconds: Some(605), ..sample(610.0, 0.0) };
    window.observe(anew, OVER, 30.0);
    assert_eq!(measured(&window), None);
    assert!(!window.is_interrupted);
}

#[test]
fn a_window_that_became_shorter_holds_nothing_of_the_longer_one() {
    let mut window = observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
    let shorter = Duration::from_secs(30);
    for (at, average) in [(610.0, None), (620.0, None), (630.0, None), (640.0, Some(1.0))] {
        window.observe(sample(at, 1.0), shorter, 30.0);
        assert_eq!(window.average(shorter).map(|it| it.measured), average, "{at}");
    }
}

proptest! {
    #[test]
    fn memory_is_bounded_and_the_average_is_that_of_a_window_of_its_length(
        gaps in prop::collection::vec(0.5_f64..30.0, 0..400),
        busy in prop::collection::vec(0.0_f64..1.0, 400),
    ) {
        let mut at = 0.0;
        let samples: Vec<(f64, f64)> = gaps.iter().zip(&busy).map(|(gap, &busy)| { at += gap; (at, busy) }).collect();
        let window = observed(samples.iter().copied());
        prop_assert!(window.buckets.len() <= 2 * PARTS as usize + 2, "{}", window.buckets.len());
        let Some(average) = measured(&window) else {
            prop_assert!(at - samples.first().map_or(0.0, |first| first.0) < 600.5);
            return Ok(());
        };
        // The window ends now and is at least as long as asked, by at most a part longer.
        let length = f64::from(window.seconds());
        prop_assert!((599.9..=600.0 + 50.1).contains(&length), "{}", length);
        let expected: f64 = samples.windows(2).filter(|pair| pair[0].0 >= at - length - 0.1)
            .map(|pair| (pair[1].0 - pair[0].0) * pair[1].1).sum::<f64>() / length;
        prop_assert!((average - expected).abs() < 1e-3, "{} {}", average, expected);
    }
}
