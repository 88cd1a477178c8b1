//! Two publishers that are connected under one name: the engine and its old connection, of which nobody has noticed that
//! it is lost; two engines that are set up alike; or somebody who would be taken for the engine.
//!
//! The first that came is read, and the others wait until it is gone: see `bound`. Which of them is the engine only the
//! replay socket can tell, by a batch that came after the second. Until then, or until there is one, nothing is trusted.

/// Other publishers under the name of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::machine) enum Rivalry {
    /// There is one publisher, or it is known that the first is the engine.
    #[default]
    None,
    /// Another publisher waits.
    Present,
    /// Another publisher has taken the first one's place: what comes by it is to be proven.
    Over,
}

impl Rivalry {
    pub(in crate::machine) fn disconnected(&mut self, can_replay: bool) {
        *self = if *self == Self::None || !can_replay { Self::None } else { Self::Over };
    }
}
