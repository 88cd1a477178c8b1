//! Delay by a late prompt: one that should have been computed but has no first token yet.
//!
//! A late prompt may be in a queue that is longer than the router knows; then further requests would wait there, too.
//! Or only this prompt is slow, for instance because an image is slow to fetch or a schema is slow to compile, and the
//! engine serves other requests normally. The engine's own report decides between the two. Without a report, a late
//! prompt makes its engine more expensive for a while, but hardly keeps requests waiting in the router.

use crate::candidates::Candidates;

/// Age in seconds above which an engine's report of its load is ignored.
pub(super) const REPORT_AGE: f64 = 5.0;
/// Largest cost of a late prompt at its engine, in seconds, unless the engine reports that requests wait there for lack
/// of room or at its limit of running requests.
const MOST_LATE: f64 = 5.0;
/// Largest number of seconds for which one prompt at an engine keeps other requests waiting in the router. The prompt
/// may take longer than expected, or may never be computed.
const MOST_HELD: f64 = 10.0;
/// Share of a cache in use, including the blocks that a waiting prompt needs, above which the prompt is taken to wait
/// for cache space.
const FULL: f64 = 0.9;

/// Delay of further requests by a late prompt at the head of an engine's queue, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Delay {
    /// Seconds by which a request sent to the engine is expected to start later because of the late prompt.
    pub(super) cost: f64,
    /// Part of the delay, in seconds, that is a reason to keep a request waiting in the router.
    pub(super) held: f64,
}

impl Delay {
    /// Computes the delay at the engine of a candidate, given by its row in the table. `elapsed`: seconds for which the
    /// prompt at the head of the queue could have been computed. `is_at_limit`: true if the engine runs as many
    /// requests as it can at once.
    pub(super) fn of(all: &Candidates, row: usize, elapsed: f64, block_size: f64, is_at_limit: bool) -> Self {
        let head = all.head_tokens[row] / all.prefill_rate[row];
        let late = (elapsed - head).max(0.0);
        let (waiting, age) = (all.reported_waiting[row], all.reported_age[row]);
        if age < REPORT_AGE && waiting == 0.0 && age < elapsed - head {
            // The engine has reported, since this prompt was late, that no other waits.
            return Self::default();
        }
        if age < REPORT_AGE && waiting > 0.0 {
            let needs = all.head_tokens[row] / (block_size.max(1.0) * all.capacity_blocks[row]);
            let lacks_room = all.reported_kv_usage[row] + if needs.is_nan() { 0.0 } else { needs } >= FULL;
            if lacks_room || is_at_limit {
                return Self { cost: late, held: late };
            }
        }
        // Where all prompts take longer than expected, they do so in proportion.
        Self { cost: late.min(MOST_LATE), held: late.min(head).min(MOST_LATE) }
    }
}

/// Seconds of an engine's queue that are a reason to keep a request waiting in the router. If the first prompt could
/// have been computed for `elapsed` seconds already, and that is long, the rest of its expected time does not count.
#[inline]
pub(super) fn held(all: &Candidates, row: usize, queue: f64, elapsed: f64) -> f64 {
    if elapsed < MOST_HELD {
        return queue;
    }
    queue - (all.head_tokens[row] / all.prefill_rate[row] - elapsed).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delay (cost, held) at one engine whose first prompt, of 1 s, could have been computed for 13 s and has no first
    /// token.
    fn late(report: impl FnOnce(&mut Candidates), is_at_limit: bool) -> (f64, f64) {
        let mut all = Candidates::idle(1);
        (all.prefill_rate[0], all.head_tokens[0], all.queued_tokens[0]) = (1_000.0, 1_000.0, 1_000.0);
        (all.requests[0], all.waiting[0], all.capacity_blocks[0]) = (1, 1, 1_000.0);
        all.reported_age[0] = 1.0;
        report(&mut all);
        let Delay { cost, held } = Delay::of(&all, 0, 13.0, 16.0, is_at_limit);
        (cost, held)
    }

    #[test]
    fn one_late_prompt_is_no_queue() {
        assert_eq!(late(|_| (), false), (5.0, 1.0), "no report");
        assert_eq!(late(|all| all.reported_waiting[0] = 0.0, false), (0.0, 0.0), "none waits");
        let old = |all: &mut Candidates| (all.reported_waiting[0], all.reported_age[0]) = (0.0, 6.0);
        assert_eq!(late(old, false), (5.0, 1.0), "said too long ago");
        assert_eq!(late(|all| all.reported_waiting[0] = 1.0, false), (5.0, 1.0), "it may be this one that waits");
    }

    #[test]
    fn a_prompt_that_waits_for_room_keeps_others_waiting() {
        let full = |all: &mut Candidates| (all.reported_waiting[0], all.reported_kv_usage[0]) = (1.0, 0.95);
        assert_eq!(late(full, false), (12.0, 12.0));
        // 1,000 tokens are 63 of 1,000 blocks.
        let nearly = |all: &mut Candidates| (all.reported_waiting[0], all.reported_kv_usage[0]) = (1.0, 0.85);
        assert_eq!(late(nearly, false), (12.0, 12.0));
        let half = |all: &mut Candidates| (all.reported_waiting[0], all.reported_kv_usage[0]) = (1.0, 0.5);
        assert_eq!(late(half, false), (5.0, 1.0));
        assert_eq!(late(half, true), (12.0, 12.0), "it runs as many as it ever does");
    }
}
