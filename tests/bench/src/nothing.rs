//! A program that does nothing, for the cost of starting a program.

fn main() {}
