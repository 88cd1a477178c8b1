//! Aliases of models, and names of adapters: engines serve one model under several names.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::state::ModelNames;

/// Most names in a message, and most characters of each.
const TOLD: usize = 8;
const TOLD_CHARS: usize = 64;

/// Model that a name stands for, with the adapter if it is an adapter's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) model: Arc<str>,
    /// The adapter, if the name is an adapter's.
    pub(super) adapter: Option<Arc<str>>,
}

impl Target {
    /// The target in words, for a message.
    pub(super) fn described(&self) -> String {
        match &self.adapter {
            None => format!("{:?}", self.model),
            Some(adapter) => format!("{:?} with adapter {adapter:?}", self.model),
        }
    }
}

/// Targets by routing group and name. Engines may contradict each other, so a name may stand for several.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Box<str>, HashMap<Box<str>, BTreeSet<Target>>>);

impl Names {
    /// Names of all workers, given as routing group, model and other names.
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

    /// Targets that a name stands for; none for an unknown name.
    pub(super) fn get(&self, group: &str, name: &str) -> Option<&BTreeSet<Target>> {
        self.0.get(group)?.get(name)
    }

    /// All names of a routing group.
    pub(super) fn all(&self, group: &str) -> impl Iterator<Item = &str> {
        self.0.get(group).into_iter().flat_map(|names| names.keys().map(|name| &**name))
    }
}

/// List of names for a message, sorted and shortened; `quoted`: in quotes.
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
