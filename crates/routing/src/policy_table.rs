//! Table of routing policies by name.

use crate::cost::Kvatlas;
use crate::options::{Error, Options};
use crate::policies::PLAIN;
use crate::policy::{BoxedPolicy, PolicyEntry, boxed};

/// Table of the policies that a program offers, by name.
///
/// ```
/// use kvatlas_routing::PolicyTable;
///
/// let policies = PolicyTable::own();
/// assert_eq!(policies.names().next(), Some("kvatlas"));
/// assert!(policies.make("round-robin", Default::default(), 0).is_ok());
/// ```
#[derive(Debug, Clone)]
pub struct PolicyTable(Vec<PolicyEntry>);

impl PolicyTable {
    /// Table of this crate's policies: `kvatlas` and the plain ones.
    #[must_use]
    pub fn own() -> Self {
        let ours = PolicyEntry { name: "kvatlas", make: |options, seed| boxed(Kvatlas::new(options, seed)) };
        Self(std::iter::once(ours).chain(PLAIN).collect())
    }

    /// Returns this table of policies with the entries of `more` added at the end.
    #[must_use]
    pub fn with(mut self, more: &[PolicyEntry]) -> Self {
        self.0.extend_from_slice(more);
        self
    }

    /// Names of all policies in this table of policies, `kvatlas` first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|entry| entry.name)
    }

    /// Creates the policy called `name`. `seed`: seed of its random choices.
    ///
    /// # Errors
    ///
    /// Code `unknown_policy` for an unknown name, or `bad_option` for an option that the policy does not have
    /// or a value that it cannot use.
    pub fn make(&self, name: &str, mut options: Options, seed: u64) -> Result<BoxedPolicy, Error> {
        let Some(entry) = self.0.iter().find(|entry| entry.name == name) else {
            let names: Vec<&str> = self.names().collect();
            return Err(Error::new("unknown_policy", format!("no policy {name:?}: there are {}", names.join(", "))));
        };
        let policy = (entry.make)(&mut options, seed)?;
        options.finish(name)?;
        Ok(policy)
    }
}

/// Creates a policy of this crate by its name, as listed by [`PolicyTable::own`].
///
/// # Errors
///
/// The errors of [`PolicyTable::make`].
pub fn by_name(name: &str, options: Options, seed: u64) -> Result<BoxedPolicy, Error> {
    PolicyTable::own().make(name, options, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_made_by_its_name_and_no_other() {
        let table = PolicyTable::own();
        for name in table.names() {
            assert_eq!(table.make(name, Options::default(), 0).unwrap().name(), name);
            let given = Options::from_json(r#"{"no_such": 1}"#).unwrap();
            assert_eq!(table.make(name, given, 0).err().unwrap().code, "bad_option");
        }
        let error = table.make("mine", Options::default(), 0).err().unwrap();
        assert_eq!(error.code, "unknown_policy");
        let mine = PolicyEntry { name: "mine", make: |options, seed| boxed(Kvatlas::new(options, seed)) };
        assert!(table.with(&[mine]).make("mine", Options::default(), 0).is_ok());
    }
}
