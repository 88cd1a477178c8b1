//! Two publishers that are connected under one name: the engine and its old connection, of which nobody has noticed that
//! it is lost; two engines that are set up alike; or somebody who would be taken for the engine.
//!
//! The first that came is read, and the others wait until it is gone: see `bound`. Which of them is the engine only the
//! replay socket can tell, by a batch that came after the second. Until then, or until there is one, nothing is trusted.

use super::Machine;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Rivalry {
    /// There is one publisher, or it is known that the first is the engine.
    #[default]
    None,
    /// Another publisher waits.
    Present,
    /// Another publisher has taken the first one's place: what comes by it is to be proven.
    Over,
}

impl Rivalry {
    pub(super) fn disconnected(&mut self, can_replay: bool) {
        *self = if *self == Self::None || !can_replay { Self::None } else { Self::Over };
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Another publisher has connected.
    pub fn rival(&mut self) {
        self.counts.rivals += 1;
        self.rivalry = Rivalry::Present;
        // What was proven before does not show that it is still the engine that is read.
        self.life.doubted();
    }

    /// The others are gone.
    pub fn alone(&mut self) {
        if self.rivalry == Rivalry::Present {
            self.rivalry = Rivalry::None;
        }
    }

    /// True if what comes may be of somebody else than the engine.
    pub(super) fn is_contested(&self) -> bool {
        match self.rivalry {
            Rivalry::None => false,
            Rivalry::Present => true,
            // Nothing has come yet: what is held was verified with the new connection.
            Rivalry::Over => self.life.sample().is_some(),
        }
    }
}
