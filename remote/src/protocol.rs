//! The messages between a client and `genv remote-serve`: lines of JSON.
//!
//! The host begins with [`Hello`]. Lines before it are output of its login shell, and are skipped. Then the host reads
//! [`Request`]s until the end of its input, and writes [`Reply`]s. An unknown field is ignored, and an unknown request gets
//! [`Reply::Error`].

use genv_core::model::{Changes, SentChanges, Snapshot};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The version of the protocol. A version whose replies older clients cannot read has a higher number.
pub const PROTOCOL_VERSION: u32 = 1;

/// The largest length of a line: a snapshot of 16 GPUs with 10,000 processes has about 5 MB.
pub const LONGEST_LINE_BYTES: usize = 16 << 20;

/// The largest length of the output before [`Hello`].
pub(crate) const LONGEST_NOISE_BYTES: usize = 64 << 10;

/// After this time without a request a host ends the session. A client sends [`Request::Alive`] more often.
pub const LONGEST_SILENCE_SECONDS: u64 = 120;

/// The first line of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the host. The field's name distinguishes the line from other output.
    pub genv_remote: u32,
    /// The version of genv on the host; absent for another program.
    #[serde(default)]
    pub version: Option<String>,
    /// The program that answers.
    pub answers_with: HostProgram,
    /// Whether the host accepts [`Request::Enforce`].
    #[serde(default)]
    pub may_enforce: bool,
}

/// The program that answers on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostProgram {
    /// `genv remote-serve`: this protocol.
    Genv,
    /// genv 1.x: the client runs its commands and parses their output.
    Genv1,
    /// `nvidia-smi` without genv: as for genv 1.x.
    NvidiaSmi,
    /// None of these programs.
    Nothing,
}

/// A line from the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Send a snapshot each interval from now on.
    Follow {
        /// Time between two snapshots.
        interval_seconds: f64,
        /// Whether the client accepts [`Reply::Changes`] after the first snapshot. A host without support for this field sends
        /// whole snapshots.
        #[serde(default)]
        changed_fields: bool,
    },
    /// Send one snapshot.
    Once,
    /// Pass steps to `genv-enforcer` on the host. Only `genv-enforcer` reads the intents and the outcomes.
    Enforce {
        /// The reply has the same id.
        id: u64,
        /// A step request of `genv-enforcer`.
        intents: Value,
    },
    /// Keep the session: the client is still there. There is no reply.
    Alive,
}

/// A line from the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case", try_from = "ReplyFields")]
pub enum Reply {
    /// A whole snapshot.
    Snapshot {
        /// With the times of the host's clock and the name on the host.
        snapshot: Box<Snapshot>,
    },
    /// The changes between the last snapshot in this session and the newest.
    Changes {
        /// With the times of the host's clock and the name on the host.
        changes: SentChanges,
    },
    /// The reply to [`Request::Enforce`].
    Enforced {
        /// The id of the request.
        id: u64,
        /// The outcomes in a step report of `genv-enforcer`.
        outcomes: Value,
    },
    /// The host cannot execute a request, or cannot parse it.
    Error {
        /// The id of the request, if it has one.
        #[serde(default)]
        id: Option<u64>,
        /// The failed task, the reason and the remedy.
        message: String,
    },
}

/// [`Reply::Snapshot`] of a borrowed snapshot.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "reply", rename = "snapshot")]
pub struct SnapshotReply<'a> {
    /// With the times of the host's clock and the name on the host.
    pub snapshot: &'a Snapshot,
}

/// [`Reply::Changes`] of borrowed snapshots.
#[derive(Debug, Serialize)]
#[serde(tag = "reply", rename = "changes")]
pub struct ChangesReply<'a> {
    /// With the times of the host's clock and the name on the host.
    pub changes: Changes<'a>,
}

