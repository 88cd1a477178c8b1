//! The answer of the service above sites: how much of a prompt each site can hold.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_follow::lookup::RankDepths;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engines::Engine;
use crate::remote::service::Question;

/// The service's answer, in tokens.
#[derive(Deserialize)]
pub(super) struct GlobalAnswer {
    pub(super) block_size: u32,
    length: u32,
    levels: Vec<Level>,
    rest_at_most: u32,
    unknown: Vec<String>,
    probe: Option<Probe>,
}

#[derive(Deserialize)]
struct Level {
    at_least: u32,
    at_most: u32,
    sites: Vec<String>,
}

#[derive(Deserialize)]
struct Probe {
    site: String,
    at_least: u32,
}

/// Bounds of how much of one prompt each site can hold, in tokens.
pub(crate) struct Bounds {
    pub(crate) model: String,
    /// Bounds of sites that surely have something, and of a doubted site whose claims are to be tried now.
    sites: HashMap<String, (u32, u32)>,
    /// Upper bound for every site that is not listed.
    rest_at_most: u32,
    /// Sites that may have anything.
    unknown: Vec<String>,
    probe: Option<String>,
}

impl Bounds {
    pub(super) fn new(told: GlobalAnswer, model: &str) -> Self {
        let GlobalAnswer { length, levels, rest_at_most, mut unknown, probe, .. } = told;
        let mut sites = HashMap::new();
        for Level { at_least, at_most, sites: names } in levels {
            sites.extend(names.into_iter().map(|name| (name, (at_least, at_most))));
        }
        // For this one prompt it is believed again: what its engine then says shows whether that was right.
        let probe = probe.map(|Probe { site, at_least }| {
            unknown.retain(|name| *name != site);
            sites.insert(site.clone(), (at_least, length.max(at_least)));
            site
        });
        Self { model: model.to_owned(), sites, rest_at_most, unknown, probe }
    }

    /// Returns the bounds where no site has anything.
    pub(super) fn nobody(question: Question<'_>) -> Self {
        Self {
            model: question.model.to_owned(),
            sites: HashMap::new(),
            rest_at_most: 0,
            unknown: Vec::new(),
            probe: None,
        }
    }

    /// Tokens that a site has at least and at most; None if it may have anything.
    pub(crate) fn of(&self, site: &str) -> Option<(u32, u32)> {
        match self.sites.get(site) {
            Some(bounds) => Some(*bounds),
            None if self.unknown.iter().any(|name| name == site) => None,
            None => Some((0, self.rest_at_most)),
        }
    }

    /// Returns what decisions go by: what each site surely has. One that may have anything counts as having nothing.
    pub(crate) fn held(&self, engines: &[Arc<Engine>], block_size: u32) -> Vec<RankDepths> {
        let mut held = Vec::new();
        for engine in engines {
            let blocks = self.of(&engine.name).map_or(0, |(at_least, _)| at_least / block_size.max(1));
            let ids = engine.ids.get().into_iter().flatten().filter(|_| blocks > 0);
            held.extend(ids.map(|id| RankDepths {
                number: id.0,
                device: blocks,
                host: blocks,
                any: blocks,
                pullable: 0,
            }));
        }
        held
    }

    /// Returns the bounds of these sites in JSON, for programs.
    pub(crate) fn to_json<'a>(&self, names: impl Iterator<Item = &'a str>) -> Value {
        let one = |name: &str| {
            let bounds = self.of(name);
            json!({
                "site": name,
                "at_least": bounds.map(|(least, _)| least),
                "at_most": bounds.map(|(_, most)| most),
                "probe": self.probe.as_deref() == Some(name),
            })
        };
        names.map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = r#"{"block_size":16,"length":2048,"levels":[{"at_least":1024,"at_most":1520,"sites":["a","b"]}],
        "rest_at_most":496,"unknown":["c","d"],"probe":{"site":"d","at_least":2048}}"#;

    #[test]
    fn each_site_has_its_bounds() {
        let bounds = Bounds::new(serde_json::from_str(TOLD).unwrap(), "m");
        assert_eq!(bounds.of("a"), Some((1024, 1520)));
        assert_eq!((bounds.of("c"), bounds.of("d"), bounds.of("x")), (None, Some((2048, 2048)), Some((0, 496))));
        let said = bounds.to_json(["c", "d"].into_iter());
        assert_eq!(said[0], json!({"site": "c", "at_least": null, "at_most": null, "probe": false}));
        assert_eq!(said[1], json!({"site": "d", "at_least": 2048, "at_most": 2048, "probe": true}));
    }
}
