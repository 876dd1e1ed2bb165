//! The commands of genv and the shims, as people, shells and programs call them.

mod life_cycle;
mod queries;
mod remote_conversation;
mod remote_fallback;
mod remote_serve;
mod shells;
mod shims;
