//! An outage of all engines that requests could go to, as the log tells it: once when it begins, every minute, and when it
//! ends, with numbers. Not once a request: there may be thousands a second.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two lines about an outage.
const EVERY: Duration = Duration::from_secs(60);

/// Time after which an outage is over: no request lacked an engine, and a waiting one was placed.
const CALM: Duration = Duration::from_secs(1);

/// State of an outage.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<Numbers>>);

struct Numbers {
    since: Instant,
    /// Time of the last request that found no engine or was refused.
    last: Instant,
    /// Time of the last line.
    told: Instant,
    met: u64,
    refused: u64,
    placed: u64,
}

impl Outage {
    /// Records a request without an engine; `states` describes the engines.
    pub(super) fn begin(&self, patience: Duration, states: impl FnOnce() -> Option<String>) {
        let now = Instant::now();
        let mut outage = self.0.lock();
        if let Some(numbers) = outage.as_mut() {
            numbers.met += 1;
            numbers.last = now;
            return;
        }
        *outage = Some(Numbers { since: now, last: now, told: now, met: 1, refused: 0, placed: 0 });
        drop(outage);
        let states = states().unwrap_or_else(|| "the router has no engines".to_owned());
        if patience.is_zero() {
            tracing::warn!("no engine is up for a request, which is refused, as are others: {states}");
        } else {
            tracing::warn!("no engine is up for a request: it waits for {patience:?}, as do others: {states}");
        }
    }

    /// Notes that a request is refused because of the outage.
    pub(super) fn refuse(&self) {
        if let Some(numbers) = self.0.lock().as_mut() {
            numbers.refused += 1;
            numbers.last = Instant::now();
        }
    }

    /// Notes that an engine has taken a request that waited.
    pub(super) fn place(&self) {
        if let Some(numbers) = self.0.lock().as_mut() {
            numbers.placed += 1;
        }
    }

    /// Logs an outage when that is due; `waiting`: number of waiting requests.
    pub(super) fn look(&self, waiting: usize) {
        let now = Instant::now();
        let mut outage = self.0.lock();
        let Some(numbers) = outage.as_mut() else { return };
        let Numbers { met, refused, placed, .. } = *numbers;
        let (took, calm) = ((now - numbers.since).as_secs_f64(), now - numbers.last);
        if waiting == 0 && (calm >= EVERY || (placed > 0 && calm >= CALM)) {
            let took = took - calm.as_secs_f64();
            tracing::info!(
                "the outage is over: for {took:.1} s no engine was up for {met} requests, of which {placed} waited and \
                 were placed, and {refused} were refused"
            );
            *outage = None;
        } else if now - numbers.told >= EVERY {
            numbers.told = now;
            tracing::warn!(
                "still no engine is up: in {took:.0} s for {met} requests, of which {placed} were placed, {refused} were \
                 refused, and {waiting} wait"
            );
        }
    }
}
