//! How busy processes keep GPUs, beside those of other users.

use super::{AttachmentFacts, Facts, UseFacts, UserId};

impl UseFacts {
    /// Utilization as a part of the time that processes of other users left of the GPU. Absent if it was not measured.
    pub(in crate::plan) fn of_what_is_left(&self) -> Option<f64> {
        of_what_is_left(self.utilization_ratio?, self.others_ratio)
    }
}

/// `own` utilization as a part of the time that processes of other users leave of a GPU, so that a crowd makes none of
/// them idle. Absent where the others leave no time at all, and nothing shows what `own` would be.
fn of_what_is_left(own: f64, others: f64) -> Option<f64> {
    /// Drivers tell whole percents.
    const RESOLUTION: f64 = 0.01;
    let left = 1.0 - others;
    if own >= left && own > 0.0 {
        return Some(1.0);
    }
    (left >= RESOLUTION).then(|| own / left)
}

impl Facts<'_> {
    /// How busy the processes of an environment keep an attached GPU.
    pub(super) fn utilization(&self, attachment: &AttachmentFacts) -> Option<f64> {
        let host = &self.hosts[attachment.host];
        let gpu = attachment.gpu;
        let owner = self.users[attachment.user].name;
        let is_moved = self.environments[attachment.environment].moved;
        if is_moved || host.hides_use_of(owner, gpu) || !host.measures_processes(gpu) {
            return None;
        }
        let (mut own, mut others) = (0.0, None);
        for used in self.uses_of(attachment.environment) {
            if used.gpu == gpu {
                own += used.utilization_ratio?;
                others = Some(used.others_ratio);
            }
        }
        match others {
            Some(others) => of_what_is_left(own, others),
            // Who has no process uses nothing, whatever others do.
            None => Some(0.0),
        }
    }

    /// Fills in what processes of other users make of each GPU.
    pub(super) fn compare_users(&mut self) {
        for host in &self.hosts {
            let processes = &self.processes[host.processes.clone()];
            let first = processes.first().map_or(0, |process| process.uses.start);
            let end = processes.last().map_or(0, |process| process.uses.end);
            let user = |used: &UseFacts| {
                let process = &self.processes[used.process];
                process.user.or(process.unknown_owner)
            };
            let uses = &mut self.uses[first..end];
            let mut positions: Vec<(u32, Option<UserId>, usize)> = uses
                .iter()
                .enumerate()
                .map(|(position, used)| (used.gpu, user(used), position))
                .collect();
            positions.sort_unstable();
            for on_gpu in positions.chunk_by(|a, b| a.0 == b.0) {
                let all = sum(uses, on_gpu).max(host.utilization_of(on_gpu[0].0));
                for of_user in on_gpu.chunk_by(|a, b| a.1 == b.1) {
                    if of_user.len() < on_gpu.len() {
                        let rest = (all - sum(uses, of_user)).max(0.0);
                        let of_user = of_user.iter().map(|(_, _, position)| *position);
                        of_user.for_each(|position| uses[position].others_ratio = rest);
                    }
                }
            }
        }
    }
}

/// Utilization by uses at these positions, as far as it was measured.
fn sum(uses: &[UseFacts], positions: &[(u32, Option<UserId>, usize)]) -> f64 {
    let ratios = positions.iter();
    let ratios = ratios.map(|(_, _, position)| uses[*position].utilization_ratio);
    ratios.flatten().sum()
}
