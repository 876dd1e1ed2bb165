//! genv-enforcer as a whole: real processes, real signals, real terminals.

mod acting;
mod administration;
mod killed;
mod surroundings;
mod telling;
mod trouble;

/// One device that these processes use.
fn used_by(pids: &[u32]) -> String {
    let uses: Vec<_> = pids
        .iter()
        .map(|pid| format!("{{pid: {pid}, devices: [{{index: 0, memory: 1gi}}]}}"))
        .collect();
    format!(
        "version: 1\nhosts:\n- devices: [{{}}, {{}}]\n  processes: [{}]\n",
        uses.join(", ")
    )
}

/// One rule that ends processes outside of environments, with this said of when.
fn outside(mode: &str, when: &str) -> String {
    format!(
        "version: 1\nmode: {mode}\nbreaker: {{share_of_users: 1}}\n\
         rules:\n- {{kind: non-env-processes, action: terminate, {when}}}\n"
    )
}
