//! Work on request bodies that takes long, which is done on separate threads so that the server's threads are not
//! delayed.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::Semaphore;

use crate::answers::refusal::Refusal;

/// Size of a body, in bytes, above which it is parsed on another thread, as parsing takes about a millisecond.
pub(crate) const LONG_BODY: usize = 512 << 10;

/// Size of a body, in bytes, up to which it is parsed on the server's thread, whatever its contents.
const SHORT_BODY: usize = 16 << 10;

/// Number of JSON objects and lists above which a body is parsed on another thread, as each can take a microsecond.
const MANY: usize = 2_000;

/// True if parsing a body may take a millisecond or more, judged by its size and number of braces and brackets. Those
/// within texts are counted as well, so that the judgement itself is fast.
pub(crate) fn takes_long(body: &[u8]) -> bool {
    body.len() > LONG_BODY || body.len() > SHORT_BODY && openings(body) > MANY
}

/// Counts the opening braces and brackets in the JSON of a body, including those within texts.
fn openings(body: &[u8]) -> usize {
    /// Number of bytes of the body in which brackets are counted by a one-byte counter, which thus cannot overflow.
    const COUNTED: usize = 240;
    // One bit tells the two apart, and few others: so they are counted at once, many bytes at a time.
    let count = |bytes: &[u8]| bytes.iter().fold(0_u8, |count, byte| count.wrapping_add(u8::from(byte | 0x20 == b'{')));
    body.chunks(COUNTED).map(|bytes| usize::from(count(bytes))).sum()
}

/// Pool of threads for work that takes long. At most as many tasks run at once as the machine has cores; further tasks
/// wait.
#[derive(Clone)]
pub(crate) struct LongWork(Arc<Semaphore>);

impl LongWork {
    pub(crate) fn new(cores: usize) -> Self {
        Self(Arc::new(Semaphore::new(cores)))
    }

    /// Runs `work` on a separate thread.
    ///
    /// # Errors
    /// [`Refusal`] if `work` panics.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        let turn = self.0.clone().acquire_owned().await.ok();
        let work = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        work.await.map_err(|_| failed())
    }

    /// Runs `work` on a body: on a separate thread if processing the body [takes long](takes_long), else on the present
    /// thread.
    ///
    /// # Errors
    /// [`Refusal`] if `work` panics on another thread.
    pub(crate) async fn run_on<T: Send + 'static>(
        &self,
        body: &Bytes,
        takes_long: bool,
        work: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        if !takes_long {
            return Ok(work(body));
        }
        let body = body.clone();
        // In a place of its own: nearly no body is long, and this is a part of what each request moves.
        Box::pin(self.run(move || work(&body))).await
    }
}

/// Makes the refusal of a request whose processing panicked.
pub(crate) fn failed() -> Refusal {
    let message = "internal error; the router's log has the details";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long() {
        assert!(takes_long(&vec![b' '; LONG_BODY + 1]));
        assert!(!takes_long(&vec![b'a'; LONG_BODY]));
        assert!(!takes_long("{},".repeat(MANY).as_bytes()), "no more than a moment");
        assert!(takes_long("{\"a\": []}, ".repeat(MANY).as_bytes()));
    }

    #[test]
    fn braces_and_brackets_are_counted() {
        let all: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let expected = all.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
        assert_eq!(openings(&all), expected);
        assert_eq!(openings(&[b'['; 1000]), 1000);
    }
}
