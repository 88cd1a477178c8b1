//! Data-parallel ranks of an engine: their ids, and the header values by which requests select a rank.

use serde::Deserialize;

/// Data-parallel ranks of an engine. If several servers share the ranks of one deployment, the ids of a server's ranks
/// need not begin at 0.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "ranks must be how many there are, or a list of their numbers")]
pub enum Ranks {
    /// Number of ranks, with ids counted from 0.
    Count(u32),
    /// Ids of the ranks, in ascending order.
    Numbers(Vec<u32>),
}

/// Numbering of ranks in the request header that selects a rank of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankHeader {
    /// Position of the rank within its server, counted from 0.
    #[default]
    Local,
    /// Id of the data-parallel rank, unique over all servers of the deployment.
    Global,
}

impl Default for Ranks {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Ranks {
    /// Number of ranks of the engine.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count as usize,
            Self::Numbers(numbers) => numbers.len(),
        }
    }

    /// Ids of the ranks, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let (count, numbers) = match self {
            Self::Count(count) => (*count, &[][..]),
            Self::Numbers(numbers) => (0, &numbers[..]),
        };
        (0..count).chain(numbers.iter().copied())
    }

    /// Returns the position of the rank with the id `number` among the engine's ranks; None if no rank has the id.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<usize> {
        match self {
            Self::Count(count) => (number < *count).then_some(number as usize),
            Self::Numbers(numbers) => numbers.binary_search(&number).ok(),
        }
    }

    /// True if there are 1 to 1024 ranks, and their ids ascend.
    pub(crate) fn are_valid(&self) -> bool {
        (1..=1024).contains(&self.count())
            && match self {
                Self::Count(_) => true,
                Self::Numbers(numbers) => numbers.is_sorted_by(|one, next| one < next),
            }
    }

    /// Returns the value of the request header that selects the rank with the id `number`; None if the engine has only
    /// one rank.
    pub(crate) fn header(&self, number: u32, header: RankHeader) -> Option<u32> {
        if self.count() < 2 {
            return None;
        }
        match header {
            RankHeader::Global => Some(number),
            RankHeader::Local => self.place(number).and_then(|place| u32::try_from(place).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Ranks {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn numbers_and_places() {
        let (counted, numbered) = (read("2"), read("[4, 5]"));
        assert_eq!(counted.numbers().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(numbered.numbers().collect::<Vec<_>>(), [4, 5]);
        assert_eq!((counted.count(), numbered.count()), (2, 2));
        assert_eq!((counted.place(1), counted.place(2)), (Some(1), None));
        assert_eq!((numbered.place(5), numbered.place(1)), (Some(1), None));
    }

    #[test]
    fn what_requests_call_them() {
        let numbered = read("[4, 5]");
        assert_eq!(numbered.header(5, RankHeader::Local), Some(1));
        assert_eq!(numbered.header(5, RankHeader::Global), Some(5));
        assert_eq!(read("2").header(1, RankHeader::Local), Some(1));
        assert_eq!(read("[3]").header(3, RankHeader::Global), None, "there is no choice");
    }

    #[test]
    fn what_cannot_be() {
        for wrong in ["0", "1025", "[]", "[1, 1]", "[2, 1]"] {
            assert!(!read(wrong).are_valid(), "{wrong}");
        }
        let error = serde_json::from_str::<Ranks>("\"two\"").unwrap_err();
        assert!(error.to_string().contains("or a list of their numbers"), "{error}");
    }
}
