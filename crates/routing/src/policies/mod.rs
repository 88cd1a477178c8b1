//! Policies by name: the plain ones, and those of other routers by their published formulas, with their owners' defaults.

mod random;

use crate::error::Error;
use crate::options::Options;
use crate::policy::Policy;

/// The names of all policies in here.
pub const NAMES: &[&str] = &["random"];

/// The policy called `name`.
///
/// # Errors
/// Code `unknown_policy`, or `bad_option` for an option that it does not have or cannot use.
pub fn by_name(name: &str, mut options: Options, seed: u64) -> Result<Box<dyn Policy>, Error> {
    let policy: Box<dyn Policy> = match name {
        "random" => Box::new(random::Random::new(&mut options, seed)?),
        _ => {
            let names = NAMES.join(", ");
            return Err(Error::new("unknown_policy", format!("no policy {name:?}: there are {names}")));
        }
    };
    options.finish(name)?;
    Ok(policy)
}
