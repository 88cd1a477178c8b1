//! The work that other routers have at the same workers: it counts like what this one has, until they say otherwise or
//! fall silent.

use crate::router::Router;
use crate::router::outcome::WorkerId;
use crate::router::work::Work;

impl Router {
    /// Another router, `peer`, has this at a worker: it counts there until `until`, in the place of what it had before.
    /// False: there is no such worker, or it cannot be so.
    pub fn set_peer(&mut self, peer: u64, worker: WorkerId, work: &Work, until: f64, now: f64) -> bool {
        let now = self.at(now);
        if self.fleet.slot(worker).is_none() || !work.is_sound() {
            return false;
        }
        self.end_peers(now);
        // Blocks of requests that it tells of are counted one by one.
        let tells = self.peers.requests.is_heard(peer, until);
        let used_blocks = if tells { 0.0 } else { work.used_blocks };
        let work = &Work { used_blocks, ..*work };
        let key = (peer, worker.0);
        let before = self.peers.work.remove(&key).map_or(Work::default(), |(work, _)| work);
        self.fleet.add_work(worker.0, work, &before);
        if *work != Work::default() && until > now {
            self.peers.next = if self.peers.next > now { self.peers.next.min(until) } else { until };
            self.peers.work.insert(key, (*work, until));
        }
        self.room.came_to(worker.0);
        true
    }

    /// Returns the work that this router has at a worker itself.
    #[must_use]
    pub fn own_work(&self, worker: WorkerId) -> Option<Work> {
        self.fleet.slot(worker)?;
        let mut work = self.fleet.work(worker.0);
        for (_, (other, _)) in self.peers.work.iter().filter(|((_, at), _)| *at == worker.0) {
            work.requests -= other.requests;
            work.waiting -= other.waiting;
            work.queued_tokens -= other.queued_tokens;
            work.queued_prompt_tokens -= other.queued_prompt_tokens;
            work.context_tokens -= other.context_tokens;
            work.used_blocks -= other.used_blocks;
            work.output_tokens_left -= other.output_tokens_left;
        }
        work.used_blocks -= self.peers.requests.used(worker.0);
        // What is left of sums that were taken apart again.
        let sane = |amount: f64| if amount < 1e-3 { 0.0 } else { amount };
        work.queued_tokens = sane(work.queued_tokens);
        work.queued_prompt_tokens = sane(work.queued_prompt_tokens);
        work.context_tokens = sane(work.context_tokens);
        work.used_blocks = sane(work.used_blocks);
        work.output_tokens_left = sane(work.output_tokens_left);
        Some(work)
    }

