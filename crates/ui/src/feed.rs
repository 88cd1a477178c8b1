//! Feed of the web page's data: turns states of a service or router into server-sent events for each client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;

/// Maximum number of bytes queued for a viewer (a connected client). A viewer that exceeds it gets the whole state once
/// it has read its queue.
const WAITING: usize = 1 << 20;

/// Error for a viewer (a connected client) that exceeds the maximum number of viewers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyViewers {
    /// Number of viewers connected at present.
    pub viewers: usize,
}

/// State and growing lists that are sent to viewers (connected clients) when they change.
#[derive(Debug)]
pub struct Feed {
    most: usize,
    watching: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Option<String>,
    lists: BTreeMap<&'static str, VecDeque<String>>,
    queues: Vec<Arc<Mutex<Queue>>>,
    closed: bool,
}

/// Queue of events not yet sent to one viewer.
#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Bytes>,
    bytes: usize,
    /// True if the next event for the viewer must be the whole state, because it is new or its queue overflowed.
    behind: bool,
    closed: bool,
    waker: Option<Waker>,
}

/// Viewer: one client connected to a [`Feed`], unregistered when dropped.
#[derive(Debug)]
pub struct Viewer {
    feed: Arc<Feed>,
    queue: Arc<Mutex<Queue>>,
}

impl Feed {
    /// Creates a feed for at most `most` viewers (connected clients).
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, watching: AtomicUsize::new(0), inner: Mutex::default() })
    }

    /// Returns the number of viewers (connected clients). If it is 0, [`Feed::update`] need not be called.
    #[must_use]
    pub fn viewers(&self) -> usize {
        self.watching.load(Relaxed)
    }

    /// Registers a viewer (a connected client), which gets the whole state at the next [`Feed::update`].
    ///
    /// # Errors
    /// [`TooManyViewers`] if the maximum number is reached.
    pub fn watch(self: &Arc<Self>) -> Result<Viewer, TooManyViewers> {
        let mut inner = self.inner.lock();
        if inner.queues.len() >= self.most {
            return Err(TooManyViewers { viewers: inner.queues.len() });
        }
        let queue = Queue { behind: true, closed: inner.closed, ..Queue::default() };
        let queue = Arc::new(Mutex::new(queue));
        inner.queues.push(queue.clone());
        self.watching.store(inner.queues.len(), Relaxed);
        Ok(Viewer { feed: self.clone(), queue })
    }

    /// Sets the state, a JSON object whose null fields are dropped, and sends it to all viewers if it has changed.
    pub fn update(&self, mut state: Value) {
        drop_nulls(&mut state);
        let state = state.to_string();
        let mut inner = self.inner.lock();
        let behind: Vec<_> = inner.queues.iter().filter(|queue| queue.lock().wants_everything()).cloned().collect();
        if behind.len() < inner.queues.len() && inner.state.as_ref() != Some(&state) {
            inner.send(&event("state", &state));
        }
        if !behind.is_empty() {
            let whole = event("whole", &inner.everything(&state));
            behind.iter().for_each(|queue| queue.lock().start_with(whole.clone()));
        }
        inner.state = Some(state);
    }

    /// Appends items to a named list, and sends them to all viewers. The last `keep` items of the list are kept for
    /// viewers that connect later.
    pub fn append(&self, list: &'static str, keep: usize, items: impl IntoIterator<Item = Value>) {
        let text = |mut item: Value| {
            drop_nulls(&mut item);
            item.to_string()
        };
        let items: Vec<String> = items.into_iter().map(text).collect();
        if items.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        inner.send(&event("more", &format!("{{\"list\":\"{list}\",\"items\":[{}]}}", items.join(","))));
        let kept = inner.lists.entry(list).or_default();
        kept.extend(items);
        let over = kept.len().saturating_sub(keep);
        kept.drain(..over);
    }

    /// Closes the feed: ends the events of all present viewers, and of any viewer that connects later.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.queues.iter().for_each(|queue| queue.lock().close());
    }
}

impl Inner {
    fn send(&self, event: &Bytes) {
        self.queues.iter().for_each(|queue| queue.lock().push(event.clone()));
    }

    fn everything(&self, state: &str) -> String {
        let mut out = format!("{{\"state\":{state},\"lists\":{{");
        for (at, (name, items)) in self.lists.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            out.push_str(&format!("{comma}\"{name}\":["));
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                out.push_str(item);
            }
            out.push(']');
        }
        out.push_str("}}");
        out
    }
}

impl Queue {
    /// True if the viewer must get the whole state next, and has read all events in its queue.
    fn wants_everything(&self) -> bool {
        self.behind && self.events.is_empty()
    }

    fn start_with(&mut self, whole: Bytes) {
        self.behind = false;
        self.push(whole);
    }

    fn push(&mut self, event: Bytes) {
        if self.behind || self.closed {
            return;
        }
        // An event always fits into an empty queue, however large.
        if !self.events.is_empty() && self.bytes + event.len() > WAITING {
            self.behind = true;
            return;
        }
        self.bytes += event.len();
        self.events.push_back(event);
        self.wake();
    }

    fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Viewer {
    /// Returns the next bytes to send to the client, in the format `text/event-stream`; `None` after [`Feed::close`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut queue = self.queue.lock();
        if let Some(event) = queue.events.pop_front() {
            queue.bytes -= event.len();
            return Poll::Ready(Some(event));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut inner = self.feed.inner.lock();
        inner.queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.feed.watching.store(inner.queues.len(), Relaxed);
    }
}

/// Formats a server-sent event. `data` must be a single line, such as JSON without line breaks.
fn event(name: &str, data: &str) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// Removes null fields from a JSON value, in objects at any depth.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads all queued events of a viewer, each as name and data.
    fn read(viewer: &mut Viewer) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        while let Poll::Ready(Some(bytes)) = viewer.poll_next(&mut Context::from_waker(Waker::noop())) {
            let text = std::str::from_utf8(&bytes).expect("UTF-8").to_owned();
            let (head, data) = text.strip_suffix("\n\n").and_then(|text| text.split_once('\n')).expect("two lines");
            let data = data.strip_prefix("data: ").expect("data");
            let name = head.strip_prefix("event: ").expect("a name").to_owned();
            events.push((name, serde_json::from_str(data).expect("JSON in one line")));
        }
        events
    }

    /// State that a client of the feed has built from the events received.
    #[derive(Default)]
    struct ClientState {
        state: Value,
        history: Vec<Value>,
        wholes: usize,
    }

    impl ClientState {
        fn read(&mut self, viewer: &mut Viewer) {
            for (name, data) in read(viewer) {
                match &*name {
                    "whole" => {
                        self.wholes += 1;
                        self.state = data["state"].clone();
                        self.history = data["lists"]["history"].as_array().cloned().unwrap_or_default();
                    }
                    "state" => self.state = data,
                    _ => self.history.extend(data["items"].as_array().cloned().expect("items")),
                }
            }
        }
    }

    #[test]
    fn those_who_come_get_everything_and_then_each_new_state() {
        let feed = Feed::new(4);
        feed.append("history", 2, [json!(1), json!(2), json!(3)]);
        let mut first = feed.watch().expect("room");
        assert_eq!(read(&mut first), []);
        feed.update(json!({"a": {"x": 1, "y": null}, "b": 2}));
        let whole = json!({"state": {"a": {"x": 1}, "b": 2}, "lists": {"history": [2, 3]}});
        assert_eq!(read(&mut first), [("whole".to_owned(), whole)]);
        let mut second = feed.watch().expect("room");
        feed.update(json!({"a": {"x": 1, "z": null}, "b": null}));
        assert_eq!(read(&mut first), [("state".to_owned(), json!({"a": {"x": 1}}))]);
        assert_eq!(read(&mut second)[0].1["state"], json!({"a": {"x": 1}}));
        feed.append("history", 2, [json!(4)]);
        let more = [("more".to_owned(), json!({"list": "history", "items": [4]}))];
        assert_eq!((read(&mut first), read(&mut second)), (more.to_vec(), more.to_vec()));
        feed.update(json!({"a": {"x": 1}}));
        assert_eq!(read(&mut first), [], "nothing has changed");
    }

    #[test]
    fn who_reads_too_slowly_ends_up_with_the_same() {
        let feed = Feed::new(4);
        let (mut quick, mut slow) = (feed.watch().expect("room"), feed.watch().expect("room"));
        let mut known = [ClientState::default(), ClientState::default()];
        let long = "x".repeat(WAITING / 10);
        for round in 0..100 {
            feed.update(json!({"round": round, "text": format!("{long}{round}"), (format!("only{round}")): 1}));
            feed.append("history", 1000, [json!(round)]);
            known[0].read(&mut quick);
            if round % 30 == 29 {
                known[1].read(&mut slow);
            }
        }
        known[1].read(&mut slow);
        // Two rounds: the missed state is sent once the queue has been read.
        for _ in 0..2 {
            feed.update(json!({"round": "last"}));
            known[1].read(&mut slow);
            known[0].read(&mut quick);
        }
        assert_eq!(known[0].state, json!({"round": "last"}));
        assert_eq!(known[1].state, json!({"round": "last"}));
        assert_eq!(known[0].history, (0..100).map(Value::from).collect::<Vec<_>>());
        assert_eq!(known[1].history, known[0].history);
        assert_eq!(known[0].wholes, 1);
        assert!(known[1].wholes > 1, "it was never behind");
    }

    #[test]
    fn so_many_and_no_more_and_an_end() {
        let feed = Feed::new(2);
        let (first, mut second) = (feed.watch().expect("room"), feed.watch().expect("room"));
        assert_eq!(feed.watch().err(), Some(TooManyViewers { viewers: 2 }));
        drop(first);
        assert_eq!(feed.viewers(), 1);
        let _third = feed.watch().expect("room");
        feed.close();
        assert!(matches!(second.poll_next(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
        drop(second);
        let mut late = feed.watch().expect("room");
        assert!(matches!(late.poll_next(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
    }
}
