//! How many messages libzmq reads ahead of us. It counts messages, and they may have a byte or 16 MiB: so the number
//! follows their size.

/// Bytes that a socket may read ahead, as far as the last messages tell the size of the next ones.
const BYTES: usize = 16 << 20;
/// Messages at most. Beyond that they wait at the engine, which keeps 100,000 by default.
const MOST: i32 = 1_000;
/// Messages at least: with fewer, the two threads would wait for each other.
const LEAST: i32 = 4;
/// As long as nothing is known: 16 of the largest are 256 MiB.
pub(crate) const FIRST: i32 = 16;

/// The number for one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAhead {
    messages: i32,
    /// Messages in a row that are small enough for twice as many.
    small: i32,
}

impl ReadAhead {
    pub(crate) fn new() -> Self {
        Self { messages: FIRST, small: 0 }
    }

    /// A message of so many bytes was read. The number from now on, if it changes: down at once, up by and by.
    pub(crate) fn after(&mut self, bytes: usize) -> Option<i32> {
        let fits = i32::try_from(BYTES / bytes.max(1)).unwrap_or(MOST).clamp(LEAST, MOST);
        if fits < self.messages {
            *self = Self { messages: fits, small: 0 };
            return Some(fits);
        }
        let more = (self.messages * 2).min(MOST);
        self.small = if fits >= more && more > self.messages { self.small + 1 } else { 0 };
        if self.small < self.messages.max(FIRST) {
            return None;
        }
        *self = Self { messages: more, small: 0 };
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_size_of_messages() {
        let mut ahead = ReadAhead::new();
        let mut feed = |bytes, times: usize| (0..times).filter_map(|_| ahead.after(bytes)).last();
        assert_eq!(feed(1000, FIRST as usize - 1), None);
        assert_eq!(feed(1000, 1), Some(2 * FIRST));
        assert_eq!(feed(1000, 10_000), Some(MOST));
        assert_eq!(feed(1000, 10_000), None, "there is a most");
        assert_eq!(feed(1 << 20, 1), Some(16), "down at once");
        assert_eq!(feed(16 << 20, 1), Some(LEAST));
        assert_eq!(feed(1 << 20, 1000), Some(16), "as many as fit");
        assert_eq!(feed(0, 10_000), Some(MOST));
        // Now and then a large one: never more than fit of those.
        for _ in 0..100 {
            feed(100, 50);
            feed(2 << 20, 1);
        }
        assert!(ahead.messages <= 32, "{ahead:?}");
    }
}
