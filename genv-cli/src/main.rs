//! The genv command.

fn main() {}
