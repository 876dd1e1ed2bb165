//! Which environment a process belongs to.
