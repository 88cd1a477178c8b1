//! All policies by name.

use crate::cost::Kvatlas;
use crate::error::Error;
use crate::options::Options;
use crate::policies;
use crate::policy::Policy;

/// The name of our own policy.
const OURS: &str = "kvatlas";

/// The names of all policies, ours first.
pub fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once(OURS).chain(policies::NAMES.iter().copied())
}

/// The policy called `name`: `kvatlas`, or one of [`policies::NAMES`].
///
/// # Errors
/// Code `unknown_policy`, or `bad_option` for an option that it does not have or cannot use.
pub fn by_name(name: &str, mut options: Options, seed: u64) -> Result<Box<dyn Policy>, Error> {
    if name == OURS {
        let policy = Kvatlas::new(&mut options, seed)?;
        options.finish(name)?;
        return Ok(Box::new(policy));
    }
    if policies::NAMES.contains(&name) {
        return policies::by_name(name, options, seed);
    }
    let names: Vec<&str> = names().collect();
    Err(Error::new("unknown_policy", format!("no policy {name:?}: there are {}", names.join(", "))))
}
