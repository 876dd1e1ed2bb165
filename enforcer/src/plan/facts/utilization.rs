//! How busy processes keep GPUs, beside those of other users.

use super::{AttachmentFacts, Facts, HostId, UseFacts, UserId};

impl UseFacts {
    /// Utilization as a part of the time that processes of other users left of the GPU. Absent if it was not measured.
    pub(crate) fn of_what_is_left(&self) -> Option<f64> {
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
        if is_moved || host.hides_use_of(owner, gpu) || !host.knows_use(gpu) {
            return None;
        }
        let (mut own, mut others) = (0.0, None);
        for used in self.uses_on(attachment.environment, gpu) {
            own += used.utilization_ratio?;
            others = Some(used.others_ratio);
        }
        match others {
            Some(others) => of_what_is_left(own, others),
            // Who has no process uses nothing, whatever others do.
            None => Some(0.0),
        }
    }

    /// Fills in what processes of other users make of each GPU. Gets the positions of all uses by host and GPU.
    pub(super) fn compare_users(&mut self, mut positions: Vec<usize>) {
        let uses = &mut self.uses;
        let of_uses = uses.iter().map(|used| {
            let user = used.user.or(self.processes[used.process].unknown_owner);
            // All without a user are one.
            (used.host, used.gpu, user.unwrap_or(self.users.len()))
        });
        let of_uses: Vec<(HostId, u32, UserId)> = of_uses.collect();
        let user = |position: usize| of_uses[position].2;
        let place = |position: usize| (of_uses[position].0, of_uses[position].1);
        for on_gpu in positions.chunk_by_mut(|&a, &b| place(a) == place(b)) {
            on_gpu.sort_by_key(|&position| user(position));
            let on_gpu = &*on_gpu;
            let (host, gpu) = place(on_gpu[0]);
            let all = sum(uses, on_gpu).max(self.hosts[host].utilization_of(gpu));
            for of_user in on_gpu.chunk_by(|&a, &b| user(a) == user(b)) {
                if of_user.len() < on_gpu.len() {
                    let rest = (all - sum(uses, of_user)).max(0.0);
                    for &position in of_user {
                        uses[position].others_ratio = rest;
                    }
                }
            }
        }
    }
}

/// Utilization by uses at these positions, as far as it was measured.
fn sum(uses: &[UseFacts], positions: &[usize]) -> f64 {
    let ratios = positions.iter().map(|it| uses[*it].utilization_ratio);
    ratios.flatten().sum()
}
