use super::*;
use crate::metrics::LabelRows;

/// A family with the added samples, in the memory of another family.
fn family(kind: Kind, labels: &'static [&'static str], add: impl FnOnce(&mut Samples)) -> MetricFamily {
    let family = |name, kind, labels| Family { name, kind, labels, help: "y", samples: () };
    let mut samples = Samples::default();
    samples.of(&family("another", Kind::Gauge, &["a"]), |samples| {
        samples.of_host("elsewhere");
        samples.add(&[&"x"], 7.0);
    });
    samples.of(&family("x", kind, labels), add).clone()
}

fn lines(family: &MetricFamily) -> Vec<&str> {
    family.text().lines().skip(2).collect()
}

#[test]
fn two_samples_with_the_same_labels_become_one() {
    let sum = family(Kind::Gauge, &["a", "b"], |samples| {
        samples.add(&[&"x", &1_u32], 2.0);
        samples.add(&[&"x", &2_u32], 4.0);
        samples.add(&[&"x", &1_u32], 3.5);
        samples.add(&[&"y", &1_u32], 1.0);
        samples.add(&[&"x", &1_u32], 1.0);
    });
    let expected = [(r#"x{a="x",b="1"}"#, 6.5), (r#"x{a="x",b="2"}"#, 4.0), (r#"x{a="y",b="1"}"#, 1.0)];
    assert_eq!(sum.samples().collect::<Vec<_>>(), expected);
    let written = expected.map(|(series, value)| format!("{series} {value}\n"));
    let header = "# HELP x y\n# TYPE x gauge\n";
    assert_eq!(sum.text(), header.to_owned() + &written.concat());
    let largest = family(Kind::Largest, &["a"], |samples| {
        samples.add(&[&"x"], 2.0);
        samples.add(&[&"x"], 1.0);
    });
    assert_eq!(lines(&largest), ["x{a=\"x\"} 2"]);
}

#[test]
fn labels_that_only_differ_in_where_they_are_split_stay_apart() {
    let family = family(Kind::Gauge, &["a", "b"], |samples| {
        samples.add(&[&"x\",b=\"y", &"z"], 1.0);
        samples.add(&[&"x", &"y\",b=\"z"], 2.0);
    });
    assert_eq!(lines(&family).len(), 2);
}

#[test]
fn the_same_labels_on_two_hosts_are_two_series() {
    let family = family(Kind::Gauge, &[], |samples| {
        samples.of_host("a");
        samples.add(&[], 1.0);
        samples.of_host("b{\"");
        samples.add(&[], 2.0);
        samples.of_host("c");
        samples.add(&[], 3.0);
    });
    let expected = ["x{hostname=\"a\"} 1", "x{hostname=\"b{\\\"\"} 2", "x{hostname=\"c\"} 3"];
    assert_eq!(lines(&family), expected);
}

#[test]
fn pieces_of_a_family_are_the_whole_one() {
    let family = Family { name: "x", kind: Kind::Gauge, labels: &["a"], help: "y", samples: () };
    // Of each host, the last sample repeats the labels of the one before.
    let add = |(hostname, number): &(&str, u32), samples: &mut Samples| {
        samples.of_host(hostname);
        for value in (0..*number).rev().chain((*number > 0).then_some(0)) {
            samples.add(&[&value], f64::from(value + 1));
        }
    };
    let hosts = [("a", 0), ("b", 3), ("c", 5_000), ("d", 0), ("e", 2)];
    let (mut samples, mut pieces, mut values) = (Samples::default(), Vec::new(), 0);
    samples.of_each(&family, &hosts, add, |piece| {
        pieces.push(piece.text().to_owned());
        values += piece.samples().count();
    });
    assert_eq!((pieces.len(), values), (2, 5_005));
    assert_eq!(pieces[1], "x{hostname=\"e\",a=\"1\"} 2\nx{hostname=\"e\",a=\"0\"} 2\n");
    let whole = samples.of(&family, |samples| hosts.iter().for_each(|host| add(host, samples)));
    assert_eq!(pieces.concat(), whole.text());
    samples.of_each(&family, &hosts[..1], add, |piece| panic!("{}", piece.text()));
}

#[test]
fn the_labels_of_a_row_are_written_as_those_of_a_sample() {
    let labels = &["a", "b"];
    let mut rows = LabelRows::with_capacity(labels, 2);
    for (values, row) in [(["x\"", ""], 1.0), (["", "y,"], 2.0), (["x\"", ""], 4.0)] {
        rows.push(&[&values[0], &values[1]], row);
    }
    for hostname in [None, Some("h")] {
        let begun = |samples: &mut Samples| hostname.into_iter().for_each(|it| samples.of_host(it));
        let of_rows = family(Kind::Gauge, labels, |samples| {
            begun(samples);
            for (row, value) in rows.iter() {
                samples.add_of(&[], row, *value);
                samples.add_of(&[], row, None);
            }
        });
        let alone = family(Kind::Gauge, labels, |samples| {
            begun(samples);
            samples.add(&[&"x\"", &""], 5.0);
            samples.add(&[&"", &"y,"], 2.0);
        });
        assert_eq!(of_rows.text(), alone.text());
        let with_more = family(Kind::Gauge, &["0", "a", "b"], |samples| {
            begun(samples);
            let (row, value) = rows.iter().next().unwrap();
            samples.add_of(&[&"z"], row, *value);
        });
        let expected = family(Kind::Gauge, &["0", "a", "b"], |samples| {
            begun(samples);
            samples.add(&[&"z", &"x\"", &""], 1.0);
        });
        assert_eq!(with_more.text(), expected.text());
    }
}

#[test]
fn what_is_absent_or_not_a_number_is_no_sample() {
    let family = family(Kind::Gauge, &[], |samples| {
        samples.add(&[], None);
        samples.add(&[], f64::NAN);
        samples.add(&[], f64::INFINITY);
    });
    assert!(family.is_empty());
    assert_eq!(family.text(), "# HELP x y\n# TYPE x gauge\n");
}

#[test]
fn values_are_written_as_they_are_displayed() {
    let whole = [0.0, 1.0, -7.0, 1e15, (1_u64 << 53) as f64, 1e16, 1e300];
    let fractions = [0.1, -2.5, 1e-4, 9.99e-5, 1e-7, 5e-324, 1e15 - 0.5, 1e15 + 0.5];
    let long = [1.0 / 3.0, 0.1 + 0.2, 123_456_789.123_456_79];
    for value in [&whole[..], &[-0.0], &fractions, &long].concat() {
        let mut text = String::new();
        push_value(&mut text, value);
        assert_eq!(text, format!(" {value}\n"));
    }
}

#[test]
fn a_family_is_written_with_all_escapes() {
    let counter =
        Family { name: "x_total", kind: Kind::Counter, labels: &["a", "b"], help: "SampleLine\nand \\.", samples: () };
    let mut samples = Samples::default();
    let family = samples.of(&counter, |samples| {
        samples.of_host("h\\");
        samples.add(&[&"x\\\"\n", &""], 1.5);
        samples.add(&[&"é", &2_u64], 1e21);
    });
    assert_eq!(
        family.text(),
        "# HELP x_total SampleLine\\nand \\\\.\n# TYPE x_total counter\n\
         x_total{hostname=\"h\\\\\",a=\"x\\\\\\\"\\n\",b=\"\"} 1.5\n\
         x_total{hostname=\"h\\\\\",a=\"é\",b=\"2\"} 1000000000000000000000\n"
    );
    let bare = self::family(Kind::Largest, &[], |samples| samples.add(&[], 1.0));
    assert_eq!(bare.text(), "# HELP x y\n# TYPE x gauge\nx 1\n");
}
