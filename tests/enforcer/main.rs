//! genv-enforcer and its tools: real processes, real signals, real terminals.

mod carry_out;
mod day;
mod report;
mod rules;
mod run;
mod tools;
