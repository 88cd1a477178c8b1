//! ZMQ contexts, shared by streams: one has a thread for its connections and room for 1,023 sockets.

use std::sync::{Mutex, Once, PoisonError};

/// Each has four sockets, and for a moment the four before them.
const STREAMS_OF_ONE: usize = 120;

static ALL: Mutex<Vec<(zmq::Context, usize)>> = Mutex::new(Vec::new());

/// A stream's place in a context.
pub(crate) struct Place {
    pub(crate) context: zmq::Context,
    number: usize,
}

impl Place {
    pub(crate) fn take() -> Self {
        more_files();
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.iter().position(|(_, streams)| *streams < STREAMS_OF_ONE).unwrap_or_else(|| {
            all.push((zmq::Context::new(), 0));
            all.len() - 1
        });
        let (context, streams) = &mut all[number];
        *streams += 1;
        Self { context: context.clone(), number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, streams)) = all.get_mut(self.number) {
            *streams -= 1;
        }
    }
}

/// A stream has about ten open files, so that the usual limit of 1,024 would be reached with a hundred streams.
fn more_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match rlimit::increase_nofile_limit(1 << 20) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    });
}
