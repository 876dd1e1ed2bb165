//! Samples written to Prometheus by its remote write protocol, at whatever time they are of.
//! <https://prometheus.io/docs/specs/prw/remote_write_spec/>

use std::collections::HashMap;
use std::mem;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use prost::Message;

use crate::http;
use crate::metrics::Labels;

/// The value that says that a series has ended: a scrape or a rule gives it no more.
/// <https://prometheus.io/docs/specs/prw/remote_write_spec/#stale-markers>
const STALE: u64 = 0x7ff0_0000_0000_0002;

const BATCH: usize = 100_000;

#[derive(Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp_milliseconds: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeriesId(usize);

/// Writes to one Prometheus. Samples of a series come in the order of their times.
pub(super) struct Writer {
    port: u16,
    ids: HashMap<Labels, SeriesId>,
    series: Vec<TimeSeries>,
    /// When the last sample of each series was.
    last: Vec<i64>,
    waiting: usize,
}

impl Writer {
    pub(super) fn new(port: u16) -> Self {
        Self { port, ids: HashMap::new(), series: Vec::new(), last: Vec::new(), waiting: 0 }
    }

    /// The series with these labels, `__name__` among them.
    pub(super) fn series(&mut self, labels: Labels) -> SeriesId {
        let next = SeriesId(self.series.len());
        let id = *self.ids.entry(labels.clone()).or_insert(next);
        if id == next {
            self.last.push(i64::MIN);
            let labels = labels.into_iter();
            self.series.push(TimeSeries {
                labels: labels.map(|(name, value)| Label { name, value }).collect(),
                samples: Vec::new(),
            });
        }
        id
    }

    pub(super) fn add(&mut self, series: SeriesId, milliseconds: i64, value: f64) -> Result<()> {
        // Prometheus would leave it out without a word.
        let last = mem::replace(&mut self.last[series.0], milliseconds);
        ensure!(
            last < milliseconds,
            "a sample of {milliseconds} after one of {last}: {:?}",
            self.series[series.0].labels
        );
        self.series[series.0].samples.push(Sample { value, timestamp_milliseconds: milliseconds });
        self.waiting += 1;
        if self.waiting >= BATCH {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn end(&mut self, series: SeriesId, milliseconds: i64) -> Result<()> {
        self.add(series, milliseconds, f64::from_bits(STALE))
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.waiting = 0;
        let full = self.series.iter_mut().filter(|s| !s.samples.is_empty());
        let request = WriteRequest {
            timeseries: full
                .map(|series| TimeSeries { labels: series.labels.clone(), samples: mem::take(&mut series.samples) })
                .collect(),
        };
        if request.timeseries.is_empty() {
            return Ok(());
        }
        let body = snap::raw::Encoder::new().compress_vec(&request.encode_to_vec())?;
        let headers = [
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", "0.1.0"),
        ];
        let answer = http::post(self.port, "/api/v1/write", &headers, &body)?;
        ensure!(
            answer.status / 100 == 2,
            "Prometheus refused samples: {} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        Ok(())
    }
}

pub(super) fn milliseconds(moment: SystemTime) -> Result<i64> {
    Ok(i64::try_from(moment.duration_since(UNIX_EPOCH)?.as_millis())?)
}
