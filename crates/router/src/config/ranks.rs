//! Data-parallel ranks of an engine: their numbers, and the numbers that requests use for them.

use serde::Deserialize;

/// The ranks that an engine has. Where several servers share the ranks of one deployment, those of a server begin
/// anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "ranks must be how many there are, or a list of their numbers")]
pub enum Ranks {
    /// Number of ranks, which are counted from 0.
    Count(u32),
    /// Ranks of these numbers, in ascending order.
    Numbers(Vec<u32>),
}

/// The kind of numbers by which requests name a rank of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankHeader {
    /// Numbers counted from 0 in each server.
    #[default]
    Local,
    /// The ranks' own numbers.
    Global,
}

impl Default for Ranks {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Ranks {
    /// Number of ranks.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count as usize,
            Self::Numbers(numbers) => numbers.len(),
        }
    }

    /// Numbers of the ranks, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let (count, numbers) = match self {
            Self::Count(count) => (*count, &[][..]),
            Self::Numbers(numbers) => (0, &numbers[..]),
        };
        (0..count).chain(numbers.iter().copied())
    }

    /// Position of the rank of this number among the engine's ranks.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<usize> {
        match self {
            Self::Count(count) => (number < *count).then_some(number as usize),
            Self::Numbers(numbers) => numbers.binary_search(&number).ok(),
        }
    }

    /// True if their numbers are as the rest of the router needs them.
    pub(crate) fn are_valid(&self) -> bool {
        (1..=1024).contains(&self.count())
            && match self {
                Self::Count(_) => true,
                Self::Numbers(numbers) => numbers.is_sorted_by(|one, next| one < next),
            }
    }

    /// Value of the header that selects a rank; none if the engine has no choice of ranks.
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
