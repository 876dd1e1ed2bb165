//! The version, revision and compiler of this program.

/// Version of the packages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Revision of the sources, or `unknown`.
pub const REVISION: &str = env!("GENV_REVISION");
/// Version of the compiler, or `unknown`.
pub(crate) const RUST_VERSION: &str = env!("GENV_RUST_VERSION");

/// Version, revision and compiler, as `--version` prints them.
pub const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("GENV_REVISION"),
    ", rustc ",
    env!("GENV_RUST_VERSION"),
    ")"
);
