use std::cell::Cell;
use std::io::Read as _;

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
    let mut pieces = GzipPieces::default();
    let page = |(hosts, own): &(Vec<Host>, String)| {
        let blocks = hosts.chunks(2).map(<[Host]>::to_vec);
        let page = pieces.page(own, &families, blocks, add, own);
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
    let many = std::iter::repeat_with(label).take(20_000).collect();
    let mut texts = vec![(vec![("h".to_owned(), many)], String::new())];
    // Some of these end with the reserved room.
    texts.extend((1..2_000).map(|length| (Vec::new(), "x7".repeat(length))));
    for (text, expected) in pages(&texts) {
        assert_eq!(text, expected);
    }
}

#[test]
fn what_did_not_change_is_neither_written_nor_compressed_again() {
    let families = [family("a", Kind::Gauge), family("b", Kind::Gauge)];
    let families = families.each_ref();
    let (mut pieces, added) = (GzipPieces::default(), Cell::new(0));
    let mut page = |value: f64| {
        let host = |name: &str| (name.to_owned(), vec![(b'a', "x".to_owned(), 1.0), (b'b', "x".to_owned(), value)]);
        let add = |family: &Family<u8>, host: &Host, samples: &mut Samples| {
            added.set(added.get() + 1);
            add(family, host, samples);
        };
        pieces.page("", &families, [vec![host("g")], vec![host("h")]].into_iter(), add, "");
        let kept = pieces.pieces.iter().flatten().map(|piece| piece.fingerprint.is_some()).collect::<Vec<_>>();
        (added.replace(0), kept)
    };
    assert_eq!(page(1.0), (4, vec![false; 4]));
    assert_eq!(page(1.0), (8, vec![true; 4]), "written again to see that they are equal, and their sources noted");
    assert_eq!(page(1.0), (4, vec![true; 4]), "only compared");
    assert_eq!(page(2.0), (6, vec![true, false, true, false]), "what differs is compared and written");
    assert_eq!(page(3.0), (4, vec![true, false, true, false]), "what changed before is written at once");
}
