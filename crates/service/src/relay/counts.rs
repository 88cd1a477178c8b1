//! What happened between a service and the log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counts since the service began.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $($(#[doc = $doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counts {
            /// Names, what each counts, and how many.
            pub(crate) fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((concat!("relay_", stringify!($name)), concat!($($doc),*), self.$name.load(Relaxed))),*]
            }
        }
    };
}

counts! {
    /// Messages that the log has acknowledged.
    published,
    /// Bytes of messages that the log has acknowledged.
    published_bytes,
    /// Messages sent again because they were not acknowledged in time.
    retries,
    /// Batches dropped because the queue was full. Readers then get all that the stream holds.
    dropped,
    /// How often all that a stream holds was published.
    states,
    /// Messages read from the log.
    read,
    /// Bytes of messages read from the log.
    read_bytes,
    /// How often a relay was asked for all that a stream holds.
    asked,
    /// Messages left out because nothing can be done with them: of other subjects, of long ago, or of streams that cannot
    /// be registered.
    refused,
    /// Snapshots written to the log's object store.
    stored_snapshots,
    /// Snapshots that could not be written to it, or read from it.
    failed_snapshots,
    /// Messages removed from the log because no snapshot in its object store needs them.
    purged,
    /// Readers' connections ended because they did not show the key.
    reader_keys_refused,
    /// Readers' connections ended because they followed nothing in time.
    silent_readers,
    /// Readers' connections ended because they followed nothing or were silent, and others came.
    readers_gave_way,
    /// Readers' connections ended because they took nothing for long.
    stalled_readers,
    /// Readers' connections refused because there were too many.
    too_many_readers,
    /// How often reading the log began anew, at the place where it ended.
    reconnects,
}
