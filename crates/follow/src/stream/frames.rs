//! Frames of engines' messages, which are batches or answers.

use super::transport::TransportEvent;
use kvatlas_stream::zmtp::Head;

/// Topic, number, payload.
pub(super) fn live_batch(head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (head.frames(), number(head)) {
        (Some(2), Some(seq)) if seq != u64::MAX => TransportEvent::Live { seq, payload },
        _ => TransportEvent::BadFrames,
    }
}

/// An empty frame, topic (not from older engines), number, payload. The number -1 is the end.
pub(super) fn reply(head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (head.frames(), number(head)) {
        (Some(2 | 3), Some(u64::MAX)) => TransportEvent::ReplyEnd,
        (Some(2 | 3), Some(seq)) => TransportEvent::Reply { seq, payload },
        _ => TransportEvent::BadFrames,
    }
}

fn number(head: &Head) -> Option<u64> {
    Some(u64::from_be_bytes(head.back(0)?.try_into().ok()?))
}
