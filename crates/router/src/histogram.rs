//! Histograms of durations, for metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Upper bounds of the buckets for times to the first token, in seconds.
pub(crate) const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 16.0, 64.0];

/// Upper bounds of the buckets for durations of whole requests, in seconds. The bounds are OpenTelemetry's for
/// generative AI, with longer ones added.
pub(crate) const REQUEST_SECONDS: [f64; 16] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68];

/// Upper bounds of the buckets for durations of choices of an engine, in seconds.
pub(crate) const DECISION_SECONDS: [f64; 12] = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 5e-2];

/// Histogram of durations, with `N` buckets that have an upper bound and one for longer durations.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    beyond: AtomicU64,
    micros: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn new(bounds: &'static [f64; N]) -> Self {
        Self { bounds, buckets: [const { AtomicU64::new(0) }; N], beyond: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets.get(at).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// Returns the quantile `quantile` (0 to 1) of the durations, interpolated linearly within its bucket; None with
    /// fewer than `least` samples.
    pub(crate) fn quantile(&self, quantile: f64, least: u64) -> Option<Duration> {
        let counts = self.buckets.each_ref().map(|count| count.load(Relaxed));
        let all = counts.iter().sum::<u64>() + self.beyond.load(Relaxed);
        if all < least.max(1) {
            return None;
        }
        let (mut left, mut low) = (quantile * all as f64, 0.0);
        for (count, high) in counts.into_iter().zip(self.bounds) {
            if count > 0 && left <= count as f64 {
                return Some(Duration::from_secs_f64(low + (high - low) * left.max(0.0) / count as f64));
            }
            left -= count as f64;
            low = *high;
        }
        Some(Duration::from_secs_f64(low))
    }

    /// Returns the upper bound and the number of samples of each bucket, and the sum of all durations in seconds.
    pub(crate) fn read(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().chain([&self.beyond]).map(|count| count.load(Relaxed));
        (bounds.zip(counts).collect(), self.micros.load(Relaxed) as f64 / 1e6)
    }
}
