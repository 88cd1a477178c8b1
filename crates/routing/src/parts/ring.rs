//! Ring of workers for consistent hashing (Karger and others 1997).

use crate::parts::draw::mix;

/// Ring of workers for consistent hashing: each worker has several points on a circle of 64-bit numbers. A worker that
/// is added or removed changes the assignment only of its own share of the keys.
///
/// A point depends only on the worker's number, so two routers with the same numbers agree.
#[derive(Debug)]
pub struct Ring {
    points: u32,
    workers: Vec<u32>,
    places: Vec<(u64, u32)>,
}

impl Ring {
    /// Creates an empty hash ring on which each worker gets `points` points, the places at which keys find it.
    pub fn new(points: u32) -> Self {
        Self { points: points.max(1), workers: Vec::new(), places: Vec::new() }
    }

    /// Number of workers on the hash ring.
    #[must_use]
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// True if no worker is on the hash ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Adds all given workers that are not on the hash ring yet.
    pub fn put(&mut self, workers: &[u32]) {
        let before = self.places.len();
        for &worker in workers {
            let Err(at) = self.workers.binary_search(&worker) else { continue };
            self.workers.insert(at, worker);
            let places = (0..self.points).map(|point| (mix(mix(u64::from(worker)) ^ u64::from(point)), worker));
            self.places.extend(places);
        }
        if self.places.len() > before {
            self.places.sort_unstable();
        }
    }

    /// Removes a worker from the hash ring.
    pub fn remove(&mut self, worker: u32) {
        if let Ok(at) = self.workers.binary_search(&worker) {
            self.workers.remove(at);
            self.places.retain(|&(_, owner)| owner != worker);
        }
    }

    /// Index of the first worker in `workers` that the predicate `takes` accepts, in the order in which the workers'
    /// points follow the hash `key` on the ring; None if there is none.
    pub fn first(&self, key: u64, workers: &[u32], mut takes: impl FnMut(usize) -> bool) -> Option<usize> {
        let start = self.places.partition_point(|&(place, _)| place < key);
        let sorted = workers.is_sorted();
        let mut asked = vec![false; workers.len()];
        let mut left = workers.len();
        for &(_, owner) in self.places[start..].iter().chain(&self.places[..start]) {
            let found = match sorted {
                true => workers.binary_search(&owner).ok(),
                false => workers.iter().position(|&worker| worker == owner),
            };
            let Some(row) = found else { continue };
            if std::mem::replace(&mut asked[row], true) {
                continue;
            }
            if takes(row) {
                return Some(row);
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_leaves_moves_only_what_it_had() {
        let mut ring = Ring::new(160);
        let all = [0, 1, 2, 3];
        ring.put(&all);
        let before: Vec<usize> = (0..2000).map(|key| ring.first(mix(key), &all, |_| true).unwrap()).collect();
        for row in 0..4 {
            let share = before.iter().filter(|&&owner| owner == row).count();
            assert!((300..700).contains(&share), "{share} of 2000 keys on worker {row}");
        }
        ring.remove(3);
        ring.put(&[0, 1, 2]);
        assert_eq!(ring.len(), 3);
        for (key, &owner) in before.iter().enumerate() {
            let after = ring.first(mix(key as u64), &[0, 1, 2], |_| true).unwrap();
            assert!(owner == 3 || owner == after);
        }
    }

    #[test]
    fn who_declines_is_asked_once_and_passed_over() {
        let mut ring = Ring::new(8);
        ring.put(&[5, 6]);
        assert_eq!(ring.first(3, &[6, 5], |_| true).map(|row| 1 - row), ring.first(3, &[5, 6], |_| true));
        let mut asked = Vec::new();
        let found = ring.first(77, &[5, 6], |row| {
            asked.push(row);
            false
        });
        asked.sort_unstable();
        assert_eq!((found, asked), (None, vec![0, 1]));
    }
}
