//! The commands that change an environment, as people and scripts call them.

mod admitted;
mod bad_input;
mod choice;
mod crowd;
mod damaged;
mod detached;
mod devices;
mod hindered;
mod import;
mod jobs;
mod leases;
mod members;
mod project_file;
mod queue;
mod running;
mod story;
mod unclear;
