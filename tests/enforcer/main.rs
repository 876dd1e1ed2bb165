//! genv-enforcer and its tools: real processes, real signals, real terminals.

mod day;
mod report;
mod rules;
mod run;
mod tools;
