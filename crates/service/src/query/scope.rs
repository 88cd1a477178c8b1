//! Scope of a query: the workers to consider, and the details to include in the answer.

use std::borrow::Cow;

use kvatlas_follow::register::{DEFAULT_ROUTING_GROUP, check_name};

use super::members::{KeySet, boolean, check_text, instance_id, missing, unsigned};
use crate::answer::Refusal;
use crate::json::Reader;

type Result<T> = std::result::Result<T, Refusal>;

/// Maximum number of workers that a query can list.
const MOST_NAMES: usize = 1 << 14;

/// Scope of a query: the workers to consider, and the details to include in the answer.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(crate) model: Cow<'a, str>,
    pub(crate) routing_group: Option<Cow<'a, str>>,
    pub(crate) top_k: Option<usize>,
    /// Workers to consider; `None` for all workers.
    pub(crate) among: Option<Vec<String>>,
    /// True if the answer must omit unverified ranks: those whose engine may have restarted unnoticed.
    pub(crate) strict: bool,
    /// True if the answer must also list the workers grouped by the number of leading blocks that they hold (levels).
    pub(crate) levels: bool,
    /// True if the answer must include the time by which each worker's index is behind its engine.
    pub(crate) age: bool,
}

impl Scope<'_> {
    pub(crate) fn routing_group(&self) -> &str {
        self.routing_group.as_deref().unwrap_or(DEFAULT_ROUTING_GROUP)
    }
}

/// Scope whose members are being parsed.
#[derive(Default)]
pub(super) struct PartialScope<'a> {
    seen: KeySet,
    scope: Scope<'a>,
    model: Option<Cow<'a, str>>,
}

impl<'a> PartialScope<'a> {
    /// Reads a JSON member that single and batch queries share. Returns false if there is no member of this name.
    pub(super) fn member(&mut self, reader: &mut Reader<'a>, key: &str) -> Result<bool> {
        let Self { seen, scope, model } = self;
        match key {
            "model_name" => {
                seen.note(0, key)?;
                *model = Some(check_text(key, reader.string(key)?)?);
            }
            "routing_group" => {
                seen.note(1, key)?;
                scope.routing_group = reader.string_or_null(key)?.map(|it| check_text(key, it)).transpose()?;
            }
            "top_k" => {
                seen.note(2, key)?;
                if !reader.null()? {
                    scope.top_k = Some(top_k(reader.unsigned(key)?)?);
                }
            }
            "among" => {
                seen.note(3, key)?;
                if !reader.null()? {
                    let mut names = Vec::new();
                    reader.array(key, |reader, at| {
                        if at == MOST_NAMES {
                            let message = format!("among must have at most {MOST_NAMES} workers");
                            return Err(Refusal::invalid("too_many_workers", message));
                        }
                        names.push(instance_id(reader, "an item of among")?);
                        Ok(())
                    })?;
                    scope.among = Some(names);
                }
            }
            "strict" => {
                seen.note(6, key)?;
                scope.strict = reader.boolean(key)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a JSON member that only single queries have. Returns false if there is no member of this name.
    pub(super) fn detail(&mut self, reader: &mut Reader<'a>, key: &str) -> Result<bool> {
        match key {
            "levels" => {
                self.seen.note(4, key)?;
                self.scope.levels = reader.boolean(key)?;
            }
            "age" => {
                self.seen.note(5, key)?;
                self.scope.age = reader.boolean(key)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a URL parameter of a scope. Returns the value if scopes have no parameter of this name.
    pub(super) fn parameter(&mut self, key: &str, value: Cow<'a, str>) -> Result<Option<Cow<'a, str>>> {
        let Self { seen, scope, model } = self;
        match key {
            "model_name" => {
                seen.note(0, key)?;
                *model = Some(check_text(key, value)?);
            }
            "routing_group" => {
                seen.note(1, key)?;
                scope.routing_group = Some(check_text(key, value)?);
            }
            "top_k" => {
                seen.note(2, key)?;
                scope.top_k = Some(top_k(unsigned(key, &value)?)?);
            }
            // Repeated for each worker; empty for no worker.
            "among" => {
                let names = scope.among.get_or_insert_default();
                if !value.is_empty() {
                    check_name(&value)?;
                    names.push(value.into_owned());
                }
            }
            "levels" => {
                seen.note(4, key)?;
                scope.levels = boolean(key, &value)?;
            }
            "age" => {
                seen.note(5, key)?;
                scope.age = boolean(key, &value)?;
            }
            "strict" => {
                seen.note(6, key)?;
                scope.strict = boolean(key, &value)?;
            }
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    pub(super) fn finish(self) -> Result<Scope<'a>> {
        let model = self.model.ok_or_else(|| missing("model_name"))?;
        Ok(Scope { model, ..self.scope })
    }
}

fn top_k(wanted: u64) -> Result<usize> {
    if wanted == 0 {
        return Err(Refusal::invalid("invalid_top_k", "top_k must be at least 1; omit it to get all workers"));
    }
    Ok(usize::try_from(wanted).unwrap_or(usize::MAX))
}
