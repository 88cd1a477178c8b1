//! Members of an object that came, and those that did not.

use super::super::refusal::Refusal;

/// Keys that came, to notice those that come twice.
#[derive(Default)]
pub(super) struct KeySet(u32);

impl KeySet {
    /// Notes a key, which has a bit of its own.
    pub(super) fn note(&mut self, bit: u32, key: &str) -> Result<(), Refusal> {
        if self.0 & 1 << bit != 0 {
            return Err(given_twice(key));
        }
        self.0 |= 1 << bit;
        Ok(())
    }
}

pub(super) fn missing(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is missing"))
}

pub(super) fn given_twice(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is given twice"))
}
