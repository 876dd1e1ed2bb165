//! The real genv 1.4.3 and this project's `genv` on one state directory, as people who share a machine use them.

mod crowd;
mod editor;
mod lab;
mod sdk;
mod shells;
