//! Fleet of a router: one row of the table [`Candidates`] for each worker's rank, updated with each event.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::View;

use crate::candidates::Candidates;
use crate::depths::{Depth, Depths};
use crate::request::Request;
use crate::router::Lookup;
use crate::router::belief::{Belief, Beliefs};
use crate::router::config::Config;
use crate::router::outcome::{Load, WorkerId};
use crate::router::request_changes::{ComputeTime, ExpectedBlocks, Share};
use crate::router::waiting::Aim;
use crate::speed::{FleetSpeed, Speed};
use crate::transfers::{Transfers, Ways};

/// Number of new samples of the fleet's speed after which the speeds of all workers are updated.
const REFRESH: u32 = 16;
/// Seconds beyond its expected prefill after which a prompt at the head of a queue counts as late. Prompts computed in
/// one step may have their first tokens in any order.
const LATE: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// State of a worker that receives no new requests and finishes those it has.
    Drained,
    /// State after a worker has left, when its number is free.
    Gone,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    pub(super) rank: u32,
    pub(super) state: State,
    joined: f64,
    /// True if the worker joined the fleet when other workers were busy, and for a while gets fewer requests than its
    /// share.
    pub(super) late: bool,
    /// Number of requests that had been placed in the fleet when this worker joined.
    pub(super) joined_at: u64,
    /// Prompts without a first token, sorted by the time at which their loads and pulls end, then by the time of
    /// sending.
    queue: VecDeque<QueuedPrompt>,
    speed: Speed,
}

/// Prompt that was sent to a worker and has no first token yet.
#[derive(Debug, Clone, Copy)]
struct QueuedPrompt {
    request: u64,
    uncached: f64,
    /// Time at which the loads and pulls of the prompt should be done, in seconds; the prompt cannot be computed
    /// before.
    ready: f64,
    /// True if any blocks of the prompt are loaded or pulled.
    moves: bool,
}

impl Slot {
    /// Seconds since the worker joined the fleet.
    pub(super) fn age(&self, now: f64) -> f64 {
        now - self.joined
    }
}

#[derive(Debug)]
pub(super) struct Fleet {
    /// Table of all workers, one row for each worker's rank.
    rows: Candidates,
    /// Time at which each worker joined, in seconds, by the worker's number. `reported`: time of its engine's last
    /// report; `head_since`: time at which the prompt at the head of its queue became the first (`inf` if the queue is
    /// empty). These lists are separate from the other data, as they are read for every request.
    joined: Vec<f64>,
    reported: Vec<f64>,
    head_since: Vec<f64>,
    pub(super) slots: Vec<Slot>,
    by_name: HashMap<Arc<str>, Vec<(u32, u32)>>,
    free: Vec<u32>,
    speed: FleetSpeed,
    /// Table of the workers that may take the current request, if these are not all workers.
    chosen: Candidates,
    pub(super) beliefs: Beliefs,
    pub(super) up: usize,
}

