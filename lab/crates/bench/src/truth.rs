//! Blocks that a plan's workers hold in the end: the plan's events applied to plain maps, one per worker.

use hashbrown::HashMap;

use kvatlas_designs::WorkerId;
use kvatlas_index::BlockHash;

use crate::plan::{Op, Plan};

/// Parent of a block (`None` at the start of a prompt) and its content hash.
type Content = (Option<u64>, u64);

/// Blocks that each worker holds after all events of a plan.
pub(crate) struct Truth {
    workers: Vec<HashMap<u64, Content>>,
}

impl Truth {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut workers = vec![HashMap::new(); plan.columns().worker_count as usize];
        for op in plan.ops() {
            let held = &mut workers[op.worker() as usize];
            match op {
                Op::Lookup { .. } => {}
                Op::Store { parent, names, contents, .. } => {
                    let mut parent = parent;
                    for (&name, &content) in names.iter().zip(contents) {
                        held.insert(name, (parent, content));
                        parent = Some(name);
                    }
                }
                Op::Remove { names, .. } => {
                    for name in names {
                        held.remove(name);
                    }
                }
                Op::Clear { .. } => held.clear(),
            }
        }
        Self { workers }
    }

    /// All pairs of a worker and a block that it holds after the plan's events, sorted by worker and block hash.
    pub(crate) fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let all = (0..).zip(&self.workers).flat_map(|(worker, held)| held.keys().map(move |&name| (worker, name)));
        let mut all: Vec<(WorkerId, BlockHash)> = all.map(|(worker, name)| (worker, BlockHash(name))).collect();
        all.sort_unstable();
        all
    }

    /// Number of blocks that a worker holds after the plan's events.
    pub(crate) fn blocks(&self, worker: WorkerId) -> usize {
        self.workers.get(worker as usize).map_or(0, HashMap::len)
    }

    /// Chains of the blocks of these workers, in a form in which depths (numbers of a query's leading blocks held) can
    /// be found.
    pub(crate) fn chains(&self, workers: &[WorkerId]) -> Chains {
        let mut steps = Vec::new();
        for &worker in workers {
            let held = self.workers.get(worker as usize).into_iter().flatten();
            steps.extend(held.map(|(&name, &(parent, content))| (worker, parent, content, name)));
        }
        steps.sort_unstable();
        Chains { steps }
    }
}

/// Blocks of workers, sorted by worker, parent and content, for finding depths from the root without code of any index.
pub(crate) struct Chains {
    steps: Vec<(WorkerId, Option<u64>, u64, u64)>,
}

impl Chains {
    /// Number of leading blocks of a query that a worker holds. O(depth × log blocks).
    pub(crate) fn depth(&self, worker: WorkerId, query: &[u64]) -> u32 {
        // Several blocks with different names may have the same parent and content.
        let mut ends = vec![None];
        for (depth, &content) in (0..).zip(query) {
            let mut next = Vec::new();
            for &end in &ends {
                let from = self.steps.partition_point(|&(w, p, c, _)| (w, p, c) < (worker, end, content));
                let alike = self.steps[from..].iter().take_while(|&&(w, p, c, _)| (w, p, c) == (worker, end, content));
                next.extend(alike.map(|&(.., name)| Some(name)));
            }
            if next.is_empty() {
                return depth;
            }
            ends = next;
        }
        query.len() as u32
    }
}
