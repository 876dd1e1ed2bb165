//! The one place that knows which YAML library is used.
