//! Messages that note where in the text each of them begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use parking_lot::Mutex;

/// Messages in a template that loops over them once: [`super::local`].
#[derive(Debug)]
pub(super) struct MeteredMessages {
    messages: Vec<Value>,
    /// Bytes of text so far.
    written: Arc<AtomicUsize>,
    begins: Mutex<Vec<usize>>,
}

impl MeteredMessages {
    pub(super) fn new(messages: Vec<Value>, written: Arc<AtomicUsize>) -> Arc<Self> {
        let begins = Mutex::new(Vec::with_capacity(messages.len()));
        Arc::new(Self { messages, written, begins })
    }

    /// Returns how much text there was when each message was taken out of the list.
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
