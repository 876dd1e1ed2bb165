//! The shipped compose files, and the commands of pages about Docker, on a real Docker engine.

mod documented;
mod stack;
