//! The log in systemd's journal, with the fields of each event and a message id for each kind of event.
//!
//! The protocol: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Bytes of one field; a datagram holds some 200 KB.
const MAX_FIELD_BYTES: usize = 8 << 10;

/// The field with the kind of an event.
pub const EVENT: &str = "event";

/// Kinds of events with their message ids, which never change: `journalctl MESSAGE_ID=…` finds them.
pub const MESSAGE_IDS: &[(&str, &str)] = &[
    ("started", "3256b2dda3df49ef9fc578bf593e7aea"),
    ("stopped", "4196500283364e38ab7fe7e5dea7bdc0"),
    ("violation", "3ecf06b493fa45c6a155de45509ce157"),
    ("warning", "25bfd1fc9398435eb6e8358f06cca7bc"),
    ("action", "3e3f457ea98a4760b8593127f43f69d9"),
    ("breaker", "ac7ada9f084e45dc95b3edf6180212eb"),
    ("config_loaded", "c47de722651f422686ad548626859adb"),
    ("config_warning", "963fc7769a394fd7a095f0eaa96dabc8"),
    ("config_refused", "a147163302ff40f3bbb7ac7c892495f9"),
    ("blind", "2c8a6f7d4e0b4d2f9a617c35be90d1f4"),
    ("lock_held", "b1d3c5e07a924f68a0e2d4c6f8193b57"),
    ("record_disputed", "7e0f4b0a3c514c6c9d1b5a1f6e2d8c47"),
    ("fault", "60dc37c3c1034e47aa19e015d7cea17c"),
];

/// Sends events to the journal.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal, if stderr is connected to it (`JOURNAL_STREAM` of systemd.exec(5) says so).
    pub fn of_this_service() -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = std::fs::metadata("/proc/self/fd/2").ok()?;
        let is_it = stream == format!("{}:{}", stderr.dev(), stderr.ino());
        is_it.then(|| Self::at(Path::new(SOCKET)).ok())?
    }

    /// The journal that listens on this socket.
    ///
    /// # Errors
    /// No program listens.
    pub fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A connected socket would be lost with the journal, and would not find a restarted one.
        UnixDatagram::unbound()?.connect(path)?;
        // A slow journal loses lines, and does not block the enforcer.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned() })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::default();
        entry.field("PRIORITY", priority(*event.metadata().level()));
        entry.field("SYSLOG_IDENTIFIER", "genv-enforcer");
        event.record(&mut entry);
        let message = format!("{}{}", entry.message, entry.values);
        entry.field("MESSAGE", &message);
        // A failure has no other destination.
        let _ = self.socket.send_to(&entry.bytes, &self.path);
    }
}

/// Priorities of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// An incomplete entry.
#[derive(Debug, Default)]
struct Entry {
    bytes: Vec<u8>,
    message: String,
    /// The other fields, appended to the message as in a log on stderr: by default the journal shows only messages.
    values: String,
}

impl Entry {
    /// Adds a field, with its length, so that its value may hold anything.
    fn field(&mut self, name: &str, value: &str) {
        let mut end = value.len().min(MAX_FIELD_BYTES);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(b'\n');
        self.bytes.extend((end as u64).to_le_bytes());
        self.bytes.extend(&value.as_bytes()[..end]);
        self.bytes.push(b'\n');
    }

    /// `shown` is the value as it is shown behind the message.
    fn record(&mut self, field: &Field, value: &str, shown: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            EVENT => {
                if let Some((_, id)) = MESSAGE_IDS.iter().find(|(event, _)| *event == value) {
                    self.field("MESSAGE_ID", id);
                }
                self.field("GENV_EVENT", value);
            }
            name => {
                self.values += &format!(" {name}={shown}");
                let name = name.to_ascii_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
                self.field(&format!("GENV_{name}"), value);
            }
        }
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        self.record(field, &value, &value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|byte| *byte == b'\n').unwrap();
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let length = u64::from_le_bytes(entry[end + 1..end + 9].try_into().unwrap());
            let value = &entry[end + 9..end + 9 + length as usize];
            assert_eq!(entry[end + 9 + length as usize], b'\n');
            assert!(name.bytes().all(|it| it.is_ascii_uppercase() || it == b'_'));
            fields.insert(name, String::from_utf8(value.to_vec()).unwrap());
            entry = &entry[end + 10 + length as usize..];
        }
        fields
    }

    #[test]
    fn an_event_is_an_entry_with_its_fields_whatever_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let log = tracing_subscriber::registry().with(Journal::at(&path).unwrap());
        let hostile = "a\nPRIORITY=0\n";
        tracing::subscriber::with_default(log, || {
            tracing::warn!(event = "warning", username = hostile, pid = 42, "a user is warned");
            tracing::info!(long = "é".repeat(10_000), "long");
        });
        let mut buffer = vec![0; 1 << 20];
        let length = journal.recv(&mut buffer).unwrap();
        let entry = fields(&buffer[..length]);
        let known = MESSAGE_IDS.iter().find(|(event, _)| *event == "warning");
        assert_eq!(entry["MESSAGE"], r#"a user is warned username="a\nPRIORITY=0\n" pid=42"#);
        assert_eq!(entry["MESSAGE_ID"], known.unwrap().1);
        assert_eq!(entry["PRIORITY"], "4");
        assert_eq!(entry["GENV_USERNAME"], hostile);
        assert_eq!(entry["GENV_PID"], "42");
        let length = journal.recv(&mut buffer).unwrap();
        assert_eq!(fields(&buffer[..length])["GENV_LONG"].len(), MAX_FIELD_BYTES);
    }

    #[test]
    fn a_restarted_journal_gets_entries_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(Journal::at(&path).is_err(), "no program listens");
        let first = UnixDatagram::bind(&path).unwrap();
        let log = tracing_subscriber::registry().with(Journal::at(&path).unwrap());
        tracing::subscriber::with_default(log, || {
            drop(first);
            std::fs::remove_file(&path).unwrap();
            tracing::warn!("lost");
            let second = UnixDatagram::bind(&path).unwrap();
            second.set_nonblocking(true).unwrap();
            tracing::warn!("arrived");
            let mut buffer = [0; 4096];
            let length = second.recv(&mut buffer).unwrap();
            assert_eq!(fields(&buffer[..length])["MESSAGE"], "arrived");
        });
    }

    #[test]
    fn message_ids_are_distinct_documented_and_of_the_form_that_the_journal_knows() {
        let page = include_str!("../../docs/enforcement.md");
        let ids: BTreeSet<_> = MESSAGE_IDS.iter().map(|(_, id)| id).collect();
        assert_eq!(ids.len(), MESSAGE_IDS.len());
        for (event, id) in MESSAGE_IDS {
            assert!(page.contains(&format!("| `{event}` | `{id}` |\n")), "{event}");
            assert_eq!(id.len(), 32);
            assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }
}
