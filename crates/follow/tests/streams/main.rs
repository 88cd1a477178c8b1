//! Streams over real sockets, against an engine's sockets with faults.

mod bench;
mod gaps;
mod impostors;
mod joining;
mod limits;
mod lives;
mod nodes;
mod relay;
mod restarts;
mod secured;
mod truth;
