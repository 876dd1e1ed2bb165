//! Whether Jupyter kernels live: a kernel has a file in Jupyter's runtime folder while it runs.

use std::collections::{HashMap, HashSet};
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::Errno;
use uzers::os::unix::UserExt;

use super::EnvironmentState;
use crate::model::now_seconds;
use crate::proc::read_in_time;

/// How long the folders of kernels are waited for: a home directory on the network, or the name service, may hang.
const PATIENCE: Duration = Duration::from_millis(200);

/// Where Jupyter keeps the files of a user's running kernels, if that is known.
type RuntimeFolder = dyn FnMut(u32) -> Option<PathBuf> + Send;

/// How long a kernel takes to start, before it has a file.
const START: Duration = Duration::from_secs(60);

/// A kernel: its user, and its id.
type Kernel = (u32, String);

/// A kernel to be looked for, and whether it may still be starting.
type Question = (Kernel, bool);

/// Kernels that ended.
pub(super) type EndedKernels = HashSet<Kernel>;

/// Looks for kernels, on a thread of its own: a user whose home directory hangs holds up no caller.
pub(super) struct Kernels {
    /// Absent when the thread has it.
    runtime_folder: Option<Box<RuntimeFolder>>,
    thread: Option<Looking>,
    /// Whether one that was never there has ended when its start has taken long enough.
    limits_starts: bool,
}

struct Looking {
    questions: Sender<Vec<Question>>,
    answers: Receiver<EndedKernels>,
    /// Whether an answer is out that came too late for who asked.
    late: bool,
}

impl Default for Kernels {
    fn default() -> Self {
        Self::new(runtime_folder)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernels")
    }
}

impl Kernels {
    pub(super) fn new(runtime_folder: impl FnMut(u32) -> Option<PathBuf> + Send + 'static) -> Self {
        Self { runtime_folder: Some(Box::new(runtime_folder)), thread: None, limits_starts: false }
    }

    /// Takes one that was never there to have ended when its start has taken long enough: for who changes the state. Who
    /// only looks waits for that change.
    pub(super) fn limiting_starts(mut self) -> Self {
        self.limits_starts = true;
        self
    }

    /// Which kernels of these environments have ended. One whose folder cannot be read, or not in time, is taken to live.
    pub(super) fn ended(&mut self, environments: &[EnvironmentState]) -> EndedKernels {
        let now_seconds = now_seconds();
        let limits_starts = self.limits_starts;
        let of = |it: &EnvironmentState| {
            let uid = it.uid;
            let created = it.created_timestamp_seconds;
            let age = |created: f64| (now_seconds - created).abs();
            let starts = !limits_starts || created.is_some_and(|created| age(created) < START.as_secs_f64());
            let ids = it.kernel_ids.clone().into_iter();
            ids.map(move |id| ((uid, id), starts))
        };
        let kernels: Vec<Question> = environments.iter().flat_map(of).collect();
        if kernels.is_empty() {
            return EndedKernels::new();
        }
        if let Some(folder) = self.runtime_folder.take() {
            self.thread = Looking::start(folder);
        }
        let thread = self.thread.as_mut();
        thread.and_then(|it| it.ask(kernels)).unwrap_or_default()
    }
}

impl Looking {
    fn start(mut folder: Box<RuntimeFolder>) -> Option<Self> {
        let (questions, asked) = channel();
        let (answered, answers) = channel();
        let thread = thread::Builder::new().name("kernels".to_owned());
        let started = thread.spawn(move || {
            for kernels in asked {
                if answered.send(look(&mut *folder, kernels)).is_err() {
                    return;
                }
            }
        });
        started.ok().map(|_| Self { questions, answers, late: false })
    }

    /// Waits once: while an answer is out nothing more is asked, and nothing queues up.
    fn ask(&mut self, kernels: Vec<Question>) -> Option<EndedKernels> {
        if self.late && matches!(self.answers.try_recv(), Err(TryRecvError::Empty)) {
            return None;
        }
        self.questions.send(kernels).ok()?;
        let answer = self.answers.recv_timeout(PATIENCE).ok();
        self.late = answer.is_none();
        answer
    }
}

fn look(runtime_folder: &mut RuntimeFolder, kernels: Vec<Question>) -> EndedKernels {
    let mut folders: HashMap<u32, Option<PathBuf>> = HashMap::new();
    let mut ended = EndedKernels::new();
    for ((uid, id), starts) in kernels {
        let folder = folders.entry(uid).or_insert_with(|| runtime_folder(uid));
        let has_ended = match folder.as_deref() {
            Some(folder) => has_ended(folder, uid, &id, starts),
            // The folder of a user without an account is not known.
            None => !starts,
        };
        if has_ended {
            ended.insert((uid, id));
        }
    }
    if !ended.is_empty() {
        keep_running(&mut ended);
    }
    ended
}

