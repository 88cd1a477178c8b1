//! A policy that has a name.

use crate::error::Error;
use crate::options::Options;
use crate::policy::Policy;

/// Any policy.
pub type BoxedPolicy = Box<dyn Policy>;

/// A name, and how the policy of that name is made.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// The name, as users give it.
    pub name: &'static str,
    /// Makes the policy with the options that it takes, and the seed of what it leaves to chance.
    pub make: fn(&mut Options, u64) -> Result<BoxedPolicy, Error>,
}

/// A made policy, as [`PolicyEntry::make`] returns it.
///
/// # Errors
/// Those of making it.
pub fn boxed<P: Policy + 'static>(made: Result<P, Error>) -> Result<BoxedPolicy, Error> {
    Ok(Box::new(made?))
}
