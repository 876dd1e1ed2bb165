//! What the executor of the enforcer does as root: to other users' processes, under forced reuse of pids, on a full disk,
//! without its rights, and against a user who does all that he can.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

mod campaign;
mod delivery;
mod identity;
mod outlived;
mod pacing;
mod protected;
mod recycled;
mod roots_name;
mod rotated;
mod stage;
mod unread;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use genv_enforcer::config::BreakerLimits;
use genv_enforcer::execute::Policy;
use genv_enforcer::plan::Outcome;
use genv_tests::enforcer::{ends, is_alive, sleeper_of, terminate};
use genv_tests::patience::PATIENCE;
use genv_tests::root::{apart, own_mounts, require_root};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::{ALICE, ANYTHING, BOB};
use stage::{Stage, target};

#[track_caller]
fn refused(outcome: &Outcome, part: &str) {
    match outcome {
        Outcome::Refused { reason, .. } => assert!(reason.contains(part), "{reason}"),
        other => panic!("{other:?} is no refusal with '{part}'"),
    }
}

/// Gives the enforcer's directory a disk of its own, of 64 KiB; for a thread with [`own_mounts`].
fn own_small_disk(stage: &Stage) -> Result<()> {
    fs::create_dir(&stage.own)?;
    let options = c"mode=755,size=64k";
    mount("tmpfs", &stage.own, "tmpfs", MountFlags::empty(), options)?;
    Ok(())
}

#[test]
fn promise_06_root_outside_of_containers_and_kernel_threads_are_out_of_reach() -> Result<()> {
    require_root();
    let stage = Stage::new();
    let roots = sleeper_of(0, &ANYTHING)?;
    let mut out_of_reach = vec![roots.pid()];
    // In a container there are none to be seen.
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6));
        const KERNEL_THREAD: u32 = 0x0020_0000;
        if flags.is_some_and(|flags| flags.parse::<u32>().unwrap() & KERNEL_THREAD != 0) {
            out_of_reach.push(pid);
        }
    }
    let mut executor = stage.executor();
    for pid in out_of_reach {
        stage.uses_gpu(pid);
        // Kernel threads come and go.
        let Ok(target) = target(pid) else { continue };
        let outcome = executor.execute(&terminate(&target), "why");
        refused(&outcome, "it is root's, outside of containers");
    }
    assert!(is_alive(roots.pid()));
    let results = stage.results();
    assert!(!results.is_empty() && results.iter().all(|result| result == "refused"));
    Ok(())
}

#[test]
fn promise_12_no_room_for_the_record_no_signal() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let stage = Stage::new();
        own_small_disk(&stage)?;
        // The beginning of the next line fits the page, the rest needs another.
        fs::write(stage.own.join("audit.jsonl"), [b'\n'; 4000])?;
        let victim = sleeper_of(ALICE, &ANYTHING)?;
        let target = target(victim.pid())?;
        stage.uses_gpu(victim.pid());
        let mut executor = stage.executor();
        let fill = stage.own.join("fill");
        let full = fs::write(&fill, vec![0; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        for _ in 0..3 {
            let outcome = executor.execute(&terminate(&target), "why");
            refused(&outcome, "audit.jsonl: No space left on device");
        }
        assert!(is_alive(victim.pid()));
        assert_eq!(fs::metadata(stage.own.join("audit.jsonl"))?.len(), 4000);

        fs::remove_file(fill)?;
        // What other tests start has the files of this program open until it begins its own.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match mount_remount(&stage.own, MountFlags::RDONLY, "") {
                Err(Errno::BUSY) if Instant::now() < deadline => sleep(Duration::from_millis(10)),
                done => break done?,
            }
        }
        let outcome = executor.execute(&terminate(&target), "why");
        refused(&outcome, "Read-only file system");
        assert!(is_alive(victim.pid()));

        mount_remount(&stage.own, MountFlags::empty(), "")?;
        assert_eq!(executor.execute(&terminate(&target), "why"), Outcome::Done);
        ends(victim.pid())
    })
}

#[test]
fn without_the_right_to_read_everybody_is_unknown_and_left_alone() -> Result<()> {
    require_root();
    let victim = sleeper_of(ALICE, &ANYTHING)?;
    let stage = Stage::new();
    stage.uses_gpu(victim.pid());
    let step = terminate(&target(victim.pid())?);
    let outcome = apart(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::SYS_PTRACE;
        set_capabilities(None, sets).unwrap();
        stage.executor().execute(&step, "why")
    });
    let reason = "it cannot be read which program it runs".to_owned();
    let again = true;
    assert_eq!(outcome, Outcome::Refused { reason, again });
    assert!(is_alive(victim.pid()));
    // As soon as it may be read, it is known.
    assert_eq!(stage.executor().execute(&step, "why"), Outcome::Done);
    ends(victim.pid())
}

#[test]
fn promise_08_a_breaker_that_opened_on_a_full_disk_stays_open() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let stage = Stage::new();
        own_small_disk(&stage)?;
        let victim = sleeper_of(ALICE, &ANYTHING)?;
        let step = terminate(&target(victim.pid())?);
        stage.uses_gpu(victim.pid());
        let mut executor = stage.executor();
        let few =
            Policy { breaker: BreakerLimits { share_of_users: 0.5, ..BreakerLimits::default() }, ..stage::policy() };
        executor.follow(few);
        let fill = stage.own.join("fill");
        fs::write(&fill, vec![0; 1 << 20]).unwrap_err();
        let users = ["a", "b", "c"].map(str::to_owned).into();
        assert!(executor.begin_cycle(&users, &users).tripped.is_some());
        for _ in 0..2 {
            refused(&executor.execute(&step, "why"), "3 of 3 users");
        }
        fs::remove_file(fill)?;
        refused(&executor.execute(&step, "why"), "3 of 3 users");
        refused(&stage.executor().execute(&step, "why"), "3 of 3 users");
        assert!(is_alive(victim.pid()));
        Ok(())
    })
}

#[test]
fn root_leaves_files_to_the_owner_of_the_directory() -> Result<()> {
    use std::os::unix::fs::{MetadataExt as _, chown};
    require_root();
    let victim = sleeper_of(ALICE, &ANYTHING)?;
    let stage = Stage::new();
    stage.uses_gpu(victim.pid());
    fs::create_dir(&stage.own)?;
    fs::set_permissions(&stage.own, fs::Permissions::from_mode(0o755))?;
    chown(&stage.own, Some(BOB), Some(BOB))?;
    let step = terminate(&target(victim.pid())?);
    assert_eq!(stage.executor().execute(&step, "why"), Outcome::Done);
    for name in ["audit.jsonl", "breaker.json", "execute.lock"] {
        let file = fs::metadata(stage.own.join(name))?;
        assert_eq!((file.uid(), file.gid()), (BOB, BOB), "{name}");
    }
    Ok(())
}
