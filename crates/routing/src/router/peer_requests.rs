//! Exchange of requests between routers that serve the same workers.
//!
//! A router reports the requests that it has at workers, with the content hashes of their prompts, to its peers. A peer
//! counts them like its own requests in its table of workers: requests, tokens, blocks in use, prompts on their way,
//! and requests that have to end before a worker has room. A report contains the changes since the last one, so the
//! sender keeps for each peer only the numbers of the requests that the peer knows.

use std::collections::hash_map::Entry;

use crate::depths::{Depth, Depths};
use crate::policy::Placement;
use crate::predict::Insertion;
use crate::request::Request;
use crate::router::Router;
use crate::router::outcome::WorkerId;
use crate::router::request_changes::{PeerRequest, RequestChanges, RequestReport, SentRequest, Share};

/// Largest number of requests of other routers that are kept.
const MOST: usize = 1 << 17;
/// Number of blocks that a request counts as in the size of a report, in addition to the blocks of its prompt.
const BLOCKS_PER_REQUEST: usize = 16;

impl Router {
    /// Changes of this router's requests since the last report to a peer, whose state `told` is updated. Contains at
    /// most `most_blocks` blocks of prompts; the rest follows with the next call.
    pub fn changes_since(&self, told: &mut RequestReport, most_blocks: usize) -> RequestChanges {
        let mut changes = RequestChanges { sent: Vec::new(), begun: Vec::new(), ended: Vec::new() };
        told.begun.retain(|number, _| {
            let stays = self.placed.contains_key(number);
            if !stays {
                changes.ended.push(*number);
            }
            stays
        });
        let mut numbers: Vec<u64> = self.placed.keys().copied().collect();
        // In the order in which they were sent: engines serve them so.
        numbers.sort_unstable();
        let mut blocks = 0;
        for number in numbers {
            let Some(its) = self.placed.get(&number) else { continue };
            let said = match told.begun.entry(number) {
                Entry::Occupied(said) => said.into_mut(),
                Entry::Vacant(new) => {
                    let content_hashes = its.leaf.map_or_else(Vec::new, |leaf| self.on_the_way.prompt(leaf));
                    blocks += BLOCKS_PER_REQUEST + content_hashes.len();
                    if blocks > most_blocks && !changes.sent.is_empty() {
                        break;
                    }
                    changes.sent.push(SentRequest {
                        number,
                        worker: WorkerId(its.worker),
                        tokens: its.share.tokens as u32,
                        block_size: its.block_size,
                        cached: its.cached,
                        session: its.session,
                        output_left: its.share.output_left as u32,
                        content_hashes,
                    });
                    new.insert(false)
                }
            };
            if !*said && (its.first_token.is_some() || its.passed) {
                *said = true;
                changes.begun.push(number);
            }
        }
        changes.ended.sort_unstable();
        changes
    }

    /// Applies the reported changes of the requests of another router, `peer`. The other router's requests count until
    /// the time `until`, or longer if that router reports again. Returns the number of new requests that were added.
    pub fn hear_changes(&mut self, peer: u64, changes: &RequestChanges, until: f64, now: f64) -> usize {
        let now = self.at(now);
        self.end_peers(now);
        if until <= now {
            return 0;
        }
        self.peers.until.insert(peer, until);
        self.peers.next = self.peers.next.min(until);
        let heard = changes.sent.iter().filter(|sent| self.hear_sent(peer, sent, now)).count();
        for number in &changes.begun {
            self.hear_begun(peer, *number, now);
        }
        for number in &changes.ended {
            self.hear_ended(peer, *number, now);
        }
        heard
    }

    /// Removes all requests that another router, `peer`, has reported.
    pub fn forget_changes(&mut self, peer: u64, now: f64) {
        let now = self.at(now);
        let mut numbers: Vec<u64> =
            self.peers.requests.keys().filter(|(its, _)| *its == peer).map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        for number in numbers {
            self.hear_ended(peer, number, now);
        }
        self.peers.until.remove(&peer);
    }

    /// True if another router, `peer`, has reported its requests, and its last report has not expired.
    #[must_use]
    pub fn hears_of(&self, peer: u64) -> bool {
        self.peers.until.contains_key(&peer)
    }

