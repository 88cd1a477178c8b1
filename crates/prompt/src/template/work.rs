//! The work that a template may do for a chat.

/// The most work: an instruction each, or 64 bytes of what it makes. More is for long chats alone. A template may go
/// through the messages again for each of them, but not of a long chat.
pub(super) const FUEL: [u64; 2] = [1_000_000, 8_000_000];

/// Work that a template needs for a chat at least, for each of its messages, and for 64 bytes of text.
const AT_LEAST: u64 = 200_000;
const A_MESSAGE: u64 = 300;
const A_STEP: u64 = 8;

/// The place among [`FUEL`] of what a chat is worth: of so many messages, with so many bytes of text.
pub(super) fn fuel_for(messages: usize, bytes: usize) -> usize {
    let needs = AT_LEAST + A_MESSAGE * messages as u64 + A_STEP * (bytes as u64 / 64);
    usize::from(needs > FUEL[0])
}