/// The fields of all replies. Parsing them is faster than parsing a tagged enum, which buffers fields until its tag.
#[derive(Deserialize)]
struct ReplyFields {
    reply: ReplyKind,
    #[serde(default)]
    snapshot: Option<Box<Snapshot>>,
    #[serde(default)]
    changes: Option<SentChanges>,
    #[serde(default)]
    id: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    outcomes: Option<Value>,
    #[serde(default)]
    message: Option<String>,
}

/// A value that is present, and may be null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplyKind {
    Snapshot,
    Changes,
    Enforced,
    Error,
}

impl TryFrom<ReplyFields> for Reply {
    type Error = String;

    fn try_from(fields: ReplyFields) -> Result<Self, String> {
        let lacks = |field: &str| format!("missing field `{field}`");
        Ok(match fields.reply {
            ReplyKind::Snapshot => Self::Snapshot { snapshot: fields.snapshot.ok_or_else(|| lacks("snapshot"))? },
            ReplyKind::Changes => Self::Changes { changes: fields.changes.ok_or_else(|| lacks("changes"))? },
            ReplyKind::Enforced => Self::Enforced {
                id: fields.id.ok_or_else(|| lacks("id"))?,
                outcomes: fields.outcomes.ok_or_else(|| lacks("outcomes"))?,
            },
            ReplyKind::Error => Self::Error { id: fields.id, message: fields.message.ok_or_else(|| lacks("message"))? },
        })
    }
}

/// A message as one line of JSON, with its line feed.
///
/// # Errors
/// The message cannot be JSON.
pub fn line(message: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot() -> Snapshot {
        let snapshot = json!({
            "version": 1, "hostname": "gpu01", "timestamp_seconds": 1.5, "interval_seconds": 10.0,
            "installed": true, "collectors": {}, "devices": [], "environments": [], "processes": [],
            "counters": genv_core::model::Counters::default(),
        });
        serde_json::from_value(snapshot).unwrap()
    }

    #[test]
    fn serialized_replies_are_parsed_to_the_same_replies() {
        let snapshot = snapshot();
        let replies = [
            Reply::Snapshot { snapshot: Box::new(snapshot.clone()) },
            Reply::Enforced { id: 7, outcomes: json!([{"done": true}]) },
            Reply::Enforced { id: 8, outcomes: Value::Null },
            Reply::Error { id: None, message: "no".to_owned() },
        ];
        for reply in &replies {
            let line = line(reply).unwrap();
            assert_eq!(&serde_json::from_slice::<Reply>(&line).unwrap(), reply);
        }
        let borrowed = SnapshotReply { snapshot: &snapshot };
        assert_eq!(line(&borrowed).unwrap(), line(&replies[0]).unwrap());
        let borrowed = line(&ChangesReply { changes: Changes::between(&Snapshot::default(), &snapshot) });
        let borrowed = borrowed.unwrap();
        let read = serde_json::from_slice::<Reply>(&borrowed).unwrap();
        assert_eq!(line(&read).unwrap(), borrowed);
        let Reply::Changes { changes } = read else {
            panic!("{read:?}");
        };
        assert_eq!(changes.apply(&Snapshot::default()).unwrap(), snapshot);
    }

    #[test]
    fn unknown_fields_of_a_newer_host_are_ignored() {
        let hello: Hello =
            serde_json::from_str(r#"{"genv_remote":1,"version":"9.9","answers_with":"genv","new":{"a":[1]}}"#).unwrap();
        assert_eq!(hello.answers_with, HostProgram::Genv);
        assert!(!hello.may_enforce);
        let alive: Request = serde_json::from_str(r#"{"request":"alive","since":3}"#).unwrap();
        assert_eq!(alive, Request::Alive);
    }

    #[test]
    fn a_follow_request_of_an_earlier_client_is_for_whole_snapshots() {
        let request = r#"{"request":"follow","interval_seconds":10}"#;
        assert_eq!(
            serde_json::from_str::<Request>(request).unwrap(),
            Request::Follow { interval_seconds: 10.0, changed_fields: false }
        );
    }
}
