//! The document of `nvidia-smi -q -x`.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::Event;

use super::filter::{OutputFilter, ProcessOwnership};
use crate::outcome;

/// Removes the processes of others from each document. All other bytes stay the same.
pub(crate) struct XmlFilter<O> {
    own: O,
    document: Vec<u8>,
}

impl<O: ProcessOwnership> XmlFilter<O> {
    pub(crate) const fn new(own: O) -> Self {
        Self { own, document: Vec::new() }
    }
}

/// The end of a document. A process's name cannot contain it, since `<` is escaped.
const END: &[u8] = b"</nvidia_smi_log>";

impl<O: ProcessOwnership> OutputFilter for XmlFilter<O> {
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        self.document.extend_from_slice(line);
        if line.starts_with(END) {
            self.end(out);
        }
    }

    fn is_answer(&self, line: &[u8]) -> bool {
        line.starts_with(b"<?xml")
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let document = std::mem::take(&mut self.document);
        let processes = match processes(&document) {
            Ok(processes) => processes,
            Err(error) => {
                outcome::say(&format!(
                    "cannot filter the processes: {error}: all are shown; read the output with care"
                ));
                Vec::new()
            }
        };
        let pids: Vec<u32> = processes.iter().map(|(pid, _)| *pid).collect();
        let own = if pids.is_empty() { None } else { (self.own)(&pids) };
        let mut copied = 0;
        for (pid, place) in processes {
            if own.as_ref().is_some_and(|own| !own.contains(&pid)) {
                out.extend_from_slice(&document[copied..place.start]);
                copied = place.end;
            }
        }
        out.extend_from_slice(&document[copied..]);
    }
}

/// Where the processes of a document are, each with the line break and the indentation in front of it.
fn processes(document: &[u8]) -> Result<Vec<(u32, Range<usize>)>, quick_xml::Error> {
    let readable = readable(document);
    let mut reader = Reader::from_reader(&readable[..]);
    let mut found = Vec::new();
    let mut start = None;
    let mut pid = None;
    let mut is_pid = false;
    loop {
        let before = position(&reader);
        match reader.read_event()? {
            Event::Eof => return Ok(found),
            Event::Start(element) => {
                is_pid = start.is_some() && element.name().as_ref() == "pid";
                if element.name().as_ref() == "process_info" {
                    start = Some(document[..before].trim_ascii_end().len());
                    pid = None;
                }
            }
            Event::Text(text) if is_pid => {
                pid = text.trim().parse().ok();
            }
            Event::End(element) => {
                is_pid = false;
                if element.name().as_ref() == "process_info" {
                    let place = start.take().zip(pid);
                    found.extend(place.map(|(start, pid)| (pid, start..position(&reader))));
                }
            }
            _ => {}
        }
    }
}

/// The document as the reader takes it, with every position as it was: without bytes that are not ASCII, as the name of a
/// process may have, and without the names of GPUs, which the real program does not escape.
fn readable(document: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"<product_name>";
    const NAME_END: &[u8] = b"</product_name>";
    let mut text: Vec<u8> = document.iter().map(|byte| if byte.is_ascii() { *byte } else { b'?' }).collect();
    let find = |text: &[u8], tag: &[u8]| text.windows(tag.len()).position(|part| part == tag);
    let mut start = 0;
    while let Some(before) = find(&text[start..], NAME) {
        start += before + NAME.len();
        let length = find(&text[start..], NAME_END).unwrap_or(0);
        text[start..start + length].fill(b'?');
    }
    text
}

