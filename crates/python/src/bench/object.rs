//! Any Python object under replay. One thread applies events, taking the interpreter for each; a query thread takes it
//! for each lookup. Lists of ints are made before the clock starts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kvatlas_bench::{Counts, Error, Subject};
use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;
use crate::scalars::{block_hash, describe};

/// The bound methods of an object.
pub(super) struct Methods {
    store: Py<PyAny>,
    remove: Py<PyAny>,
    clear: Py<PyAny>,
    find: Py<PyAny>,
    holdings: Option<Py<PyAny>>,
}

impl Methods {
    pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let method = |name: &str| {
            let method = object.getattr(name).ok().filter(|method| method.is_callable());
            method.map(Bound::unbind).ok_or_else(|| {
                errors::wrong_type(&format!(
                    "index must be the name of a rung, or have the methods store, remove, clear and find; {} has no {name}",
                    describe(object)
                ))
            })
        };
        Ok(Self {
            store: method("store")?,
            remove: method("remove")?,
            clear: method("clear")?,
            find: method("find")?,
            holdings: method("holdings").ok(),
        })
    }
}

/// An event with everything that Python is given of it.
pub(super) enum Message {
    Store { worker: WorkerId, parent: Option<u64>, names: Py<PyList>, contents: Py<PyList> },
    Remove { worker: WorkerId, names: Py<PyList> },
    Clear { worker: WorkerId },
}

struct Inner {
    methods: Methods,
    applied: AtomicU64,
    errors: AtomicU64,
    first: Mutex<Option<String>>,
    given_up: AtomicBool,
}

impl Inner {
    fn work(&self, queue: &Receiver<Message>) {
        for message in queue {
            if self.given_up.load(Ordering::Relaxed) {
                return;
            }
            Python::attach(|py| {
                self.count(py, self.apply(py, &message));
                // The lists go while the interpreter is held.
                drop(message);
            });
            self.applied.fetch_add(1, Ordering::Release);
        }
    }

    fn apply(&self, py: Python<'_>, message: &Message) -> PyResult<()> {
        match message {
            Message::Store { worker, parent, names, contents } => {
                self.methods.store.call1(py, (*worker, *parent, names, contents))
            }
            Message::Remove { worker, names } => self.methods.remove.call1(py, (*worker, names)),
            Message::Clear { worker } => self.methods.clear.call1(py, (*worker,)),
        }
        .map(drop)
    }

    fn count(&self, py: Python<'_>, outcome: PyResult<()>) {
        if let Err(error) = outcome {
            self.errors.fetch_add(1, Ordering::Relaxed);
            let words = error.value(py).repr().map_or_else(|_| error.to_string(), |words| words.to_string());
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(words);
        }
    }
}

/// The object and its event thread.
pub(super) struct Object {
    inner: Arc<Inner>,
    /// `None` only while dropping.
    queue: Option<Sender<Message>>,
    sent: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Object {
    pub(super) fn new(methods: Methods) -> Result<Self, Error> {
        let inner = Arc::new(Inner {
            methods,
            applied: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first: Mutex::new(None),
            given_up: AtomicBool::new(false),
        });
        let (queue, received) = channel();
        let working = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("kvatlas-events".to_owned());
        let thread = thread.spawn(move || working.work(&received));
        let thread = thread.map_err(|error| Error::Index(format!("no event thread: {error}")))?;
        Ok(Self { inner, queue: Some(queue), sent: AtomicU64::new(0), thread: Mutex::new(Some(thread)) })
    }

    fn list(py: Python<'_>, hashes: impl ExactSizeIterator<Item = u64>) -> Py<PyList> {
        // Ints can always be made, memory permitting; without memory Python itself gives up.
        PyList::new(py, hashes).map_or_else(|_| PyList::empty(py).unbind(), Bound::unbind)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.queue = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Subject for Object {
    type Message = Message;
    type Query = Py<PyList>;
    type Lane = ();

    fn message(&self, change: Change) -> Message {
        fn list(py: Python<'_>, names: &[BlockHash]) -> Py<PyList> {
            Object::list(py, names.iter().map(|name| name.0))
        }
        let worker = change.worker();
        Python::attach(|py| match change {
            Change::Store { parent, block_hashes, content_hashes, .. } => Message::Store {
                worker,
                parent: parent.map(|parent| parent.0),
                names: list(py, &block_hashes),
                contents: Self::list(py, content_hashes.iter().copied()),
            },
            Change::Remove { block_hashes, .. } => Message::Remove { worker, names: list(py, &block_hashes) },
            // A plan drops nobody; to forget all blocks of a worker is the same to a lookup.
            Change::Clear { .. } | Change::Drop { .. } => Message::Clear { worker },
        })
    }

    fn query(&self, contents: &[u64]) -> Py<PyList> {
        Python::attach(|py| Self::list(py, contents.iter().copied()))
    }

    fn lane(&self) {}

    fn send(&self, message: Message) {
        if let Some(queue) = &self.queue {
            // Only a panic ends the thread early; then events are never applied, which is told.
            let _ = queue.send(message);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn applied(&self) -> u64 {
        self.inner.applied.load(Ordering::Acquire)
    }

    fn flush(&self) {
        while self.applied() < self.sent.load(Ordering::Relaxed) && !self.inner.given_up.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn lookup(&self, (): &mut (), query: &Py<PyList>) {
        Python::attach(|py| {
            let found = self.inner.methods.find.call1(py, (query,));
            self.inner.count(py, found.map(drop));
        });
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        scores.clear();
        Python::attach(|py| {
            let query = Self::list(py, contents.iter().copied());
            let found = self.inner.methods.find.call1(py, (query,)).map_err(|error| error.to_string())?;
            let found = found.bind(py);
            let wrong = || format!("find must return a dict of depths by worker, got {}", describe(found));
            for (worker, depth) in found.cast::<PyDict>().map_err(|_| wrong())?.iter() {
                let numbers = worker.extract::<WorkerId>().and_then(|worker| Ok((worker, depth.extract::<u32>()?)));
                let (worker, depth) = numbers.map_err(|error| format!("{}: {error}", wrong()))?;
                // Nothing held may be said by leaving it out or by a 0.
                if depth > 0 {
                    scores.push((worker, depth));
                }
            }
            Ok(())
        })
    }

    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>> {
        let holdings = self.inner.methods.holdings.as_ref()?;
        Python::attach(|py| {
            let held = holdings.call0(py).and_then(|held| {
                let pairs = held.bind(py).try_iter()?.map(|pair| {
                    let (worker, name): (WorkerId, Bound<'_, PyAny>) = pair?.extract()?;
                    Ok((worker, block_hash(&name, || "holdings()".to_owned())?))
                });
                pairs.collect::<PyResult<Vec<_>>>()
            });
            held.map_err(|error| self.inner.count(py, Err(error))).ok()
        })
    }

    fn counts(&self) -> Counts {
        let first_error = self.inner.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Counts { errors: self.inner.errors.load(Ordering::Relaxed), first_error, ..Counts::default() }
    }

    fn give_up(&self) {
        self.inner.given_up.store(true, Ordering::Relaxed);
    }
}