    /// Number of other routers that report their requests to this one.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.until.len()
    }

    /// Number of other routers' requests that are kept, and number of those that were not kept because there were too
    /// many.
    #[must_use]
    pub fn peer_requests(&self) -> (usize, u64) {
        (self.peers.requests.len(), self.peers.refused)
    }

    /// Removes the requests of routers whose last report has expired.
    pub(super) fn end_peers(&mut self, now: f64) {
        if self.peers.next > now {
            return;
        }
        let silent: Vec<u64> =
            self.peers.until.iter().filter(|(_, until)| **until <= now).map(|(peer, _)| *peer).collect();
        for peer in silent {
            self.forget_changes(peer, now);
        }
        self.peers.next = self.peers.until.values().copied().fold(f64::INFINITY, f64::min);
    }

    /// Removes the requests of other routers at a worker that has left.
    pub(super) fn peers_left(&mut self, worker: u32) {
        let Self { peers, fleet, .. } = self;
        peers.requests.retain(|_, its| {
            let stays = its.placed.worker != worker;
            if !stays {
                if !its.begun {
                    fleet.prompt_computed(worker, &its.share);
                }
                fleet.end(worker, &its.share);
            }
            stays
        });
    }

    fn hear_sent(&mut self, peer: u64, sent: &SentRequest, now: f64) -> bool {
        let key = (peer, sent.number);
        if self.fleet.slot(sent.worker).is_none() || self.peers.requests.contains_key(&key) {
            return false;
        }
        if self.peers.requests.len() >= MOST {
            self.peers.refused += 1;
            return false;
        }
        self.number += 1;
        let (number, worker) = (self.number, sent.worker.0);
        let told = Request {
            tokens: sent.tokens,
            block_size: sent.block_size,
            content_hashes: &sent.content_hashes,
            session: sent.session,
            number,
            ..Request::default()
        };
        let request = self.complete(&told);
        let blocks = sent.cached.min(request.tokens) / request.block_size;
        let mut there = Depths::default();
        there.set(worker, Depth { device: blocks, host: blocks, any: blocks });
        self.who.clear();
        self.who.push(worker);
        self.expect(&request, &there, now);
        let Self { fleet, who, expected, policy, .. } = self;
        let candidates = fleet.candidates(&there, Some(expected), Some(who), now);
        let is_kept = policy.heard(&request, candidates, 0, now);
        let uncached = request.tokens.saturating_sub(sent.cached).max(1);
        let until = now + self.config.first_token_timeout;
        let Insertion { leaf, depth, own } = self.on_the_way.insert(request.content_hashes, worker, number, until);
        let hashed = !request.content_hashes.is_empty();
        let nameless = if hashed { f64::from(request.blocks().saturating_sub(depth)) } else { 0.0 };
        self.fleet.add_used(worker, f64::from(own) + nameless);
        let share = Share {
            tokens: f64::from(request.tokens),
            uncached: f64::from(request.tokens.saturating_sub(sent.cached)),
            generated: 0.0,
            output_left: f64::from(sent.output_left),
        };
        self.fleet.begin(worker, &share);
        if let Some(unheard) = &mut self.unheard {
            unheard.sent(number, worker, request.content_hashes, now);
        }
        let placed = Placement { number, worker, uncached, freed: 0 };
        self.peers.requests.insert(key, PeerRequest { placed, share, leaf, nameless, begun: false, is_kept });
        true
    }

    fn hear_begun(&mut self, peer: u64, number: u64, now: f64) {
        let Some(its) = self.peers.requests.get_mut(&(peer, number)) else { return };
        if its.begun {
            return;
        }
        its.begun = true;
        let placed = its.placed;
        self.fleet.prompt_computed(placed.worker, &its.share);
        if let Some(leaf) = its.leaf {
            self.on_the_way.until(leaf, placed.number, now + self.config.announced_within);
        }
        if its.is_kept {
            self.policy.first_token(&placed, now);
        }
        self.room.came_to(placed.worker);
    }

    fn hear_ended(&mut self, peer: u64, number: u64, now: f64) {
        // What it leaves in the cache is announced soon, or not at all.
        self.hear_begun(peer, number, now);
        let Some(its) = self.peers.requests.remove(&(peer, number)) else { return };
        let worker = its.placed.worker;
        if let Some(unheard) = &mut self.unheard {
            unheard.ended(its.placed.number, 0, now);
        }
        let freed = its.leaf.map_or(0, |leaf| self.on_the_way.release(leaf, worker));
        self.fleet.end(worker, &its.share);
        self.fleet.add_used(worker, -(f64::from(freed) + its.nameless));
        if its.is_kept {
            self.policy.ended(&Placement { freed, ..its.placed }, now);
        }
        self.room.came_to(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Decision, Load, Options, Outcome, Usage, by_name};

    const LATER: f64 = 1e6;

    /// Creates two routers in front of the same two workers, each with a cache of 250 blocks.
    fn routers() -> [Router; 2] {
        [0, 1].map(|seed| {
            let policy = by_name("kvatlas", Options::default(), seed).unwrap();
            let mut router = Router::new(Config::default(), policy);
            for name in ["a", "b"] {
                let worker = router.add_worker(name, 0, 1.0, 0.0);
                router.report(worker, &Load { capacity_blocks: Some(250.0), ..Load::default() }, 0.0);
            }
            router
        })
    }

    fn chain(family: u64, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|block| family << 32 | block).collect()
    }

    fn ask(router: &mut Router, hashes: &[u64], now: f64) -> Outcome {
        let request = Request {
            tokens: 512 * hashes.len() as u32,
            block_size: 512,
            content_hashes: hashes,
            ..Request::default()
        };
        router.choose(&request, &Depths::unknown(), now)
    }

    fn send(router: &mut Router, hashes: &[u64], now: f64) -> Decision {
        let Outcome::Placed(decision) = ask(router, hashes, now) else { panic!("it waits at {now}") };
        decision
    }

    /// Sends a prompt by a router, and reports its first token at once.
    fn run(router: &mut Router, hashes: &[u64], now: f64) -> Decision {
        let decision = send(router, hashes, now);
        router.first_token(decision.id, now);
        decision
    }

    /// Passes all changes of one router's requests to another router.
    fn tell(from: &Router, told: &mut RequestReport, to: &mut Router, now: f64) -> RequestChanges {
        let changes = from.changes_since(told, usize::MAX);
        to.hear_changes(7, &changes, now + 2.0, now);
        changes
    }

    #[test]
    fn blocks_that_two_routers_use_count_once() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        let sent = send(&mut one, &chain(1, 100), 0.0);
        let at = sent.worker.0 as usize;
        tell(&one, &mut told, &mut two, 0.1);
        assert_eq!((two.rows().used_blocks[at], two.rows().requests[at]), (100.0, 1));
        // It is on its way there for the other router as well.
        let follows = send(&mut two, &chain(1, 120), 0.2);
        assert_eq!((follows.worker, follows.cached_tokens), (sent.worker, 51_200));
        assert_eq!((two.rows().used_blocks[at], two.rows().requests[at]), (120.0, 2));
        one.first_token(sent.id, 8.0);
        one.finish(sent.id, Usage::default(), 9.0);
        let changes = tell(&one, &mut told, &mut two, 9.1);
        assert_eq!((changes.sent.len(), changes.begun.len(), changes.ended.len()), (0, 0, 1));
        assert_eq!((two.rows().used_blocks[at], two.rows().requests[at]), (120.0, 1));
        two.finish(follows.id, Usage::default(), 10.0);
        assert_eq!((two.rows().used_blocks[at], two.on_the_way.blocks(), two.peer_requests()), (0.0, 120, (0, 0)));
        two.expire(LATER);
        assert_eq!(two.on_the_way.blocks(), 0);
    }

    #[test]
    fn a_session_that_another_router_knows_is_not_new() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        let run = |router: &mut Router, session, now: f64| {
            let hashes = chain(session, 20);
            let request = request_of(session, &hashes);
            let Outcome::Placed(sent) = router.choose(&request, &Depths::unknown(), now) else { panic!("it waits") };
            router.first_token(sent.id, now);
            sent.id
        };
        // Twenty sessions of ten requests each: another one will bring nine more.
        for nth in 0..200 {
            let id = run(&mut two, nth / 10, nth as f64);
            two.finish(id, Usage { output_tokens: Some(100), ..Usage::default() }, nth as f64 + 0.5);
        }
        let id = run(&mut one, 99, 200.0);
        let changes = tell(&one, &mut told, &mut two, 200.1);
        assert_eq!(changes.sent[0].session, Some(99));
        one.finish(id, Usage::default(), 200.2);
        tell(&one, &mut told, &mut two, 200.3);
        // Once its prompt is not taken for held any more.
        let settles = |router: &mut Router, session| {
            let hashes = chain(session, 20);
            let why = router.explain(&request_of(session, &hashes), &Depths::unknown(), None, 206.0);
            let terms = why.terms.unwrap();
            let others = terms.names.iter().position(|name| *name == "others delayed (s)").unwrap();
            terms.values.iter().skip(others).step_by(terms.names.len()).copied().fold(0.0, f64::max)
        };
        assert!(settles(&mut two, 98) > 0.0);
        assert_eq!(settles(&mut two, 99), 0.0);
    }

    fn request_of(session: u64, hashes: &[u64]) -> Request<'_> {
        Request {
            tokens: 10_240,
            block_size: 512,
            content_hashes: hashes,
            session: Some(session),
            ..Request::default()
        }
    }

    #[test]
    fn admission_is_foreseen_with_the_requests_of_others() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        for family in 0..4 {
            run(&mut one, &chain(family, 100), 0.0);
        }
        tell(&one, &mut told, &mut two, 0.1);
        // Both caches have room for half a prompt.
        assert_eq!(two.rows().used_blocks, [200.0, 200.0]);
        let hashes = chain(9, 100);
        let tokens = 51_201;
        let request = Request { tokens, block_size: 512, content_hashes: &hashes, ..Request::default() };
        let why = two.explain(&request, &Depths::unknown(), None, 0.2);
        let terms = why.terms.unwrap();
        let room = terms.names.iter().position(|name| *name == "wait for room (s)").unwrap();
        assert!(terms.values[room] > 1.0, "{terms:?}");
    }

    /// Counts of a worker that depend on requests, as this router has them.
    fn work(router: &Router, at: usize) -> [f64; 7] {
        let rows = router.rows();
        [
            f64::from(rows.requests[at]),
            f64::from(rows.waiting[at]),
            rows.queued_tokens[at],
            rows.queued_prompt_tokens[at],
            rows.context_tokens[at],
            rows.output_tokens_left[at],
            rows.used_blocks[at],
        ]
    }

    #[test]
    fn a_request_of_another_router_counts_like_an_own_one() {
        for (hashes, max_tokens, answers) in [(chain(1, 100), Some(10), 1), (Vec::new(), None, 2)] {
            let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
            let request = Request {
                tokens: 51_200,
                block_size: 512,
                content_hashes: &hashes,
                max_tokens,
                answers,
                ..Request::default()
            };
            let Outcome::Placed(sent) = one.choose(&request, &Depths::unknown(), 0.0) else { panic!("it waits") };
            let at = sent.worker.0 as usize;
            tell(&one, &mut told, &mut two, 0.1);
            assert_eq!((work(&two, at), two.peers()), (work(&one, at), 1));
            // Blocks in use come from hashes alone.
            assert!(work(&two, at)[..6].iter().all(|amount| *amount > 0.0));
            one.first_token(sent.id, 0.2);
            tell(&one, &mut told, &mut two, 0.3);
            assert_eq!(work(&two, at), work(&one, at));
            one.finish(sent.id, Usage::default(), 0.4);
            tell(&one, &mut told, &mut two, 0.5);
            assert_eq!((work(&two, at), work(&one, at)), ([0.0; 7], [0.0; 7]));
        }
    }

    #[test]
    fn an_idle_worker_is_chosen_before_one_that_another_router_uses() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        let sent = send(&mut one, &chain(1, 100), 0.0);
        tell(&one, &mut told, &mut two, 0.1);
        assert_ne!(send(&mut two, &chain(2, 100), 0.2).worker, sent.worker);
    }

    #[test]
    fn a_worker_that_joins_again_has_no_requests_of_others() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        let sent = [send(&mut one, &chain(1, 100), 0.0), run(&mut one, &chain(2, 100), 0.0)];
        tell(&one, &mut told, &mut two, 0.1);
        for each in &sent {
            two.remove_worker(each.worker, 0.2);
        }
        for each in &sent {
            let joined = two.add_worker(&each.name, 0, 1.0, 0.3);
            assert_eq!(work(&two, joined.0 as usize), [0.0; 7]);
        }
        one.finish(sent[0].id, Usage::default(), 0.4);
        tell(&one, &mut told, &mut two, 0.5);
        two.expire(LATER);
        assert_eq!((work(&two, 0), work(&two, 1), two.peers()), ([0.0; 7], [0.0; 7], 0));
    }

    #[test]
    fn what_is_too_much_for_one_message_comes_with_the_next() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        for family in 0..3 {
            run(&mut one, &chain(family, 20), 0.0);
        }
        for nth in 1..=3 {
            let changes = one.changes_since(&mut told, 20);
            assert_eq!((changes.sent.len(), changes.begun.len()), (1, 1));
            assert_eq!(two.hear_changes(7, &changes, 2.0, 0.2), 1);
            assert_eq!(two.peer_requests(), (nth, 0));
        }
        assert!(one.changes_since(&mut told, 20).is_empty());
        // A prompt that exceeds the limit is reported alone.
        assert_eq!(one.changes_since(&mut RequestReport::default(), 5).sent.len(), 1);
    }

    #[test]
    fn requests_of_a_router_that_falls_silent_or_begins_anew_are_forgotten() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        send(&mut one, &chain(1, 100), 0.0);
        let changes = tell(&one, &mut told, &mut two, 0.1);
        assert_eq!(two.rows().used_blocks.iter().sum::<f64>(), 100.0);
        // A repeated report counts once; requests at unknown workers do not count.
        assert_eq!(two.hear_changes(7, &changes, 2.1, 0.2), 0);
        let nowhere = SentRequest { worker: WorkerId(9), number: 99, ..changes.sent[0].clone() };
        let unknown = RequestChanges { sent: vec![nowhere], begun: vec![98], ended: vec![97] };
        assert_eq!(two.hear_changes(7, &unknown, 2.1, 0.2), 0);
        two.forget_changes(7, 0.3);
        assert_eq!((two.rows().used_blocks.iter().sum::<f64>(), two.peer_requests().0), (0.0, 0));
        assert_eq!(two.hear_changes(7, &changes, 2.1, 0.4), 1);
        two.expire(2.2);
        assert_eq!((two.rows().used_blocks.iter().sum::<f64>(), two.peer_requests().0), (0.0, 0));
        assert_eq!(two.policy.remembered(), (0, 0));
        // A worker that leaves takes them along.
        two.hear_changes(7, &changes, 9.0, 2.4);
        assert_eq!(two.rows().used_blocks[0] + two.rows().used_blocks[1], 100.0);
        two.remove_worker(changes.sent[0].worker, 2.5);
        assert_eq!(two.peer_requests().0, 0);
        two.expire(LATER);
        assert_eq!(two.on_the_way.blocks(), 0);
    }

    #[test]
    fn a_request_that_waits_hears_that_room_has_come() {
        let ([mut one, mut two], mut told) = (routers(), RequestReport::default());
        let sent: Vec<Decision> = (0..4).map(|family| run(&mut one, &chain(family, 120), 0.0)).collect();
        tell(&one, &mut told, &mut two, 0.2);
        let Outcome::Waits(_) = ask(&mut two, &chain(9, 100), 0.3) else { panic!("there is no room for it") };
        assert!(two.bind(0.31).is_empty());
        for each in &sent {
            one.finish(each.id, Usage::default(), 0.4);
        }
        tell(&one, &mut told, &mut two, 0.41);
        assert_eq!(two.bind(0.41).len(), 1);
    }
}
