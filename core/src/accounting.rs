//! Counters that outlive a snapshot: device-seconds, energy and XID errors, charged to users.
