//! Parts of a machine's state, each with what it alone decides. None of them knows the machine.

mod batch;
mod doubt;
mod goal;
mod life;
mod question;
mod restore;
mod rivalry;
mod silence;
mod unknown_events;

pub(super) use batch::StoredBatch;
pub(super) use doubt::Doubt;
pub(super) use goal::Goal;
pub(super) use life::Life;
pub(super) use question::Question;
pub(super) use restore::RestoreState;
pub(super) use rivalry::Rivalry;
pub(super) use silence::Silence;
pub(super) use unknown_events::UnknownEvents;