/// Removes running kernels. The command line of a kernel names its file, wherever the file is. The file may be
/// elsewhere by the user's variables, and the variables of another shell do not show where.
fn keep_running(ended: &mut EndedKernels) {
    let Ok(processes) = fs::read_dir("/proc") else {
        return ended.clear();
    };
    // With hidepid=2, `/proc` shows this user's processes alone.
    let shows_all = fs::metadata("/proc/1").is_ok();
    let own = rustix::process::geteuid().as_raw();
    ended.retain(|(uid, _)| shows_all || *uid == own);
    let users: HashSet<u32> = ended.iter().map(|(uid, _)| *uid).collect();
    let mut owners: HashMap<u32, u32> = HashMap::new();
    for process in processes.flatten() {
        let pid = process.file_name().to_str().and_then(|it| it.parse().ok());
        let owner = process.metadata().map(|it| it.uid()).ok();
        let owner = owner.filter(|uid| users.contains(uid));
        owners.extend(pid.zip(owner));
    }
    let pids = owners.keys().copied().collect();
    let mut lines = read_in_time(pids, |pid, _| fs::read(format!("/proc/{pid}/cmdline")));
    let mut unclear: HashSet<u32> = HashSet::new();
    for (pid, uid) in owners {
        match lines.remove(&pid) {
            Some(Ok(line)) => {
                for id in line.split(|byte| *byte == 0).filter_map(named_kernel) {
                    ended.remove(&(uid, id));
                }
            }
            // The process ended meanwhile.
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {}
            Some(Err(error)) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            Some(Err(_)) | None => _ = unclear.insert(uid),
        }
    }
    ended.retain(|(uid, _)| !unclear.contains(uid));
}

/// The kernel whose file a word of a command line names.
fn named_kernel(word: &[u8]) -> Option<String> {
    let name = Path::new(OsStr::from_bytes(word)).file_name()?.to_str()?;
    let id = name.strip_prefix("kernel-")?.strip_suffix(".json")?;
    Some(id.to_owned())
}

fn has_ended(folder: &Path, uid: u32, id: &str, starts: bool) -> bool {
    // Jupyter's ids are UUIDs: what leads elsewhere is the name of no file of a kernel.
    if id.is_empty() || id.contains(['/', '\0']) {
        return true;
    }
    let file = folder.join(format!("kernel-{id}.json"));
    match statat(CWD, file, AtFlags::empty()) {
        Err(Errno::NAMETOOLONG) => true,
        Err(Errno::NOENT) => {
            match statat(CWD, folder, AtFlags::empty()) {
                Ok(_) => true,
                // The first kernel of a user makes the folder.
                Err(Errno::NOENT) => !starts && is_certain(folder, uid),
                Err(_) => false,
            }
        }
        Ok(_) | Err(_) => false,
    }
}

/// Whether a folder that is not found is not there: what should have it is the user's own. It may be hidden from this
/// program otherwise, as home directories are from services.
fn is_certain(folder: &Path, uid: u32) -> bool {
    let found = folder.ancestors().skip(1).find_map(|it| match statat(CWD, it, AtFlags::empty()) {
        Err(Errno::NOENT) => None,
        found => Some(found.map(|found| found.st_uid)),
    });
    found == Some(Ok(uid))
}

