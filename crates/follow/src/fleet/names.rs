//! Aliases of models and names of LoRA adapters, with the model that each name stands for. Engines serve one model
//! under several names.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::registry::Registry;
use crate::error::Error;
use crate::state::{Keyspace, ModelNames};

/// Maximum number of models' names that an error message lists.
const TOLD: usize = 8;
/// Maximum number of characters that an error message shows of each model's name.
const TOLD_CHARS: usize = 64;

/// Model that a name in a request stands for, with the LoRA adapter if the name is an adapter's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) model: Arc<str>,
    /// Name of the LoRA adapter; `None` if the name is a model's.
    pub(super) adapter: Option<Arc<str>>,
}

impl Target {
    /// Describes the model, and the LoRA adapter if there is one, for an error message.
    pub(super) fn described(&self) -> String {
        match &self.adapter {
            None => format!("{:?}", self.model),
            Some(adapter) => format!("{:?} with adapter {adapter:?}", self.model),
        }
    }
}

/// Models that names stand for, by routing group and name. A name may have several targets, because engines may
/// contradict each other.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Box<str>, HashMap<Box<str>, BTreeSet<Target>>>);

impl Names {
    /// Collects the names by which all workers' models are found. Each worker is given as its routing group, its model,
    /// and the model's aliases and adapters.
    pub(super) fn of<'a>(workers: impl Iterator<Item = (&'a str, &'a str, &'a ModelNames)>) -> Self {
        let mut names = Self::default();
        for (group, model, others) in workers {
            let plain = others.aliases.iter().map(|name| (name, None));
            let adapters = others.adapters.iter().map(|name| (name, Some(name.as_str().into())));
            for (name, adapter) in plain.chain(adapters).filter(|(name, _)| *name != model) {
                let target = Target { model: model.into(), adapter };
                let group = names.0.entry(group.into()).or_default();
                group.entry(name.as_str().into()).or_default().insert(target);
            }
        }
        names
    }

    /// Returns the models that a name stands for in a routing group; `None` for an unknown name.
    pub(super) fn get(&self, group: &str, name: &str) -> Option<&BTreeSet<Target>> {
        self.0.get(group)?.get(name)
    }

    /// Iterates over all aliases and LoRA adapters' names in a routing group.
    pub(super) fn all(&self, group: &str) -> impl Iterator<Item = &str> {
        self.0.get(group).into_iter().flat_map(|names| names.keys().map(|name| &**name))
    }
}

/// Formats a list of models' names for an error message, sorted and shortened. `quoted` is true to put each name in
/// quotes.
pub(super) fn quote_names(mut names: Vec<String>, quoted: bool) -> String {
    names.sort_unstable();
    names.dedup();
    let short = |name: &String| {
        let short: String = name.chars().take(if quoted { TOLD_CHARS } else { 3 * TOLD_CHARS }).collect();
        let more = if short.len() < name.len() { "…" } else { "" };
        if quoted { format!("{:?}", short + more) } else { short + more }
    };
    let mut text = names.iter().take(TOLD).map(short).collect::<Vec<_>>().join(", ");
    if names.len() > TOLD {
        text.push_str(&format!(" and {} more", names.len() - TOLD));
    }
    text
}

/// Result of looking up a model by name: the keyspace of the model's blocks, and the LoRA adapter if the name is an
/// adapter's.
pub struct ModelPlace {
    /// Keyspace (model and routing group) that has the model's blocks.
    pub keyspace: Arc<Keyspace>,
    /// Name of the LoRA adapter; `None` if the name is a model's.
    pub adapter: Option<Arc<str>>,
}

impl Registry {
    /// Finds the keyspace of a model in a routing group by a name: the model's own name, an alias used by engines, or
    /// the name of a LoRA adapter.
    pub(super) fn find(&self, model: &str, routing_group: &str) -> Result<ModelPlace, Error> {
        let exact = self.keyspace(model, routing_group);
        let names = self.names.load();
        let plain = |keyspace| ModelPlace { keyspace, adapter: None };
        let Some(targets) = names.get(routing_group, model) else {
            return exact.map(plain).ok_or_else(|| self.unknown(model, routing_group));
        };
        // A model's own name comes first, as long as anybody serves it.
        if let Some(keyspace) = exact.as_ref().filter(|keyspace| keyspace.has_streams()) {
            return Ok(plain(keyspace.clone()));
        }
        let mut targets = targets.iter();
        let first = targets.next();
        if let Some(second) = targets.next() {
            let others = first.into_iter().chain([second]).chain(targets).map(Target::described);
            let message = format!(
                "model {model:?} is another name of {}: give one of these names instead",
                quote_names(others.collect(), false)
            );
            return Err(Error::conflict("ambiguous_model", message));
        }
        let found = first.and_then(|target| {
            let keyspace = self.keyspace(&target.model, routing_group)?;
            Some(ModelPlace { keyspace, adapter: target.adapter.clone() })
        });
        found.or_else(|| exact.map(plain)).ok_or_else(|| self.unknown(model, routing_group))
    }

    /// Creates the error for a request with an unknown model, with a list of the known models' names.
    fn unknown(&self, model: &str, routing_group: &str) -> Error {
        let (keyspaces, names) = (self.keyspaces.load(), self.names.load());
        let here = keyspaces.iter().filter(|(_, groups)| groups.contains_key(routing_group)).map(|(name, _)| &**name);
        let here = quote_names(here.chain(names.all(routing_group)).map(str::to_owned).collect(), true);
        let elsewhere = keyspaces.get(model).map(|groups| groups.keys().map(|group| group.to_string()).collect());
        let known = match (elsewhere.map(|groups| quote_names(groups, true)), here) {
            (Some(groups), _) => format!("it is known in routing group {groups}"),
            (None, here) if here.is_empty() => "no model is known there".to_owned(),
            (None, here) => format!("known there: {here}"),
        };
        let message =
            format!("no worker has been registered for model {model:?} in routing group {routing_group:?}; {known}");
        Error::unknown("unknown_keyspace", message)
    }
}
