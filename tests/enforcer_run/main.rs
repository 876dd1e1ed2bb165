//! genv-enforcer as a whole: real processes, real signals, real terminals.

mod acting;
mod administration;
mod blind;
mod disputed;
mod hindered;
mod killed;
mod left_behind;
mod pacing;
mod planted;
mod progress;
mod surroundings;
mod telling;
mod trouble;
mod unconfirmed;
mod watchdog;
