//! Predictions of cached blocks that are not announced: blocks of prompts on their way to workers, and caches of
//! engines that publish no events. Also a queue of numbers by due time.

mod sent_prompts;
mod unheard;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::time::Time;
pub(crate) use sent_prompts::{Insertion, Leaf, SentPrompts};
pub use unheard::{PredictedIndex, Retention};

/// Priority queue of numbers by due time. Most numbers are added in the order of their times, or in one of two orders,
/// as their delay is constant. These numbers are kept in two simple queues; only the others are in a heap, which has
/// slower memory access.
#[derive(Debug, Default)]
struct DueNumbers {
    lines: [VecDeque<(Time, u32)>; 2],
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl DueNumbers {
    fn len(&self) -> usize {
        self.heap.len() + self.lines.iter().map(VecDeque::len).sum::<usize>()
    }

    fn push(&mut self, time: Time, number: u32) {
        let line = self.lines.iter_mut().find(|line| line.back().is_none_or(|(last, _)| *last <= time));
        match line {
            Some(line) => line.push_back((time, number)),
            None => self.heap.push(Reverse((time, number))),
        }
    }

    /// Removes and returns one of the numbers that are due at the time `now`, in any order; None if there is none.
    fn pop(&mut self, now: f64) -> Option<u32> {
        let first = self.lines.iter_mut().find(|line| line.front().is_some_and(|(time, _)| time.0 <= now));
        if let Some((_, number)) = first.and_then(VecDeque::pop_front) {
            return Some(number);
        }
        self.heap.peek().filter(|Reverse((time, _))| time.0 <= now)?;
        self.heap.pop().map(|Reverse((_, number))| number)
    }
}

impl FromIterator<(Time, u32)> for DueNumbers {
    fn from_iter<I: IntoIterator<Item = (Time, u32)>>(numbers: I) -> Self {
        let mut sorted: Vec<_> = numbers.into_iter().collect();
        sorted.sort_unstable();
        Self { lines: [sorted.into(), VecDeque::new()], heap: BinaryHeap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_due_come_out_in_whatever_order_they_came() {
        let mut state = 7_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let mut due = DueNumbers::default();
        let mut left: Vec<(Time, u32)> = Vec::new();
        for number in 0..4_000_u32 {
            let now = f64::from(number / 4);
            let time = Time(now + [5.0, 600.0, 600.0, below(900) as f64][below(4) as usize]);
            due.push(time, number);
            left.push((time, number));
            if below(500) == 0 {
                due = left.iter().copied().collect();
            }
            if below(20) == 0 {
                let mut got: Vec<_> = std::iter::from_fn(|| due.pop(now)).collect();
                let mut right: Vec<_> =
                    left.extract_if(.., |(time, _)| time.0 <= now).map(|(_, number)| number).collect();
                got.sort_unstable();
                right.sort_unstable();
                assert_eq!(got, right);
            }
            assert_eq!(due.len(), left.len());
        }
        assert!(due.heap.len() < left.len() / 2, "{} of {}", due.heap.len(), left.len());
    }
}