fn position(reader: &Reader<&[u8]>) -> usize {
    // The whole document is in memory.
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::filter::testing;
    use super::*;

    const DOCUMENT: &str = "<?xml version=\"1.0\" ?>
<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">
<nvidia_smi_log>
\t<gpu id=\"00000000:01:00.0\">
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<pid>7</pid>
\t\t\t\t<process_name>a&lt;/process_info&gt; \u{1b}[31m</process_name>
\t\t\t</process_info>
\t\t\t<process_info>
\t\t\t\t<pid>8</pid>
\t\t\t\t<process_name>other
</process_name>
\t\t\t</process_info>
\t\t</processes>
\t\t<accounted_processes><pid>8</pid></accounted_processes>
\t</gpu>

</nvidia_smi_log>
";

    /// The process 8 of the document.
    const OTHER: &str = "
\t\t\t<process_info>
\t\t\t\t<pid>8</pid>
\t\t\t\t<process_name>other
</process_name>
\t\t\t</process_info>";

    fn filtered(document: &str, own: &[u32]) -> String {
        testing::filtered(&mut XmlFilter::new(testing::own(own)), document.as_bytes())
    }

    #[test]
    fn processes_of_others_are_cut_out_and_nothing_else() {
        let first = DOCUMENT.find("\n\t\t\t<process_info>").unwrap();
        let second = DOCUMENT.rfind("\n\t\t\t<process_info>").unwrap();
        let end = DOCUMENT.find("\n\t\t</processes>").unwrap();
        assert_eq!(filtered(DOCUMENT, &[7, 8]), DOCUMENT);
        assert_eq!(filtered(DOCUMENT, &[7]), [&DOCUMENT[..second], &DOCUMENT[end..]].concat());
        assert_eq!(filtered(DOCUMENT, &[8]), [&DOCUMENT[..first], &DOCUMENT[second..]].concat());
        assert_eq!(filtered(DOCUMENT, &[]), [&DOCUMENT[..first], &DOCUMENT[end..]].concat());
        // In a loop, too.
        assert_eq!(filtered(&DOCUMENT.repeat(2), &[7]), filtered(DOCUMENT, &[7]).repeat(2));
    }

    #[test]
    fn a_process_name_that_is_not_utf8_hides_nothing_from_the_filter() {
        let mut document = DOCUMENT.as_bytes().to_vec();
        document[DOCUMENT.find("other").unwrap()] = 0xff;
        assert_eq!(processes(&document).unwrap(), processes(DOCUMENT.as_bytes()).unwrap());
        assert_eq!(processes(&document).unwrap().len(), 2);
    }

    #[test]
    fn a_name_of_a_gpu_that_is_not_escaped_hides_nothing_from_the_filter() {
        let named = |name: &str| {
            DOCUMENT.replace("\t\t<processes>", &format!("\t\t<product_name>{name}</product_name>\n\t\t<processes>"))
        };
        for name in ["A & <B>", "&", "", "A100"] {
            assert_eq!(filtered(&named(name), &[7]), named(name).replace(OTHER, ""), "{name}");
        }
    }

    #[test]
    fn a_newer_document_is_filtered_like_the_others() {
        // Of driver 580, parts of it left out.
        let document = include_str!("../../../tests/fixtures/nvidia-smi/580-query.xml");
        let mut parts = document.split("\n\t\t\t<process_info>");
        let others = |part: &&str| !["614", "621", "631"].iter().any(|pid| part.contains(&format!("<pid>{pid}<")));
        let mut expected: Vec<&str> = parts.by_ref().take(1).collect();
        expected.extend(parts.filter(others));
        let end = document.find("\n\t\t</processes>").unwrap();
        let expected = format!("{}{}", expected.join("\n\t\t\t<process_info>"), &document[end..]);
        let filtered = filtered(document, &[628]);
        assert_eq!(filtered, expected);
        assert_eq!(filtered.matches("<pid>").count(), 1);
    }

    #[test]
    fn what_is_no_document_or_has_unknown_processes_stays() {
        let mut filter = XmlFilter::new(|_: &[u32]| None);
        assert_eq!(testing::filtered(&mut filter, DOCUMENT.as_bytes()), DOCUMENT);
        assert_eq!(filtered("No devices were found\n", &[]), "No devices were found\n");
        assert_eq!(filtered("<a><b></a>\n", &[]), "<a><b></a>\n");
    }
}