    /// Other routers whose work counts somewhere now.
    #[must_use]
    pub fn peers(&self) -> usize {
        let mut peers: Vec<u64> = self.peers.work.keys().map(|(peer, _)| *peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.len()
    }

    /// Forgets what was not said again in time.
    pub(super) fn end_peers(&mut self, now: f64) {
        if self.peers.next > now {
            return;
        }
        let next = self.end_peer_requests(now);
        let Self { peers, fleet, room, .. } = self;
        peers.next = next;
        peers.work.retain(|(_, worker), (work, until)| {
            if *until > now {
                peers.next = peers.next.min(*until);
                return true;
            }
            fleet.add_work(*worker, &Work::default(), work);
            room.came_to(*worker);
            false
        });
    }

    /// Leaves out the blocks that another router says are in use on its account, as it tells of each request now.
    pub(super) fn leave_out_blocks_of(&mut self, peer: u64) {
        let Self { peers, fleet, .. } = self;
        for ((its, worker), (work, _)) in &mut peers.work {
            if *its == peer {
                fleet.add_used(*worker, -std::mem::take(&mut work.used_blocks));
            }
        }
    }

    /// A worker is gone, and what others have there.
    pub(super) fn peers_left(&mut self, worker: u32) {
        let Self { peers, fleet, .. } = self;
        peers.requests.left(worker);
        peers.work.retain(|(_, at), (work, _)| {
            if *at == worker {
                fleet.add_work(worker, &Work::default(), work);
            }
            *at != worker
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Depths, Options, Outcome, Request, Usage, by_name};

    fn router() -> (Router, WorkerId, WorkerId) {
        let mut router = Router::new(Config::default(), by_name("kvatlas", Options::default(), 0).unwrap());
        let (a, b) = (router.add_worker("a", 0, 1.0, 0.0), router.add_worker("b", 0, 1.0, 0.0));
        (router, a, b)
    }

    fn some(requests: u32, tokens: f64) -> Work {
        Work {
            requests,
            waiting: requests,
            queued_tokens: tokens,
            queued_prompt_tokens: tokens,
            context_tokens: tokens,
            used_blocks: tokens / 16.0,
            output_tokens_left: 100.0,
        }
    }

    #[test]
    fn what_others_have_counts_until_its_time_is_over() {
        let (mut router, a, b) = router();
        let request = Request { tokens: 1_000, ..Request::default() };
        assert!(router.set_peer(7, a, &some(2, 80_000.0), 1.0, 0.0));
        assert!(router.set_peer(8, a, &some(1, 5.0), 2.0, 0.0));
        assert_eq!((router.peers(), router.rows().requests[0], router.rows().queued_tokens[0]), (2, 3, 80_005.0));
        for _ in 0..3 {
            let Outcome::Placed(decision) = router.choose(&request, &Depths::unknown(), 0.5) else {
                panic!("b is idle")
            };
            assert_eq!(decision.worker, b);
            router.finish(decision.id, Usage::default(), 0.5);
        }
        // The same router again takes the place of what it said before.
        assert!(router.set_peer(7, a, &some(1, 10.0), 1.5, 0.5));
        assert_eq!((router.rows().requests[0], router.rows().queued_tokens[0]), (2, 15.0));
        router.expire(1.5);
        assert_eq!((router.peers(), router.rows().requests[0]), (1, 1));
        router.expire(2.0);
        assert_eq!((router.peers(), router.rows().requests[0], router.rows().queued_tokens[0]), (0, 0, 0.0));
    }

    #[test]
    fn own_work_is_what_this_router_has() {
        let (mut router, a, _) = router();
        assert!(router.set_peer(7, a, &some(3, 1000.0), 9.0, 0.0));
        let request = Request { tokens: 500, max_tokens: Some(10), ..Request::default() };
        let Outcome::Placed(decision) = router.choose_among(&request, &Depths::unknown(), Some(&[a]), 0.1) else {
            panic!("it is placed")
        };
        let own = router.own_work(a).unwrap();
        assert_eq!((own.requests, own.waiting, own.queued_tokens, own.output_tokens_left), (1, 1, 500.0, 10.0));
        router.first_token(decision.id, 0.2);
        router.finish(decision.id, Usage::default(), 0.3);
        assert_eq!(router.own_work(a), Some(Work::default()));
    }

    #[test]
    fn a_worker_that_leaves_takes_it_along() {
        let (mut router, a, _) = router();
        assert!(router.set_peer(7, a, &some(3, 1000.0), 9.0, 0.0));
        router.remove_worker(a, 0.1);
        assert!(!router.set_peer(7, a, &some(3, 1000.0), 9.0, 0.1) && router.own_work(a).is_none());
        let c = router.add_worker("c", 0, 1.0, 0.2);
        assert_eq!((c, router.rows().requests[c.0 as usize], router.peers()), (a, 0, 0));
        router.expire(10.0);
        assert_eq!(router.rows().requests[c.0 as usize], 0);
    }

    #[test]
    fn what_cannot_be_so_changes_nothing() {
        let (mut router, a, _) = router();
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e13] {
            assert!(!router.set_peer(7, a, &some(1, bad), 9.0, 0.0), "{bad}");
        }
        assert!(!router.set_peer(7, a, &Work { waiting: 2, ..some(1, 1.0) }, 9.0, 0.0));
        assert_eq!((router.peers(), router.rows().requests[0]), (0, 0));
    }
}
