//! The commands that change an environment, as people and scripts call them.

mod bad_input;
mod devices;
mod queue;
mod members;
mod running;
mod story;
