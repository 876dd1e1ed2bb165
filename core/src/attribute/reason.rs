//! The words that [`Attribution`](crate::model::Attribution) gives as its reason.

/// Outside: its environ names no environment, and no ancestor is a member of one.
pub const NO_CLAIM: &str = "no_claim";
/// Outside: it claims an environment that does not exist.
pub const NO_SUCH_ENVIRONMENT: &str = "no_such_environment";
/// Outside: it claims an environment of another user.
pub const OTHER_USERS_ENVIRONMENT: &str = "other_users_environment";
/// Unknown: the process ended before it was read.
pub const VANISHED: &str = "vanished";
/// Unknown: it was not read in time, or the device listed it after the last read.
pub const NOT_READ: &str = "not_read";
/// Unknown: this program may not read the process (`hidepid`).
pub const UNREADABLE: &str = "unreadable";
/// Unknown: its environ may not be read.
pub const ENVIRON_UNREADABLE: &str = "environ_unreadable";
/// Unknown: its environ is empty.
pub const ENVIRON_EMPTY: &str = "environ_empty";
/// Unknown: its environ was overwritten, as setproctitle does.
pub const ENVIRON_OVERWRITTEN: &str = "environ_overwritten";
/// Unknown: it is a zombie, which has no environ.
pub const ZOMBIE: &str = "zombie";
/// Unknown: its user could not be read, so that its claim cannot be judged.
pub const USER_UNREADABLE: &str = "user_unreadable";
/// Unknown: its uid may be a subordinate uid of a user in a directory service.
pub const OWNER_UNKNOWN: &str = "owner_unknown";
/// Unknown: its real and effective users differ, as while a setuid program runs.
pub const USERS_DIFFER: &str = "users_differ";
/// Unknown: it descends from a member of an environment, and runs as another user (sudo, su, spawners).
pub const USER_CHANGED: &str = "user_changed";
/// Unknown: it claims another user's environment, which lists it, or an ancestor of it, as a member.
pub const MEMBERSHIP_CONTRADICTED: &str = "membership_contradicted";
/// Unknown: an ancestor ended while it was read, or may not be read.
pub const ANCESTOR_UNREADABLE: &str = "ancestor_unreadable";
/// Unknown: it claims an environment of its user that would live by Jupyter kernels, and no kernel was found. Only
/// programs of that user know for sure where the kernels register.
pub const KERNELS_NOT_FOUND: &str = "kernels_not_found";
/// Unknown, only to the enforcer: the record of its environment is disputed.
pub const RECORD_DISPUTED: &str = "record_disputed";
/// Unknown: the process claims an environment that is younger than the process. The claim may name an ended
/// environment with the same id.
pub const OLDER_THAN_ENVIRONMENT: &str = "older_than_environment";
/// Unknown: the state cannot be read now, so that no evidence shows the process to be outside.
pub const STATE_UNREADABLE: &str = "state_unreadable";
