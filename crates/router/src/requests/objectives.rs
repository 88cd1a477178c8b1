//! [`Objectives`]: priorities of requests by the objective that a header names, as a cluster's InferenceObjectives set
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use hyper::header::HeaderMap;

/// Headers that name an objective, the newer one first.
const HEADERS: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];

/// Results of the look-up of an objective that a request names.
pub(crate) const FOUND: [&str; 2] = ["known", "unknown"];

/// Priorities by the names of objectives, if they are followed.
#[derive(Default)]
pub(crate) struct Objectives {
    priorities: ArcSwapOption<HashMap<String, i32>>,
    /// Requests that named an objective, by the result in the order of [`FOUND`].
    pub(crate) named: [AtomicU64; 2],
}

impl Objectives {
    /// Replaces all objectives by these.
    pub(crate) fn set(&self, priorities: HashMap<String, i32>) {
        self.priorities.store(Some(Arc::new(priorities)));
    }

    /// Priority of a request by the objective that its headers name; None if they name none, or an unknown one.
    pub(crate) fn priority(&self, headers: &HeaderMap) -> Option<i32> {
        let priorities = self.priorities.load();
        let priorities = priorities.as_deref()?;
        let named = HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok())?;
        let found = priorities.get(named.trim()).copied();
        self.named[usize::from(found.is_none())].fetch_add(1, Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn an_objective_has_the_priority_that_was_set_last() {
        let objectives = Objectives::default();
        let asked = headers(&[("x-gateway-inference-objective", " batch ")]);
        assert_eq!(objectives.priority(&asked), None);
        assert_eq!(objectives.named.each_ref().map(|it| it.load(Relaxed)), [0, 0], "nobody follows objectives");
        objectives.set(HashMap::from([("batch".to_owned(), -3), ("chat".to_owned(), 10)]));
        assert_eq!(objectives.priority(&asked), Some(-3));
        let both = headers(&[("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "chat")]);
        assert_eq!(objectives.priority(&both), Some(10), "the newer header counts");
        objectives.set(HashMap::from([("chat".to_owned(), 10)]));
        assert_eq!(objectives.priority(&asked), None);
        assert_eq!(objectives.priority(&HeaderMap::new()), None);
        assert_eq!(objectives.named.each_ref().map(|it| it.load(Relaxed)), [2, 1]);
    }
}
