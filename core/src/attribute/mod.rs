//! The environment of a process, and the environments that live.
//!
//! There are three answers, by four rules. A process whose evidence is missing or contradicts itself is *unknown*: no
//! rule acts on it.
//!
//! Every user may write anything into the state. A record counts only where the kernel agrees: a *member* is a process
//! that the record lists and that runs as the environment's user.
//!
//! 1. *In E*, by a credible claim: the process's environ names E, E exists, and the process runs as E's user, or in a
//!    container (a user who may start containers is root anyway; the claim of a rootless container counts as a claim of
//!    its owner). The process is not older than E, since E may have the id of an ended environment.
//! 2. *In E*, by membership: it is a member of E; or its nearest member ancestor is one of E, it runs as E's user, and
//!    its own environ does not claim another environment.
//! 3. *Outside*: the process makes no claim, and none of its ancestors is a member; or its claim is refuted: there is
//!    no such environment, or it belongs to another user.
//! 4. *Unknown*: evidence that these rules need is missing, or contradicts other evidence:
//!    - Its nearest member ancestor runs as another user: sudo, su, setuid programs and spawners start such processes.
//!      Root's members are an exception: they are ancestors of all users' processes, and every user can list them in a
//!      record. A descendant of such a member is unknown only if it also claims that environment.
//!    - Its real and effective users differ.
//!    - It claims another user's environment, and the record of that environment lists it or an ancestor of it: another
//!      user may have changed that record.
//!    - Its claim is credible, but the process started before that environment was created, and neither the process nor
//!      its nearest member ancestor is a member there: the claim may name an ended environment with the same id.
//!    - It claims an environment of its user that was left out only because its Jupyter kernels were not found: the
//!      kernels may run elsewhere.
//!
//! Only freshly read and whole state shows that an environment does not exist: with state from an earlier read, or from
//! the copy of a damaged file, no process is *outside*.

mod attributor;
mod live;
pub mod reason;
mod unknown;

pub use attributor::{Attributor, environments_of};
pub(crate) use live::listed_members;
pub use live::{LiveEnvironment, live_environments};
pub use unknown::{changed_user, unknown_owner};

#[cfg(test)]
mod tests;
