//! The shims in front of the real nvidia-smi of three driver generations, of real clients of Docker and Podman, and of programs that
//! tell what they were called with.

mod arguments;
mod docker;
mod output;
mod program;
mod stage;
mod supervision;
mod users;
