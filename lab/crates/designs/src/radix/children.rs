//! Children of a node of the radix tree, by content hash. Most nodes have one child, which is stored inline.

use hashbrown::HashMap;
use smallvec::SmallVec;

/// Index of a node in its tree, in 32 bits. Four bytes instead of eight make a node fit into a cache line.
pub(crate) type NodeId = u32;

/// Number of a node's children beyond which a map is faster than a scan of a list.
const FEW: usize = 8;

/// Children of a node of the radix tree, by content hash. Boxes keep the many nodes with one child small.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(u64, NodeId),
    Few(Box<SmallVec<[(u64, NodeId); 4]>>),
    Many(Box<HashMap<u64, NodeId>>),
}

impl Children {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    #[inline]
    pub(crate) fn get(&self, content: u64) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(its, node) => (*its == content).then_some(*node),
            Self::Few(few) => few.iter().find(|(its, _)| *its == content).map(|&(_, node)| node),
            Self::Many(many) => many.get(&content).copied(),
        }
    }

    /// Adds the node `node` as a child with the content hash `content`, which no other child has.
    pub(crate) fn insert(&mut self, content: u64, node: NodeId) {
        debug_assert!(self.get(content).is_none());
        match self {
            Self::None => *self = Self::One(content, node),
            Self::One(other, its) => {
                *self = Self::Few(Box::new(SmallVec::from_slice(&[(*other, *its), (content, node)])))
            }
            Self::Few(few) if few.len() < FEW => few.push((content, node)),
            Self::Few(few) => {
                let mut many: Box<HashMap<_, _>> = Box::new(few.drain(..).collect());
                many.insert(content, node);
                *self = Self::Many(many);
            }
            Self::Many(many) => _ = many.insert(content, node),
        }
    }

    /// Removes the child with the content hash `content`, and frees unneeded memory.
    pub(crate) fn remove(&mut self, content: u64) {
        match self {
            Self::None => {}
            Self::One(its, _) if *its != content => {}
            Self::One(..) => *self = Self::None,
            Self::Few(few) => {
                few.retain(|(its, _)| *its != content);
                if let &[(content, node)] = &few[..] {
                    *self = Self::One(content, node);
                }
            }
            Self::Many(many) => {
                many.remove(&content);
                if many.len() <= FEW / 2 {
                    *self = Self::Few(Box::new(many.drain().collect()));
                } else if many.len() < many.capacity() / 8 {
                    many.shrink_to(2 * many.len());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::radix::testing::Random;

    #[test]
    fn equals_a_map() {
        let random = &mut Random(7);
        for round in 0..200 {
            let (mut children, mut model) = (Children::default(), BTreeMap::new());
            for step in 0..200 {
                let content = random.below(1 + round % 40);
                if random.chance(if step < 100 { 70 } else { 30 }) {
                    if model.insert(content, step as NodeId).is_none() {
                        children.insert(content, step as NodeId);
                    } else {
                        model.insert(content, children.get(content).unwrap());
                    }
                } else {
                    children.remove(content);
                    model.remove(&content);
                }
                assert_eq!(children.is_empty(), model.is_empty());
                for content in 0..40 {
                    assert_eq!(children.get(content), model.get(&content).copied());
                }
            }
        }
        assert_eq!(size_of::<Children>(), 16);
    }
}
