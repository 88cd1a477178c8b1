//! Counts of messages and snapshots between a service and the log.

use crate::counting::counts;

counts! {
    /// Counts since the service began.
    "relay_"

    /// Messages that the log has acknowledged.
    published,
    /// Bytes of messages that the log has acknowledged.
    published_bytes,
    /// Messages sent again because they were not acknowledged in time.
    retries,
    /// Batches dropped because the queue was full. Readers then get all that the stream holds.
    dropped,
    // check_words: the text is the help of a metric
    /// How often all that a stream holds was published.
    states,
    /// Messages read from the log.
    read,
    /// Bytes of messages read from the log.
    read_bytes,
    // check_words: the text is the help of a metric
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
    // check_words: the text is the help of a metric
    /// How often reading the log began anew, at the place where it ended.
    reconnects,
}