impl Fleet {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            rows: Candidates::default(),
            joined: Vec::new(),
            reported: Vec::new(),
            head_since: Vec::new(),
            slots: Vec::new(),
            by_name: HashMap::new(),
            free: Vec::new(),
            speed: FleetSpeed::new(config.prefill_rate, config.step_time),
            chosen: Candidates::default(),
            beliefs: Beliefs::default(),
            up: 0,
        }
    }

    pub(super) fn add(&mut self, name: &str, rank: u32, weight: f64, now: f64, late: bool, joined_at: u64) -> WorkerId {
        if let Some(id) = self.find(name, rank) {
            self.set_state(id, State::Up);
            self.rows.weight[id.0 as usize] = weight;
            return id;
        }
        let name = self.by_name.get_key_value(name).map_or_else(|| Arc::from(name), |(name, _)| name.clone());
        let slot = Slot {
            name: name.clone(),
            rank,
            state: State::Up,
            joined: now,
            late,
            joined_at,
            queue: VecDeque::new(),
            speed: Speed::new(&self.speed),
        };
        let at = if let Some(at) = self.free.pop() {
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            self.rows.push();
            self.joined.push(now);
            self.reported.push(f64::NAN);
            self.head_since.push(f64::INFINITY);
            (self.slots.len() - 1) as u32
        };
        self.by_name.entry(name).or_default().push((rank, at));
        self.rows.reset(at as usize, at, weight);
        self.joined[at as usize] = now;
        self.reported[at as usize] = f64::NAN;
        self.head_since[at as usize] = f64::INFINITY;
        self.publish_speed(at as usize);
        self.beliefs.set(WorkerId(at), Belief::default());
        self.up += 1;
        WorkerId(at)
    }

    pub(super) fn find(&self, name: &str, rank: u32) -> Option<WorkerId> {
        let ranks = self.by_name.get(name)?;
        ranks.iter().find(|(its, _)| *its == rank).map(|&(_, at)| WorkerId(at))
    }

    pub(super) fn ranks(&self, name: &str) -> impl Iterator<Item = WorkerId> {
        self.by_name.get(name).into_iter().flatten().map(|&(_, at)| WorkerId(at))
    }

    /// Data of a worker's rank; None if it has left.
    pub(super) fn slot(&self, id: WorkerId) -> Option<&Slot> {
        self.slots.get(id.0 as usize).filter(|slot| slot.state != State::Gone)
    }

    pub(super) fn remove(&mut self, id: WorkerId) {
        let at = id.0 as usize;
        if self.slot(id).is_none() {
            return;
        }
        self.set_state(id, State::Gone);
        let slot = &mut self.slots[at];
        slot.queue.clear();
        let name = std::mem::replace(&mut slot.name, Arc::from(""));
        if let Some(ranks) = self.by_name.get_mut(&name) {
            ranks.retain(|(_, slot)| *slot != id.0);
            if ranks.is_empty() {
                self.by_name.remove(&name);
            }
        }
        self.free.push(id.0);
    }

    pub(super) fn set_state(&mut self, id: WorkerId, state: State) {
        let slot = &mut self.slots[id.0 as usize];
        self.up -= usize::from(slot.state == State::Up);
        slot.state = state;
        self.up += usize::from(slot.state == State::Up);
    }

    pub(super) fn set_trusted(&mut self, id: WorkerId, trusted: bool) {
        self.rows.trusted[id.0 as usize] = trusted;
    }

    pub(super) fn set_weight(&mut self, id: WorkerId, weight: f64) {
        self.rows.weight[id.0 as usize] = weight;
    }

    pub(super) fn report(&mut self, id: WorkerId, load: &Load, now: f64) {
        let at = id.0 as usize;
        let rows = &mut self.rows;
        if load.waiting.is_some() || load.running.is_some() || load.kv_usage.is_some() {
            rows.reported_waiting[at] = load.waiting.unwrap_or(f64::NAN);
            rows.reported_running[at] = load.running.unwrap_or(f64::NAN);
            rows.reported_kv_usage[at] = load.kv_usage.unwrap_or(f64::NAN);
            self.reported[at] = now;
        }
        let set = |column: &mut f64, value: Option<f64>| *column = value.unwrap_or(*column);
        // An engine that has not allocated its cache yet reports 0: its room is unknown.
        set(&mut rows.capacity_blocks[at], load.capacity_blocks.filter(|blocks| *blocks > 0.0 && blocks.is_finite()));
        set(&mut rows.held_blocks[at], load.held_blocks.filter(|blocks| *blocks >= 0.0 && blocks.is_finite()));
    }

    // What requests do to a row.

    /// Adds a request to the counts of its worker before its prompt is computed. `share`: load that the request adds.
    pub(super) fn begin(&mut self, at: u32, share: &Share) {
        let (at, rows) = (at as usize, &mut self.rows);
        rows.requests[at] += 1;
        rows.waiting[at] += 1;
        rows.queued_tokens[at] += share.uncached;
        rows.queued_prompt_tokens[at] += share.tokens;
        rows.context_tokens[at] += share.tokens;
        rows.output_tokens_left[at] += share.output_left;
    }

    /// Updates the counts of a worker when a prompt of a request there has been computed. `share`: load that the
    /// request adds.
    pub(super) fn prompt_computed(&mut self, at: u32, share: &Share) {
        let (at, rows) = (at as usize, &mut self.rows);
        rows.waiting[at] -= 1;
        rows.queued_tokens[at] -= share.uncached;
        rows.queued_prompt_tokens[at] -= share.tokens;
    }

    /// Adds a request that was sent to a worker. `cold`: true if no engine holds any of the request's blocks; `ready`:
    /// time at which its loads and pulls of blocks should be done.
    pub(super) fn add_sent(&mut self, at: u32, request: u64, share: &Share, cold: bool, ready: f64, now: f64) {
        self.begin(at, share);
        let (at, rows) = (at as usize, &mut self.rows);
        rows.sent[at] += 1;
        if cold {
            rows.last_cold[at] = now;
        }
        let slot = &mut self.slots[at];
        // The prompt is placed before prompts whose transfers end later.
        let place = slot.queue.partition_point(|its| its.ready <= ready);
        if place == 0 {
            slot.speed.begins(now);
            self.head_since[at] = ready;
            rows.head_tokens[at] = share.uncached;
        }
        slot.queue.insert(place, QueuedPrompt { request, uncached: share.uncached, ready, moves: ready > now });
    }

    /// Removes a prompt from its worker's queue, and updates the measured speed. `computed`: time at which it was
    /// computed.
    pub(super) fn dequeue(&mut self, at: u32, request: u64, share: &Share, computed: ComputeTime, now: f64) {
        self.prompt_computed(at, share);
        let at = at as usize;
        let (rows, slot) = (&mut self.rows, &mut self.slots[at]);
        let head = slot.queue.front().is_some_and(|first| first.request == request);
        // The end of a transfer is unknown, and so is the time at which the prompt began to be computed.
        let mut is_measured = true;
        if let Some(place) = slot.queue.iter().position(|its| its.request == request) {
            is_measured = slot.queue.iter().take(place + 1).all(|its| !its.moves);
            slot.queue.remove(place);
        }
        let more = !slot.queue.is_empty();
        if head || computed == ComputeTime::Now {
            self.head_since[at] = slot.queue.front().map_or(now, |first| first.ready.max(now));
        }
        let learnt = match computed {
            ComputeTime::Now if is_measured => slot.speed.learn_prefill(share.uncached, more, now, &mut self.speed),
            ComputeTime::Before { sent } => {
                let learnt = slot.speed.came_whole(share.uncached, sent, now, &mut self.speed);
                if head || !more {
                    slot.speed.begins(now);
                }
                learnt
            }
            ComputeTime::Now | ComputeTime::Unknown => {
                if head || computed == ComputeTime::Now {
                    slot.speed.spoilt(now);
                }
                false
            }
        };
        rows.head_tokens[at] = slot.queue.front().map_or(0.0, |first| first.uncached);
        if !more {
            self.head_since[at] = f64::INFINITY;
        }
        if learnt {
            self.publish(at);
        }
    }

    /// Request at the head of a worker's queue, if its prompt is so late that something other than the queue must delay
    /// it; None otherwise.
    pub(super) fn late_head(&self, at: u32, now: f64) -> Option<u64> {
        let at = at as usize;
        let &QueuedPrompt { request, uncached, .. } = self.slots[at].queue.front()?;
        (now - self.head_since[at] - uncached / self.rows.prefill_rate[at] > LATE).then_some(request)
    }

    /// Number of the last looked-up prompt's blocks that a worker holds by the index, if all of them are on its device;
    /// None otherwise.
    pub(super) fn held_on_device(&self, worker: u32) -> Option<u32> {
        let (device, any) = self.beliefs.held(self.rows(), worker);
        (device == any).then_some(device)
    }

    /// Seconds until all prompts in a worker's queue should be computed.
    pub(super) fn until_computed(&self, at: u32, now: f64) -> f64 {
        let (at, rows) = (at as usize, &self.rows);
        let (rate, elapsed) = (rows.prefill_rate[at], (now - self.head_since[at]).max(0.0));
        (rows.queued_tokens[at] / rate - elapsed.min(rows.head_tokens[at] / rate)).max(0.0)
    }

    /// Changes the number of blocks in use at a worker by `more`, which may be negative.
    pub(super) fn add_used(&mut self, at: u32, more: f64) {
        self.rows.used_blocks[at as usize] += more;
    }

    /// Counts a waiting request's tokens at the worker `after` that it waits for from now on, instead of at the worker
    /// `before`.
    pub(super) fn aims(&mut self, before: Option<Aim>, after: Option<Aim>) {
        for (aim, sign) in before.iter().map(|aim| (aim, -1.0)).chain(after.iter().map(|aim| (aim, 1.0))) {
            self.rows.held_tokens[aim.worker as usize] += sign * aim.tokens;
        }
    }

    pub(super) fn add_tokens(&mut self, at: u32, tokens: f64, less_left: f64) {
        self.rows.context_tokens[at as usize] += tokens;
        self.rows.output_tokens_left[at as usize] -= less_left;
    }

    pub(super) fn learn_step(&mut self, at: u32, seconds: f64) {
        self.slots[at as usize].speed.learn_step(seconds, &mut self.speed);
        self.publish(at as usize);
    }

    /// Updates a worker's speed with its report that it computed `tokens` tokens of a prompt within `seconds` after the
    /// prompt was sent.
    pub(super) fn learn_told(&mut self, at: u32, tokens: f64, seconds: f64) {
        if self.slots[at as usize].speed.learn_told(tokens, seconds, &mut self.speed) {
            self.publish(at as usize);
        }
    }

    /// Records whether the number of tokens that a worker computes for its prompts is known. If it is not, `start` (in
    /// tokens per second) replaces the measured prefill rates.
    pub(super) fn set_measured(&mut self, id: WorkerId, is_measured: bool, start: f64) {
        self.slots[id.0 as usize].speed.set_measured(is_measured, start, &mut self.speed);
        for at in 0..self.slots.len() {
            self.publish_speed(at);
        }
    }

    /// Number of speed samples that were ignored as outliers.
    pub(super) fn left_out_samples(&self) -> u64 {
        self.speed.left_out
    }

    /// Removes a request that has had its first token from the counts of its worker. `share`: load that the request
    /// added.
    pub(super) fn end(&mut self, at: u32, share: &Share) {
        let at = at as usize;
        self.rows.requests[at] -= 1;
        self.rows.context_tokens[at] -= share.tokens + share.generated;
        self.rows.output_tokens_left[at] -= share.output_left;
    }

    fn publish(&mut self, at: usize) {
        // At first each sample changes the fleet's estimate by much. Workers without samples must not look slow beside
        // the first worker with some.
        if self.speed.fresh < REFRESH && self.speed.is_settled() {
            self.publish_speed(at);
            return;
        }
        self.speed.fresh = 0;
        for at in 0..self.slots.len() {
            self.publish_speed(at);
        }
    }

    fn publish_speed(&mut self, at: usize) {
        let speed = &self.slots[at].speed;
        self.rows.prefill_rate[at] = speed.rate(&self.speed);
        self.rows.step_time[at] = speed.step(&self.speed);
    }

    /// Table of all workers, including the rows of workers that have left.
    pub(super) fn rows(&self) -> &Candidates {
        &self.rows
    }

    /// Candidates for one request, from the workers in `who`, or from all workers, as a table with the numbers of the
    /// prompt's blocks and the current times filled in. Sorted by the worker's number.
    pub(super) fn candidates(
        &mut self,
        depths: &Depths,
        expected: Option<&ExpectedBlocks>,
        who: Option<&[u32]>,
        now: f64,
    ) -> &Candidates {
        let rows = &mut self.rows;
        let since = |column: &mut [f64], from: &[f64]| {
            for (value, from) in column.iter_mut().zip(from) {
                *value = now - from;
            }
        };
        since(&mut rows.age, &self.joined);
        since(&mut rows.reported_age, &self.reported);
        for (elapsed, since) in rows.head_elapsed.iter_mut().zip(&self.head_since) {
            *elapsed = (now - since).max(0.0);
        }
        let known = depths.rows.iter().copied().chain(std::iter::repeat(Depth::default()));
        let tiers = rows.device_blocks.iter_mut().zip(&mut rows.host_blocks).zip(&mut rows.any_blocks);
        for (((device, host), any), (depth, trusted)) in tiers.zip(known.zip(&rows.trusted)) {
            let depth = if *trusted { depth } else { Depth::default() };
            (*device, *host, *any) = (depth.device, depth.host, depth.any);
        }
        rows.ways.clear();
        rows.way = None;
        rows.predicted_blocks.copy_from_slice(&rows.device_blocks);
        rows.shared_blocks.fill(0);
        if let Some(expected) = expected {
            for (depth, more) in rows.predicted_blocks.iter_mut().zip(&expected.held) {
                *depth = (*depth).max(*more);
            }
            for (depth, used) in rows.shared_blocks.iter_mut().zip(&expected.used) {
                *depth = *used;
            }
            self.beliefs.doubt(&mut self.rows, expected.usable);
        }
        let Some(who) = who else { return &self.rows };
        self.chosen.gather(&self.rows, who);
        self.chosen.ways.clear();
        self.chosen.way = None;
        &self.chosen
    }

    /// Ways in which the workers can get a prompt's blocks (by loading, pulling, computing); None if nothing can be
    /// loaded or pulled.
    #[inline]
    pub(super) fn ways<'t>(
        &self,
        transfers: &'t mut Transfers,
        request: &Request<'_>,
        depths: &Depths,
        now: f64,
    ) -> Option<Ways<'t>> {
        let is_trusted = |worker: u32| self.rows.trusted.get(worker as usize).is_some_and(|trusted| *trusted);
        transfers.ways(request, depths, is_trusted, now)
    }

    /// Stores the best way (computing, loading or pulling) in which the candidate `row` gets the prompt's blocks, or each
    /// candidate if `row` is None. `who`: the workers that are candidates; None for all.
    pub(super) fn note_ways(&mut self, ways: &Ways<'_>, who: Option<&[u32]>, row: Option<usize>) {
        let all = if who.is_none() { &mut self.rows } else { &mut self.chosen };
        if let Some(row) = row {
            all.way = Some((row, ways.of(all, row)));
        } else {
            let mut filled = std::mem::take(&mut all.ways);
            filled.extend((0..all.len()).map(|row| ways.of(all, row)));
            all.ways = filled;
        }
    }

    /// Table of candidates as last returned by [`Fleet::candidates`]; `who` must be the same as in that call.
    pub(super) fn same_candidates(&self, who: Option<&[u32]>) -> &Candidates {
        if who.is_none() { &self.rows } else { &self.chosen }
    }

    /// Replaces `who` by the numbers of the workers that are up, limited to those of `allowed` if given, in ascending
    /// order.
    pub(super) fn may_take(&self, allowed: Option<&[WorkerId]>, who: &mut Vec<u32>) {
        who.clear();
        let up = |at: u32| self.slots.get(at as usize).is_some_and(|slot| slot.state == State::Up);
        match allowed {
            Some(allowed) => {
                who.extend(allowed.iter().map(|worker| worker.0).filter(|&at| up(at)));
                who.sort_unstable();
                who.dedup();
            }
            None => who.extend((0..self.slots.len() as u32).filter(|&at| up(at))),
        }
    }

    /// True if the numbers of the workers have no gaps, and all workers receive requests.
    pub(super) fn is_dense(&self) -> bool {
        self.up == self.slots.len()
    }

    /// Fills `depths` with the results of a lookup, for the workers that the router knows.
    pub(super) fn look_up(&self, found: &impl Lookup, depths: &mut Depths) {
        depths.begin();
        let mut each = |view: View, raise: fn(&mut crate::Depth, u32)| {
            found.for_each(view, &mut |name, rank, blocks| {
                let ranks = self.by_name.get(&**name);
                if let Some(&(_, at)) = ranks.and_then(|ranks| ranks.iter().find(|(its, _)| *its == rank)) {
                    depths.raise(at, |depth| raise(depth, blocks));
                }
            });
        };
        each(View::Device, |depth, blocks| depth.device = blocks);
        if !found.is_plain() {
            each(View::Host, |depth, blocks| depth.host = blocks);
            each(View::AnyTier, |depth, blocks| depth.any = blocks);
        }
    }
}
