use std::cell::Cell;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flate2::bufread::GzDecoder;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::metrics::Kind;

/// A host with samples: family, label and value of each.
type Host = (String, Vec<(u8, String, f64)>);

const LABELS: &[&str] = &["a"];

fn family(name: &'static str, kind: Kind) -> Family<u8> {
    Family { name, kind, labels: LABELS, help: "y", samples: name.as_bytes()[0] }
}

fn add(family: &Family<u8>, host: &Host, samples: &mut Samples) {
    samples.of_host(&host.0);
    for (_, label, value) in host.1.iter().filter(|(of, ..)| *of == family.samples) {
        samples.add(&[label], *value);
    }
}

/// The texts of these hosts, one by one, as pages of the same pieces: the text that each page has, and the expected one.
fn pages(texts: &[(Vec<Host>, String)]) -> Vec<(String, String)> {
    let families = [family("a", Kind::Gauge), family("b", Kind::Largest), family("c", Kind::Counter)];
    let families = families.each_ref();
    let (mut pieces, mut samples) = (GzipPieces::default(), Samples::default());
    let page = |(hosts, own): &(Vec<Host>, String)| {
        let groups = hosts.chunks(2).map(<[Host]>::to_vec);
        let page = pieces.page(&mut samples, own, &families, groups, add, own);
        let mut expected = own.clone();
        for family in families {
            let add = |host: &Host, samples: &mut Samples| add(family, host, samples);
            Samples::default().of_each(family, hosts, add, |piece| expected.push_str(piece.text()));
        }
        (unpacked(&page), expected + own)
    };
    texts.iter().map(page).collect()
}

/// The text of a page that is one member of gzip and nothing else.
fn unpacked(mut page: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(&mut page).read_to_string(&mut text).unwrap();
    assert!(page.is_empty(), "{page:?}");
    text
}

/// A host with few names, labels and values, so that many pieces are as before.
fn host() -> impl Strategy<Value = Host> {
    let label = prop_oneof!["[ab]?", Just("\"\n".to_owned()), "[xy]".prop_map(|end| "long".repeat(40) + &end)];
    let value = prop::sample::select(vec![0.0, -0.0, 1.0, 2.5]);
    ("[ab]", vec((b'a'..=b'c', label, value), 0..4))
}

proptest! {
    #[test]
    fn each_page_has_the_text_of_its_hosts(
        first in vec(host(), 0..7),
        steps in vec((any::<prop::sample::Index>(), proptest::option::of(host()), any::<bool>(), "[ab]?"), 0..9),
    ) {
        let mut texts = vec![(first.clone(), "own\n".to_owned()), (first, String::new())];
        for (at, host, is_new, own) in steps {
            let mut hosts = texts[texts.len() - 1].0.clone();
            let at = at.index(hosts.len() + 1);
            // Most hosts stay, one may come, go or change.
            if at < hosts.len() && !is_new {
                hosts.remove(at);
            }
            host.into_iter().for_each(|host| hosts.insert(at, host));
            texts.push((hosts, own));
        }
        for (text, expected) in pages(&texts) {
            prop_assert_eq!(text, expected);
        }
    }
}

#[test]
fn a_text_of_any_length_is_compressed_whole() {
    // Pseudorandom digits hardly compress: they fill the reserved room several times.
    let mut number = 7_u64;
    let label = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (b'a', format!("{:016x}{number:x}", number.rotate_left(21)), number as f64)
    };
    let many: Vec<_> = std::iter::repeat_with(label).take(20_000).collect();
    let digits: String = many.iter().take(60).map(|(_, label, _)| &**label).collect();
    let mut texts = vec![(vec![("h".to_owned(), many)], String::new())];
    // Some of these fill the reserved room when all of the text is read.
    texts.extend((1..digits.len()).map(|length| (Vec::new(), digits[..length].to_owned())));
    for (text, expected) in pages(&texts) {
        assert_eq!(text, expected);
    }
}

#[test]
fn what_did_not_change_is_neither_written_nor_compressed_again() {
    let families = [family("a", Kind::Gauge), family("b", Kind::Gauge)];
    let families = families.each_ref();
    let (mut pieces, mut samples, added) = (GzipPieces::default(), Samples::default(), Cell::new(0));
    let mut page = |value: f64| {
        let host = |name: &str| (name.to_owned(), vec![(b'a', "x".to_owned(), 1.0), (b'b', "x".to_owned(), value)]);
        let add = |family: &Family<u8>, host: &Host, samples: &mut Samples| {
            added.set(added.get() + 1);
            add(family, host, samples);
        };
        pieces.page(&mut samples, "", &families, [vec![host("g")], vec![host("h")]].into_iter(), add, "");
        let kept = pieces.pieces.iter().flatten().map(|piece| piece.fingerprint.is_some()).collect::<Vec<_>>();
        (added.replace(0), kept)
    };
    assert_eq!(page(1.0), (4, vec![false; 4]));
    assert_eq!(page(1.0), (8, vec![true; 4]), "written again to see that they are equal, and their sources noted");
    assert_eq!(page(1.0), (4, vec![true; 4]), "only compared");
    assert_eq!(page(2.0), (6, vec![true, false, true, false]), "what differs is compared and written");
    assert_eq!(page(3.0), (4, vec![true, false, true, false]), "what changed before is written at once");
}

#[test]
fn a_page_that_panicked_leaves_nothing_in_the_next() {
    let family = family("a", Kind::Gauge);
    let (mut pieces, mut samples) = (GzipPieces::default(), Samples::default());
    let mut page = |values: &[f64], panics: bool| {
        let host = |(at, value): (usize, &f64)| (format!("h{at}"), vec![(b'a', "x".to_owned(), *value)]);
        let groups = vec![values.iter().enumerate().map(host).collect::<Vec<_>>()].into_iter();
        let add = |family: &Family<u8>, host: &Host, samples: &mut Samples| {
            add(family, host, samples);
            assert!(!panics, "as a family might");
        };
        let page = AssertUnwindSafe(|| pieces.page(&mut samples, "", &[&family], groups, add, ""));
        catch_unwind(page).map(|page| unpacked(&page)).ok()
    };
    let text = |[g, h]: [i32; 2]| {
        Some(format!(
            "# HELP a y\n# TYPE a gauge\na{{hostname=\"h0\",a=\"x\"}} {g}\na{{hostname=\"h1\",a=\"x\"}} {h}\n"
        ))
    };
    for _ in 0..3 {
        assert_eq!(page(&[1.0, 2.0], false), text([1, 2]));
    }
    assert_eq!(page(&[3.0, 4.0], true), None, "in a fingerprint");
    assert_eq!(page(&[3.0, 4.0], true), None, "in a text");
    assert_eq!(page(&[3.0, 4.0], false), text([3, 4]));
}
