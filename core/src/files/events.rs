//! Events of the kernel about watched files (inotify(7)). All files of a program share one queue and one thread.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode};
use notify::{Event, EventKind, INotifyWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// How long a file must be left alone after it was closed or removed. A script that appends line by line closes it after each one.
const QUIET: Duration = Duration::from_millis(50);

/// The entries of folders that decide which file a watched path leads to, and the events about these entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) wake: Arc<Notify>,
    paths: Mutex<BTreeSet<PathBuf>>,
    change: Mutex<Change>,
}

#[derive(Debug, Default)]
struct Change {
    /// Whether the file was written to, and not closed since.
    is_being_written: bool,
    /// When the file has settled, unless it is written to before.
    settles: Option<Instant>,
    has_settled: bool,
}

struct Watcher {
    queue: Mutex<INotifyWatcher>,
    all: Arc<Mutex<Vec<Weak<Entries>>>>,
}

static WATCHER: LazyLock<Option<Watcher>> = LazyLock::new(|| Watcher::start().inspect_err(warn).ok());

/// Watches the folders of these entries. A folder is never let go: a program watches few, and the kernel forgets those
/// that are removed.
pub(super) fn follow(entries: &Arc<Entries>, paths: BTreeSet<PathBuf>) {
    let Some(watcher) = &*WATCHER else {
        return;
    };
    let folders: BTreeSet<PathBuf> = paths.iter().filter_map(|it| it.parent()).map(Path::to_owned).collect();
    *lock(&entries.paths) = paths;
    let mut all = lock(&watcher.all);
    if !all.iter().any(|it| std::ptr::eq(it.as_ptr(), Arc::as_ptr(entries))) {
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(entries));
    }
    drop(all);
    for folder in folders {
        // A folder is named again even if it is watched: another one may have its name now.
        if let Err(error) = lock(&watcher.queue).watch(&folder, RecursiveMode::NonRecursive)
            && !matches!(error.kind, notify::ErrorKind::PathNotFound)
        {
            warn(&error);
        }
    }
}

impl Entries {
    pub(super) fn is_being_written(&self) -> bool {
        lock(&self.change).is_being_written
    }

    /// Whether the file has settled since the last call.
    pub(super) fn take_settled(&self) -> bool {
        std::mem::take(&mut lock(&self.change).has_settled)
    }

    fn note(&self, event: &Event) {
        let paths = lock(&self.paths);
        let Some(path) = event.paths.iter().find(|it| paths.contains(*it)) else {
            return;
        };
        let mut change = lock(&self.change);
        match event.kind {
            EventKind::Create(CreateKind::File) if is_new_file(path) => change.is_written(),
            EventKind::Modify(ModifyKind::Data(_)) => change.is_written(),
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                change.is_being_written = false;
                change.settles = Some(Instant::now() + QUIET);
            }
            // The content of a file that gets its name is complete, and so is a link.
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) | EventKind::Create(CreateKind::File) => {
                change.is_being_written = false;
                change.settles = Some(Instant::now());
            }
            EventKind::Modify(ModifyKind::Metadata(_)) if !change.is_being_written => {
                change.settles.get_or_insert_with(|| Instant::now() + QUIET);
            }
            // An editor may be about to write the file anew.
            EventKind::Modify(ModifyKind::Name(RenameMode::From)) | EventKind::Remove(_) => {
                *change = Change { settles: Some(Instant::now() + QUIET), ..Change::default() };
            }
            _ => {}
        }
    }

    /// Wakes the program if the file has settled by now; else returns when it will have.
    fn settle(&self) -> Option<Instant> {
        let mut change = lock(&self.change);
        let settles = change.settles?;
        if settles > Instant::now() {
            return Some(settles);
        }
        change.settles = None;
        change.has_settled = true;
        self.wake.notify_one();
        None
    }
}

impl Change {
    fn is_written(&mut self) {
        *self = Self { is_being_written: true, settles: None, has_settled: false };
    }
}

/// Whether this is a file that a program makes by opening it. A link, also a hard one, is complete at once.
fn is_new_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.nlink() == 1)
}

impl Watcher {
    fn start() -> notify::Result<Self> {
        let (sender, events) = channel();
        let queue = INotifyWatcher::new(sender, notify::Config::default())?;
        let all = Arc::new(Mutex::default());
        let followed = Arc::clone(&all);
        let thread = thread::Builder::new().name("file-events".to_owned());
        thread.spawn(move || note_events(&events, &followed)).map_err(notify::Error::io)?;
        Ok(Self { queue: Mutex::new(queue), all })
    }
}

fn note_events(events: &Receiver<notify::Result<Event>>, all: &Mutex<Vec<Weak<Entries>>>) {
    loop {
        let entries: Vec<Arc<Entries>> = lock(all).iter().filter_map(Weak::upgrade).collect();
        let next = entries.iter().filter_map(|it| it.settle()).min();
        drop(entries);
        let event = match next {
            Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let event = match event {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => {
                warn(&error);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for entries in lock(all).iter().filter_map(Weak::upgrade) {
            if event.need_rescan() {
                // Events were lost, perhaps that of a close. Looks find what they would have shown.
                *lock(&entries.change) = Change::default();
            }
            entries.note(&event);
        }
    }
}

/// Logs once that changes are found by looks alone.
fn warn(error: &notify::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            %error,
            "the kernel does not watch files for this program: their changes are noticed later, by looks. Raise \
             fs.inotify.max_user_instances and fs.inotify.max_user_watches (sysctl)"
        );
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
