//! Need of a cache group: how far it can serve a prompt.

/// Blocks that a group must hold for a prompt to be continued at a depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// All of them, each of `step` blocks of the index.
    Whole {
        /// Blocks of the index in one of the group.
        step: usize,
    },
    /// The last `blocks` before the depth, or all if there are fewer, each of `step` blocks of the index.
    Last {
        /// Number of these blocks, at least 1.
        blocks: usize,
        /// Blocks of the index in one of the group.
        step: usize,
    },
}

impl Need {
    /// Of a group of this kind, with blocks of `block_size` tokens, beside an index with blocks of `of_index`. None if
    /// that cannot be said in blocks of the index.
    pub(super) fn of(kind: &str, window: Option<u64>, block_size: u32, of_index: u32) -> Option<Self> {
        // One state, where the prompt is continued. It has a name there or nowhere, however long the group's blocks are.
        if kind == "mamba" {
            return Some(Self::Last { blocks: 1, step: 1 });
        }
        if block_size == 0 || !block_size.is_multiple_of(of_index) {
            return None;
        }
        let step = (block_size / of_index) as usize;
        match kind {
            "full_attention" | "mla_attention" | "sink_full_attention" => Some(Self::Whole { step }),
            // The token that comes next sees itself and those before it.
            "sliding_window" | "sliding_window_mla" => {
                let before = window?.saturating_sub(1).div_ceil(u64::from(block_size)).max(1);
                Some(Self::Last { blocks: usize::try_from(before).unwrap_or(usize::MAX), step })
            }
            _ => None,
        }
    }

    /// The greatest depth up to `limit` that the group can serve, in blocks of the index; `held` says whether it holds
    /// the block that ends at a depth.
    pub(super) fn reach(self, limit: usize, held: impl Fn(usize) -> bool) -> usize {
        match self {
            Self::Whole { step } => {
                let whole = (1..=limit / step).take_while(|&block| held(block * step)).count();
                whole * step
            }
            Self::Last { blocks, step } => {
                let mut reach = limit - limit % step;
                // All blocks from here to `reach` are held.
                let mut known = reach + step;
                while reach > 0 {
                    let first = reach.saturating_sub((blocks - 1).saturating_mul(step)).max(step);
                    // The first that is missing rules out most: every depth from it to `reach` needs it.
                    let missing = (first..known).step_by(step).find(|&block| !held(block));
                    known = first;
                    match missing {
                        Some(missing) => reach = missing - step,
                        None => break,
                    }
                }
                reach
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(need: Need, limit: usize, held: &[usize]) -> usize {
        need.reach(limit, |block| held.contains(&block))
    }

    #[test]
    fn kinds() {
        let last = |blocks, step| Some(Need::Last { blocks, step });
        for (kind, window, block_size, need) in [
            ("full_attention", None, 16, Some(Need::Whole { step: 1 })),
            ("mla_attention", None, 48, Some(Need::Whole { step: 3 })),
            ("sliding_window", Some(33), 16, last(2, 1)),
            ("sliding_window", Some(34), 16, last(3, 1)),
            ("sliding_window_mla", Some(34), 32, last(2, 2)),
            ("sliding_window", Some(1), 16, last(1, 1)),
            ("sliding_window", Some(0), 16, last(1, 1)),
            ("sliding_window", None, 16, None),
            ("sliding_window", Some(33), 8, None),
            ("sliding_window", Some(33), 24, None),
            ("sliding_window", Some(33), 0, None),
            ("mamba", None, 528, last(1, 1)),
            ("chunked_local_attention", None, 16, None),
            ("unknown", None, 16, None),
        ] {
            assert_eq!(Need::of(kind, window, block_size, 16), need, "{kind} {window:?} {block_size}");
        }
    }

    #[test]
    fn windows_are_looked_for_from_the_end() {
        let two = Need::Last { blocks: 2, step: 1 };
        assert_eq!(reach(two, 6, &[2, 3, 5]), 3);
        assert_eq!(reach(two, 6, &[1, 3, 5]), 1);
        assert_eq!(reach(two, 6, &[3, 5]), 0);
        assert_eq!(reach(two, 6, &[5, 6]), 6);
        assert_eq!(reach(two, 5, &[5, 6]), 0);
        let coarse = Need::Last { blocks: 2, step: 2 };
        assert_eq!(reach(coarse, 7, &[2, 4, 6]), 6);
        assert_eq!(reach(coarse, 7, &[2, 6]), 2);
        assert_eq!(reach(Need::Last { blocks: usize::MAX, step: 1 }, 4, &[1, 2, 3, 4]), 4);
        assert_eq!(reach(Need::Whole { step: 2 }, 7, &[2, 4, 7]), 4);
    }
}
