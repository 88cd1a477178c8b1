//! Output of a chat template, compared with an earlier text that it mostly repeats, and the offsets of the messages in
//! the output.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use parking_lot::Mutex;

use crate::allowance;
use crate::prompt_tokens::PromptFailure;
use crate::rope::Rope;

/// Minimum initial capacity, in bytes, for output that the earlier text does not contain.
const ROOM: usize = 4096;

/// Maximum length of a template's output, in bytes; longer prompts are never tokenized.
const LONGEST: usize = 32 << 20;

/// Number of writes of a template between two checks of the deadline.
const LOOK: usize = 64;

/// Output of a chat template that shares its beginning with an earlier text.
pub(super) struct Output<'t> {
    earlier: &'t Rope<u8>,
    /// Number of leading bytes shared with the earlier text so far.
    same: usize,
    /// Bytes of the output after those shared with the earlier text.
    rest: Vec<u8>,
    /// Initial capacity for the bytes that the earlier text does not contain.
    room: usize,
    /// Number of bytes of output written so far, which [`MeteredMessages`] reads.
    written: Arc<AtomicUsize>,
    /// Number of times that the template has written output so far.
    writes: usize,
}

impl<'t> Output<'t> {
    /// Creates an empty output that shares its beginning with `earlier`. `room`: initial capacity, in bytes, for output
    /// that the earlier text does not contain.
    pub(super) fn after(earlier: &'t Rope<u8>, room: usize) -> Self {
        Self { earlier, same: 0, rest: Vec::new(), room: room.max(ROOM), written: Arc::default(), writes: 0 }
    }

    pub(super) fn written(&self) -> &Arc<AtomicUsize> {
        &self.written
    }

    /// Returns the number of bytes shared with the earlier text, and the bytes of the output after them.
    pub(super) fn text(self) -> (usize, Vec<u8>) {
        (self.same, self.rest)
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        let why_not = match () {
            () if self.same + self.rest.len() + bytes.len() > LONGEST => Some(PromptFailure::TooLong),
            () if self.writes.is_multiple_of(LOOK) && allowance::is_late() => Some(PromptFailure::TookTooLong),
            () => None,
        };
        if let Some(why_not) = why_not {
            allowance::fail(why_not);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut new = bytes;
        if self.rest.is_empty() {
            let same = self.earlier.common(self.same, bytes);
            self.same += same;
            new = &bytes[same..];
            if !new.is_empty() {
                self.rest.reserve(self.room.max(new.len()));
            }
        }
        self.rest.extend_from_slice(new);
        self.written.store(self.same + self.rest.len(), Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages for a template that loops over them once ([`super::local`]); the list records the output's length whenever
/// the template reads a message.
#[derive(Debug)]
pub(super) struct MeteredMessages {
    messages: Vec<Value>,
    /// Number of bytes of output so far.
    written: Arc<AtomicUsize>,
    begins: Mutex<Vec<usize>>,
}

impl MeteredMessages {
    pub(super) fn new(messages: Vec<Value>, written: Arc<AtomicUsize>) -> Arc<Self> {
        let begins = Mutex::new(Vec::with_capacity(messages.len()));
        Arc::new(Self { messages, written, begins })
    }

    /// Returns the length that the output had, in bytes, when the template read each message.
    pub(super) fn begins(&self) -> Vec<usize> {
        std::mem::take(&mut self.begins.lock())
    }
}

impl Object for MeteredMessages {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.messages.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(MeteredIterator { all: self.clone(), next: 0 }))
    }
}

struct MeteredIterator {
    all: Arc<MeteredMessages>,
    next: usize,
}

impl Iterator for MeteredIterator {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let message = self.all.messages.get(self.next)?.clone();
        self.next += 1;
        let begins = &mut self.all.begins.lock();
        begins.push(self.all.written.load(Relaxed));
        Some(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.all.messages.len() - self.next;
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_it_is_written() {
        let earlier = Rope::from(b"abc".to_vec()).join_slice(3, b"def");
        for (text, same) in
            [("", 0), ("abc", 3), ("abcdef", 6), ("abcdefgh", 6), ("abxdef", 2), ("x", 0), ("abcdeg", 5)]
        {
            for cut in 1..=text.len().max(1) {
                let mut output = Output::after(&earlier, 0);
                for piece in text.as_bytes().chunks(cut) {
                    output.write_all(piece).unwrap();
                }
                assert_eq!(output.written().load(Relaxed), text.len());
                assert_eq!(output.text(), (same, text.as_bytes()[same..].to_vec()), "{text} in pieces of {cut}");
            }
        }
    }
}
