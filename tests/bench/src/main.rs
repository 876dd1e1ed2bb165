//! Measures the budgets of genv programs.

fn main() {}
