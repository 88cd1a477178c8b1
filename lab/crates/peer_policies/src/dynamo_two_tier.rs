//! The two-tier cost function of NVIDIA Dynamo.

use kvatlas_routing::parts::sheet::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// Dynamo's two-tier cost function (ai-dynamo/dynamo#14498, in 1.5.0); the first of equals.
///
/// ```text
/// most - fewest requests > imbalance_requests and most > imbalance_ratio * fewest: the fewest requests
/// else longest match / blocks of the prompt > match_share: of those that match as much, the fewest requests
/// else: the fewest requests
/// ```
/// Blocks on the device count. Later versions add 0.75 of those on the host: that is `host_weight`.
pub(crate) struct DynamoTwoTier {
    imbalance_requests: f64,
    imbalance_ratio: f64,
    match_share: f64,
    host_weight: f64,
}

impl DynamoTwoTier {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self {
            imbalance_requests: options.number("imbalance_requests", 32.0, 0.0, 1e9)?,
            imbalance_ratio: options.number("imbalance_ratio", 1.1, 1.0, 1e9)?,
            match_share: options.number("match_share", 0.5, 0.0, 1.0)?,
            host_weight: options.number("host_weight", 0.0, 0.0, 1.0)?,
        })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let requests = |row: usize| f64::from(candidates.requests[row]);
        let overlap = |row: usize| {
            let device = f64::from(candidates.device_blocks[row]);
            device + self.host_weight * (f64::from(candidates.host_blocks[row]) - device).max(0.0)
        };
        let rows = 0..candidates.len();
        let most = rows.clone().map(requests).fold(0.0, f64::max);
        let fewest = rows.clone().map(requests).fold(f64::INFINITY, f64::min);
        let longest = rows.map(overlap).fold(0.0, f64::max);
        let balanced = most - fewest <= self.imbalance_requests || most <= self.imbalance_ratio * fewest;
        let warm = longest / f64::from(request.blocks().max(1)) > self.match_share;
        sheet(["matched blocks", "requests", "requests if it may take it (lowest)"], candidates.len(), |row| {
            let out = balanced && warm && overlap(row) < longest;
            [overlap(row), requests(row), if out { f64::INFINITY } else { requests(row) }]
        })
    }
}

impl Policy for DynamoTwoTier {
    fn name(&self) -> &'static str {
        "dynamo-two-tier"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let costs = compared(&self.terms(request, candidates));
        let first = (0..costs.len()).reduce(|best, row| if costs[row] < costs[best] { row } else { best });
        Choice::Row(first.unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet};

    fn choice(device: [u32; 3], requests: [u32; 3]) -> Choice {
        let mut policy = DynamoTwoTier::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(3);
        candidates.device_blocks = device.to_vec();
        candidates.host_blocks = device.to_vec();
        candidates.requests = requests.to_vec();
        policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.0)
    }

    #[test]
    fn a_long_match_decides_in_a_balanced_fleet() {
        // Three of four blocks are more than half; of the two that hold them, the one with fewer requests.
        assert_eq!(choice([3, 0, 3], [20, 1, 10]), Choice::Row(2));
        // Two of four are not.
        assert_eq!(choice([2, 0, 2], [20, 1, 10]), Choice::Row(1));
    }

    #[test]
    fn the_fewest_requests_decide_in_an_unbalanced_fleet() {
        // 33 more than the fewest, and more than 1.1 times as many.
        assert_eq!(choice([4, 0, 0], [34, 1, 2]), Choice::Row(1));
        assert_eq!(choice([4, 0, 0], [33, 1, 2]), Choice::Row(0));
        // 40 more, but only 1.08 times as many.
        assert_eq!(choice([4, 0, 0], [540, 500, 510]), Choice::Row(0));
    }
}
