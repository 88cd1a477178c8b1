//! One shape for all indexes, so that one harness measures them.
//!
//! An adapter does what a user of that crate does and nothing more. Events and queries are turned into the
//! crate's own types before the clock starts; an interface that takes its argument by value gets it by value
//! and frees it on the clock, because that is its interface.

pub mod dynamo;
#[cfg(feature = "ours")]
pub mod ours;
#[cfg(feature = "ours")]
pub mod reader;
pub mod smg;

use crate::specs::Spec;
use crate::workload::PlainEvent;

pub trait Adapter: Sized {
    const NAME: &'static str;
    /// A description of what is measured, in a few words.
    const ABOUT: &'static str;
    /// True if an event has been applied when [`Adapter::apply`] returns. If not, store and remove cannot be timed
    /// apart, and only their sum is reported, with the time to drain.
    const INLINE: bool = true;
    /// Not measured with fewer engines than this, for an index that is only for more.
    const MORE_ENGINES_THAN: u32 = 0;

    type Event;
    type Query;

    /// An index for the engines of a workload, or why it cannot be had.
    fn build(spec: &Spec) -> Result<Self, String>;

    fn event(spelled: &PlainEvent) -> Self::Event;
    fn query(contents: &[u64]) -> Self::Query;

    /// Applies one event, once: some interfaces consume it. `false` if the index refused it.
    fn apply(&mut self, event: &mut Self::Event) -> bool;
    /// Returns when everything handed over has been applied.
    fn settle(&mut self) {}

    /// Looks up one query; on the clock. The answer is made, kept from being optimised away, and freed.
    fn find(&self, query: &mut Self::Query);
    /// The depth of every engine that has any, sorted by engine; off the clock.
    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)>;

    /// Returns the index's own account of its memory, if it gives one.
    fn accounting(&self) -> Option<String> {
        None
    }
}

/// An index that can be read while it is written.
pub trait ConcurrentAdapter: Adapter<Event: Send, Query: Send> {
    /// True if an event can be applied many times (not consumed).
    const REUSABLE: bool;

    type Reader: Sync;
    type Writer: Send;

    fn split(&mut self) -> (&Self::Reader, &mut Self::Writer);
    fn find_in(reader: &Self::Reader, query: &mut Self::Query);
    /// Applies the events and returns when they have been applied.
    fn apply_in(reader: &Self::Reader, writer: &mut Self::Writer, events: &mut [Self::Event]);
}

/// The name under which an index that knows workers by name knows an engine.
pub fn engine_name(engine: u32) -> String {
    format!("http://engine-{engine:05}.fleet:8000")
}

/// Number of an engine of that name.
#[cfg(feature = "ours")]
fn engine_number(name: &str) -> u32 {
    name.chars().filter(char::is_ascii_digit).take(5).collect::<String>().parse().expect("an engine's name")
}
