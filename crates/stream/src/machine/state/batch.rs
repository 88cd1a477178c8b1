//! A batch that waits for its turn.

/// A batch that waits.
#[derive(Debug)]
pub(in crate::machine) struct StoredBatch<P> {
    pub(in crate::machine) payload: P,
    /// True if the batch came by the live connection.
    pub(in crate::machine) live: bool,
}

impl<P: AsRef<[u8]>> AsRef<[u8]> for StoredBatch<P> {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref()
    }
}
