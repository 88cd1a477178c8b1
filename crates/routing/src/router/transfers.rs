//! Loads and pulls of requests' blocks: planned with each decision, and measured at the end of each request.

use crate::candidates::{Candidates, PromptWay};
use crate::depths::Depths;
use crate::request::Request;
use crate::router::config::Config;
use crate::router::fleet::Fleet;
use crate::router::outcome::{PullSource, Transfer, TransferAction, WorkerId};
use crate::router::{Reservation, Router};
use crate::transfers::{Guards, Kind, Line, Priors, Transfers};

/// Measured cost of one kind of transfer (load or pull of blocks) to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferCost {
    /// Kind of the transfer, by the source of the blocks: "host" for the worker's own host memory; "far" for its disks
    /// and pools; "pull" for another worker.
    pub kind: &'static str,
    /// Worker and rank that load or pull the blocks.
    pub worker: WorkerId,
    /// Worker and rank from which the blocks are pulled; None for loads.
    pub source: Option<WorkerId>,
    /// Duration of the transfer in seconds, as a linear function of the number of tokens.
    pub line: Line,
    /// Number of measured transfers; with few of them, the cost of the whole fleet is used.
    pub samples: usize,
    /// Seconds for which pulls of blocks between the two workers remain suspended; 0 if they are not suspended.
    pub out: f64,
}

/// Creates the costs of transfers (loads and pulls of blocks) and the limits on pulls from a router's settings.
pub(super) fn of(config: &Config) -> Transfers {
    let lines = [
        Line { floor: config.host_floor, token: config.host_token },
        Line { floor: config.far_floor, token: config.far_token },
        Line { floor: config.pull_floor, token: config.pull_token },
    ];
    let guards = Guards { heard_within: config.source_heard, out: config.pair_out, most_sources: config.pull_sources };
    Transfers::new(Priors { lines, first: config.pull_setup }, guards)
}

impl Fleet {
    /// Converts the way in which a candidate gets the prompt's blocks (by loading, pulling, computing) into the plan of
    /// a decision.
    pub(super) fn transfer(
        &self,
        way: &PromptWay,
        request: &Request<'_>,
        candidates: &Candidates,
        row: usize,
    ) -> Transfer {
        let size = request.block_size;
        let pull = way.source.map(|worker| {
            let slot = &self.slots[worker as usize];
            PullSource {
                worker: WorkerId(worker),
                name: slot.name.clone(),
                rank: slot.rank,
                tokens: way.pulled() * size,
            }
        });
        let action = match &pull {
            Some(_) => TransferAction::Pull,
            None if way.loaded > way.device => TransferAction::Load,
            None => TransferAction::Compute,
        };
        // Engines count the tokens to load from the end of their device's part.
        let device = candidates.device_blocks[row].min(way.loaded);
        Transfer {
            action,
            load_tokens: (way.loaded - way.device) * size,
            pull,
            max_load_tokens: way
                .is_limited
                .then(|| if way.loaded > way.device { way.loaded - device } else { 0 } * size),
            seconds: way.seconds,
        }
    }
}

impl Router {
    /// Computes and stores the best way in which the candidate `row` gets the prompt's blocks, or each candidate if
    /// `row` is None. Does nothing if the policy does not consider transfers.
    #[inline]
    pub(super) fn note_ways(&mut self, request: &Request<'_>, depths: &Depths, row: Option<usize>, now: f64) {
        if self.policy.weighs_transfers() && depths.has_transfers() {
            let Self { fleet, transfers, who, .. } = self;
            let who = (!who.is_empty()).then_some(&who[..]);
            if let Some(ways) = fleet.ways(transfers, request, depths, now) {
                fleet.note_ways(&ways, who, row);
            }
        }
    }

    /// Puts a worker into a group: the worker can be instructed which blocks to load, and workers of one group can pull
    /// from each other. None removes it from its group.
    pub fn set_pulls(&mut self, worker: WorkerId, group: Option<&str>, now: f64) {
        let now = self.at(now);
        if self.fleet.slot(worker).is_none() {
            return;
        }
        let number = group.map_or(0, |group| {
            let at = self.groups.iter().position(|name| **name == *group).unwrap_or_else(|| {
                self.groups.push(group.into());
                self.groups.len() - 1
            });
            at as u32 + 1
        });
        self.transfers.set_group(worker.0, number, now);
    }

    /// Records a sign of life of a worker at the time `at`: others pull only from workers with a recent one. First
    /// tokens, further tokens, ends of requests and load reports are recorded automatically.
    pub fn heard(&mut self, worker: WorkerId, at: f64) {
        self.transfers.heard(worker.0, at);
    }

    /// Records a failed pull that did not belong to a placed request: pulls between the two workers are suspended for a
    /// while. If the pull was late, the source is excluded from all pulls, and so is the consumer.
    pub fn pull_failed(&mut self, worker: WorkerId, source: WorkerId, is_late: bool, now: f64) {
        let now = self.at(now);
        if is_late {
            self.transfers.is_late(worker.0, source.0, now);
        } else {
            self.transfers.retire(worker.0, source.0, now);
        }
    }

    /// Measured costs of transfers, for each worker and each pair of workers with samples.
    pub fn transfer_costs(&mut self, now: f64) -> Vec<TransferCost> {
        let now = self.at(now);
        let shown = self.transfers.shown(now).into_iter();
        let costs = shown.map(|it| TransferCost {
            kind: it.kind.as_str(),
            worker: WorkerId(it.worker),
            source: it.source.map(WorkerId),
            line: it.line,
            samples: it.samples,
            out: it.out,
        });
        costs.collect()
    }

    pub(super) fn note_sent_transfer(&mut self, its: &Reservation, request: u64, now: f64) {
        let Some(moved) = &its.moved else { return };
        if let Some(source) = moved.source {
            self.counts.pulls += 1;
            self.transfers.sent(request, its.worker, source, moved.part(Kind::Pull).tokens, moved.due(now), now);
        }
    }

    /// Updates the costs with the transfer (load or pull of blocks) of a request that succeeded. `cached`: number of
    /// prompt tokens that were in the worker's cache, if its engine reported it.
    pub(super) fn note_transfer(&mut self, its: &Reservation, cached: Option<u32>) {
        self.transfers.heard(its.worker, self.now);
        let Some(moved) = &its.moved else { return };
        let waited = its.first_token.map(|first| first - its.sent);
        if let Some(result) = moved.end(waited, cached, &mut self.transfers, self.now) {
            self.counts.pulled[result as usize] += 1;
        }
    }

    /// Removes a request that failed from the router's data, and counts the result of its pull of blocks, if it had
    /// one.
    pub(super) fn give_up(&mut self, number: u64, now: f64) {
        let result = self.release(number, now).and_then(|its| its.moved?.failed());
        if let Some(result) = result {
            self.counts.pulled[result as usize] += 1;
        }
    }

    /// Suspends pulls of blocks between two workers whose current pull is late.
    pub(super) fn look_at_late_pulls(&mut self, now: f64) {
        while let Some(number) = self.transfers.late(now) {
            if let Some(its) = self.placed.get_mut(&number)
                && its.first_token.is_none()
                && let Some(moved) = &mut its.moved
            {
                moved.is_late(&mut self.transfers, now);
            }
        }
    }
}