/// Jupyter's rule for Linux (`jupyter --runtime-dir`). What a user's variables say is known only to the user's own
/// programs.
fn runtime_folder(uid: u32) -> Option<PathBuf> {
    let variable = |name: &str| {
        let value = env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let home = if uid == uzers::get_effective_uid() {
        if let Some(folder) = variable("JUPYTER_RUNTIME_DIR") {
            return Some(folder);
        }
        if let Some(data) = variable("JUPYTER_DATA_DIR") {
            return Some(data.join("runtime"));
        }
        if let Some(data) = variable("XDG_DATA_HOME") {
            return Some(data.join("jupyter/runtime"));
        }
        variable("HOME")
    } else {
        None
    };
    let home = home.or_else(|| Some(uzers::get_user_by_uid(uid)?.home_dir().to_owned()))?;
    Some(home.join(".local/share/jupyter/runtime"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::patience::until;

    /// Asks until kernels have ended. On a busy machine the thread may not answer in time, and all are taken to live.
    fn until_ended(kernels: &mut Kernels, environments: &[EnvironmentState]) -> EndedKernels {
        let mut ended = EndedKernels::new();
        until(|| {
            ended = kernels.ended(environments);
            !ended.is_empty()
        });
        ended
    }

    fn environment(uid: u32, kernels: &[&str]) -> EnvironmentState {
        EnvironmentState {
            eid: "7".to_owned(),
            uid,
            kernel_ids: kernels.iter().map(|id| (*id).to_owned()).collect(),
            ..EnvironmentState::default()
        }
    }

    #[test]
    fn a_kernel_that_never_was_lives_for_as_long_as_its_start_takes() {
        const NO_ACCOUNT: u32 = 3_999_999_999;
        let uid = rustix::process::geteuid().as_raw();
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".local/share/jupyter/runtime");
        let ended = |age_seconds: Option<u64>, of: u32| {
            let created = age_seconds.map(|age| now_seconds() - age as f64);
            let environment = EnvironmentState { created_timestamp_seconds: created, ..environment(of, &["a"]) };
            let folder = folder.clone();
            let mut kernels = Kernels::new(move |uid| (uid != NO_ACCOUNT).then(|| folder.clone())).limiting_starts();
            !kernels.ended(&[environment]).is_empty()
        };
        for user in [uid, NO_ACCOUNT] {
            until(|| ended(Some(120), user));
            until(|| ended(None, user));
            assert!(!ended(Some(0), user));
        }
        // Of another user what is not seen may be there.
        assert!(!ended(Some(120), uid + 1));
    }

    #[test]
    fn a_kernel_lives_while_its_file_is_there_and_who_cannot_be_seen_lives() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_owned();
        fs::write(folder.join("kernel-a.json"), "").unwrap();
        symlink("/nonexistent/loop", folder.join("kernel-dangling.json")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        let mut kernels = Kernels::new(move |uid| match uid {
            1 => Some(folder.clone()),
            2 => Some(folder.join("loop")),
            3 => Some(folder.join("missing")),
            _ => None,
        });
        let long = "x".repeat(300);
        let ids = ["a", "b", "dangling", "../x", "", long.as_str()];
        let environments = [1, 2, 3, 4].map(|uid| environment(uid, &ids));
        let ended = until_ended(&mut kernels, &environments);
        let of = |uid: u32| {
            let mut ids: Vec<&str> = ended.iter().filter(|(user, _)| *user == uid).map(|(_, id)| id.as_str()).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(of(1), ["", "../x", "b", "dangling", &long]);
        // Nothing is known there, so that only what is no id has ended.
        assert_eq!(of(2), ["", "../x"]);
        assert_eq!(of(3), ["", "../x"]);
        assert_eq!(of(4), Vec::<&str>::new());
    }

    #[test]
    fn a_kernel_that_a_process_of_its_user_names_runs_wherever_its_file_is() {
        let uid = rustix::process::geteuid().as_raw();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut kernels = Kernels::new(move |_| Some(path.clone())).limiting_starts();
        let id = format!("named-{}", std::process::id());
        let of = |uid: u32| environment(uid, &[&id]);
        until_ended(&mut kernels, &[of(uid)]);
        let file = format!("/elsewhere/kernel-{id}.json");
        let mut kernel = std::process::Command::new("sh");
        kernel.args(["-c", "read line", "-f", &file]);
        let mut kernel = kernel.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // Spawn returns a moment before the kernel shows the new command line.
        let command_line = format!("/proc/{}/cmdline", kernel.id());
        while !fs::read_to_string(&command_line).unwrap().contains(&file) {
            thread::yield_now();
        }
        assert_eq!(kernels.ended(&[of(uid)]), EndedKernels::new());
        // A command line of another user's process proves nothing.
        until_ended(&mut kernels, &[of(uid + 1)]);
        drop(kernel.stdin.take());
        kernel.wait().unwrap();
        until_ended(&mut kernels, &[of(uid)]);
    }

    #[test]
    fn another_users_folder_is_below_the_home_directory() {
        let other = if uzers::get_effective_uid() == 0 { 1 } else { 0 };
        let home = uzers::get_user_by_uid(other).unwrap().home_dir().to_owned();
        let expected = home.join(".local/share/jupyter/runtime");
        assert_eq!(runtime_folder(other), Some(expected));
        assert_eq!(runtime_folder(3_999_999_999), None);
    }
    #[test]
    fn a_folder_that_hangs_holds_up_nobody_twice_and_its_kernels_live() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_owned();
        let (asked, questions) = channel();
        let (answer, answers) = channel::<()>();
        let mut kernels = Kernels::new(move |uid| {
            asked.send(uid).unwrap();
            answers.recv().unwrap();
            Some(folder.clone())
        });
        let environments = [environment(1, &["a"])];
        for _ in 0..1_000 {
            assert_eq!(kernels.ended(&environments), EndedKernels::new());
        }
        assert_eq!(questions.try_iter().count(), 1);
        answer.send(()).unwrap();
        // What came late is asked anew.
        answer.send(()).unwrap();
        until(|| !kernels.ended(&environments).is_empty());
    }
}
