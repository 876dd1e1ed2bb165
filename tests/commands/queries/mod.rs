//! What `genv` tells of environments and devices, to programs and to people, and the programs it hands over to.

mod extensions;
mod handover;
mod lab;
mod manual;
mod overview;
mod people;
mod programs;
mod snapshot;
mod top;
mod trouble;
