//! Load test of any Python object as an index. One thread applies events and attaches to the interpreter for each
//! event; a query thread attaches for each lookup. Lists of ints are made before the clock starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvatlas_bench::{Counts, Error, EventThread, Subject};
use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;
use crate::scalars::{block_hash, describe};

/// Bound methods of the tested object, looked up once.
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

/// An event with its arguments already converted to Python objects.
pub(super) enum Message {
    Store { worker: WorkerId, parent: Option<u64>, names: Py<PyList>, contents: Py<PyList> },
    Remove { worker: WorkerId, names: Py<PyList> },
    Clear { worker: WorkerId },
}

struct Inner {
    methods: Methods,
    errors: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Inner {
    fn work(&self, message: Message) {
        Python::attach(|py| {
            self.count(py, self.apply(py, &message));
            // The lists go while the interpreter is held.
            drop(message);
        });
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
            self.first.lock().get_or_insert(words);
        }
    }
}

/// The tested Python object, and the thread that applies events to it.
pub(super) struct Object {
    inner: Arc<Inner>,
    events: EventThread<Message>,
}

impl Object {
    pub(super) fn new(methods: Methods) -> Result<Self, Error> {
        let inner = Arc::new(Inner { methods, errors: AtomicU64::new(0), first: Mutex::new(None) });
        let working = Arc::clone(&inner);
        let events = EventThread::new("kvatlas-events", move |message| working.work(message))?;
        Ok(Self { inner, events })
    }

    fn list(py: Python<'_>, hashes: impl ExactSizeIterator<Item = u64>) -> Py<PyList> {
        // Ints can always be made, memory permitting; without memory Python itself gives up.
        PyList::new(py, hashes).map_or_else(|_| PyList::empty(py).unbind(), Bound::unbind)
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
            // A plan drops no workers; to forget all blocks of a worker is the same to a lookup.
            Change::Clear { .. } | Change::Drop { .. } => Message::Clear { worker },
        })
    }

    fn query(&self, contents: &[u64]) -> Py<PyList> {
        Python::attach(|py| Self::list(py, contents.iter().copied()))
    }

    fn lane(&self) {}

    fn send(&self, message: Message) {
        self.events.send(message);
    }

    fn applied(&self) -> u64 {
        self.events.applied()
    }

    fn flush(&self) {
        self.events.flush();
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
        let first_error = self.inner.first.lock().clone();
        Counts { errors: self.inner.errors.load(Ordering::Relaxed), first_error, ..Counts::default() }
    }

    fn give_up(&self) {
        self.events.give_up();
    }
}
