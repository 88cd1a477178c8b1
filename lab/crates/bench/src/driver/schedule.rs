//! The schedule of a run: the deadline of each operation.

use crate::error::Error;
use crate::options::Options;
use crate::plan::{Columns, Facts, Kind, Plan};

/// The plan's times, stretched so that the measured part fills the window, in ns from the origin, the moment the
/// warm-up begins.
pub(crate) struct Schedule {
    /// The deadline of each operation.
    pub(crate) due: Vec<u64>,
    /// True for each operation that is a lookup.
    pub(crate) lookups: Vec<bool>,
    /// The first measured operation; those before are the warm-up.
    pub(crate) first: usize,
    /// The first measured operation's deadline.
    pub(crate) start: u64,
    pub(crate) window: u64,
    pub(crate) measured: Facts,
}

impl Schedule {
    pub(crate) fn new(plan: &Plan, options: &Options) -> Result<Self, Error> {
        let Columns { times, kinds, .. } = plan.columns();
        let first = ((plan.len() as f64 * (options.warm_up / options.until)).ceil() as usize).min(plan.len());
        let measured = plan.facts_of(first..plan.len());
        let window = options.window(&measured)?;
        // Operations with one common time cannot be spread: they are all due at once.
        let scale = |time: u64| match measured.span_ns {
            0 => 0,
            span => u64::try_from(u128::from(time) * u128::from(window) / u128::from(span)).unwrap_or(u64::MAX),
        };
        let origin = times.first().copied().unwrap_or(0);
        let due: Vec<u64> = times.iter().map(|&time| scale(time - origin)).collect();
        if let Some(&last) = due.last()
            && last > window.saturating_mul(1_000)
        {
            return Err(Error::Options(format!(
                "warm_up {}: the operations before the measured part would take more than 1,000 windows",
                options.warm_up
            )));
        }
        Ok(Self {
            start: due.get(first).copied().unwrap_or(0),
            lookups: kinds.iter().map(|&kind| kind == Kind::Lookup as u8).collect(),
            due,
            first,
            window,
            measured,
        })
    }

    /// The time at which the window closes.
    pub(crate) fn close(&self) -> u64 {
        self.start + self.window
    }

    /// The deadlines of the lookups alone, and the number of those before the first measured one.
    pub(crate) fn of_lookups(&self) -> (Vec<u64>, usize) {
        let due = self.due.iter().zip(&self.lookups).filter(|(_, lookup)| **lookup).map(|(&due, _)| due).collect();
        let before = self.lookups[..self.first].iter().filter(|lookup| **lookup).count();
        (due, before)
    }
}
