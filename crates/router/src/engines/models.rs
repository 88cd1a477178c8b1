//! Models that an engine serves: those that the engine lists and those that its configuration adds, except models that
//! the engine recently answered not to have.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::clock::millis;
use crate::config::EngineConfig;
use crate::engines::json_fields::{self, each_field, each_item, pick};

/// Time, in milliseconds, for which an engine gets no requests for a model after answering that it does not have the
/// model, if other engines may have it.
const DENIED_FOR: u64 = 30_000;

/// Maximum number of recorded models that an engine answered not to have. A limit is needed as clients may send any
/// names.
const MOST_DENIED: usize = 64;

/// State of knowledge about whether an engine serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    /// The engine or its configuration lists the model.
    Listed,
    /// The engine has not listed its models, so that it may serve the model.
    Unknown,
    /// The engine recently answered that it does not have the model.
    Denied,
    /// The engine lists its models, and the list lacks the model.
    Not,
}

/// List of the models and adapters that an engine serves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Models {
    /// Models and adapters: those in the engine's list, in its order, then those that the configuration adds.
    pub names: Vec<Model>,
    /// True if the list of models is complete; false if the engine has not listed its models and none are configured.
    is_whole: bool,
    /// Shortest context length of the models, in tokens; 0 if the length of a model is unknown.
    least_len: u32,
    /// Models that the engine answered not to have, each with the time at which this record expires, in milliseconds of
    /// the router's clock.
    denied: Vec<(String, u64)>,
}

/// Maximum number of models read from an engine's list; further ones are ignored.
pub(crate) const MAX_MODELS: usize = 1000;
/// Maximum length of a model's name in an engine's list, in bytes; entries with a longer name are ignored.
pub(crate) const MAX_NAME: usize = 256;
/// Maximum number of fields that are stored from a model's entry in an engine's list.
const MAX_FIELDS: usize = 32;

/// Parsed list of an engine's models.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) models: Vec<Model>,
    /// Number of ignored entries of the list: beyond [`MAX_MODELS`], or with a name that is too long.
    pub(crate) left_out: u64,
}

/// Model or adapter that an engine serves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model {
    /// Name by which clients request the model.
    pub name: String,
    /// Base model of an adapter; None for a model that is no adapter.
    pub parent: Option<String>,
    /// JSON entry of the model in the engine's `/v1/models`, or an entry made in the same form.
    pub card: Value,
    /// Engine's own name of the model, for an alias added by the configuration; None for other models.
    own_name: Option<String>,
    /// Context length in tokens, for prompt and answer together; None if unknown.
    max_len: Option<u32>,
}

impl Model {
    /// Parses an entry of an engine's list of models; stores only fields that are not nested. None if the entry has no
    /// id.
    fn read(entry: &RawValue) -> Option<Self> {
        let mut card = Map::new();
        let mut max_len = None;
        each_field(entry.get().as_bytes(), |name, value| {
            if name == "max_model_len" {
                max_len = json_fields::read::<u64>(Some(value)).filter(|len| *len > 0);
            }
            let is_plain = !value.get().starts_with(['[', '{']) && value.get().len() <= MAX_NAME + 2;
            if is_plain && name.len() <= MAX_NAME && (card.len() < MAX_FIELDS || card.contains_key(name)) {
                card.extend(json_fields::read(Some(value)).map(|value: Value| (name.to_owned(), value)));
            }
        })?;
        let name = card.get("id")?.as_str().filter(|name| !name.is_empty())?.to_owned();
        let parent = card.get("parent").and_then(Value::as_str).map(str::to_owned);
        let max_len = max_len.map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        Some(Self { name, parent, card: card.into(), own_name: None, max_len })
    }

    /// Makes the entry of a model that the engine does not list. `of`: a model whose context length the new entry gets.
    fn named(name: &str, of: Option<&Self>) -> Self {
        let mut card = json!({ "id": name, "object": "model", "owned_by": "kvatlas" });
        let max_len = of.and_then(|of| of.max_len);
        if let Some(len) = max_len {
            card["max_model_len"] = len.into();
        }
        Self { name: name.to_owned(), parent: None, card, own_name: None, max_len }
    }
}

impl Models {
    /// Makes the list of an engine's models. `said`: models in the engine's answer at `/v1/models`; None without an
    /// answer.
    pub(crate) fn new(config: &EngineConfig, said: Option<Vec<Model>>) -> Self {
        let said = said.unwrap_or_default();
        let is_whole = !said.is_empty() || !config.models.is_empty();
        let lists = |name: &str| said.iter().any(|model| model.name == name);
        let bases = || said.iter().filter(|model| model.parent.is_none());
        let mut names: Vec<Model> = if config.models.is_empty() {
            said.clone()
        } else {
            let only = bases().next().filter(|_| bases().count() == 1);
            let card = |name: &String| match said.iter().find(|model| model.name == *name) {
                Some(known) => known.clone(),
                None => Model::named(name, only),
            };
            config.models.iter().map(card).collect()
        };
        let base = names.iter().find(|model| model.parent.is_none()).cloned();
        let base_name = base.as_ref().map(|base| base.name.clone());
        // A name that the configuration gives the model may be another than the engine's, which is sure if it has one.
        let only = bases().next().filter(|_| bases().count() == 1).map(|model| model.name.clone());
        let own_name = match &base_name {
            Some(base) if !said.is_empty() && !lists(base) => only.or(base_name.clone()),
            _ => base_name.clone(),
        };
        for (added, is_adapter) in [(&config.adapters, true), (&config.aliases, false)] {
            for name in added {
                if names.iter().any(|model| model.name == *name) {
                    continue;
                }
                let mut model = Model::named(name, base.as_ref());
                if is_adapter {
                    model.parent.clone_from(&base_name);
                    model.card["parent"] = base_name.clone().into();
                } else if !lists(name) {
                    model.own_name.clone_from(&own_name);
                }
                names.push(model);
            }
        }
        let mut lens: HashMap<String, Option<u32>> = HashMap::new();
        if names.iter().any(|model| model.parent.is_some() && model.max_len.is_none()) {
            names.iter().for_each(|model| {
                lens.entry(model.name.clone()).or_insert(model.max_len);
            });
        }
        for model in &mut names {
            model.max_len = model.max_len.or_else(|| *lens.get(model.parent.as_ref()?)?);
        }
        let least_len = names.iter().map(|model| model.max_len.unwrap_or(0)).min().unwrap_or(0);
        Self { names, is_whole, least_len, denied: Vec::new() }
    }

    /// Parses an engine's answer at `/v1/models`; None if the answer has no list of models.
    pub(crate) fn read(body: &[u8]) -> Option<Listing> {
        let [list] = pick(body, ["data"])?;
        let mut said = Listing { models: Vec::new(), left_out: 0 };
        each_item(list?, |entry| match Model::read(entry).filter(|_| said.models.len() < MAX_MODELS) {
            Some(model) => said.models.push(model),
            None => said.left_out += u64::from(entry.get().len() > MAX_NAME || said.models.len() == MAX_MODELS),
        })?;
        (!said.models.is_empty()).then_some(said)
    }

    fn find(&self, model: &str) -> Option<&Model> {
        self.names.iter().find(|known| known.name == model)
    }

    /// Returns the state of knowledge about whether the engine serves a model.
    pub(crate) fn serving(&self, model: &str) -> Serving {
        let serving = match self.find(model) {
            Some(_) => Serving::Listed,
            None if self.is_whole => return Serving::Not,
            None => Serving::Unknown,
        };
        if self.denies(model) { Serving::Denied } else { serving }
    }

    /// Returns the model under which requests for the name `name` are counted: the model itself, or the base model of
    /// an adapter. None if the engine does not list the name.
    pub(crate) fn counted_as(&self, name: &str) -> Option<&str> {
        self.find(name).map(|known| known.parent.as_deref().unwrap_or(&known.name))
    }

    /// True unless the engine's complete list lacks the model; true if `model` is None.
    pub(crate) fn may_serve(&self, model: Option<&str>) -> bool {
        model.is_none_or(|model| !self.is_whole || self.find(model).is_some())
    }

    fn denies(&self, model: &str) -> bool {
        !self.denied.is_empty() && self.denied.iter().any(|(name, until)| name == model && *until > millis())
    }

    /// Returns the engine's own model for the name `model`: the base model of an adapter, the model of an alias, else
    /// the name itself.
    pub(crate) fn base<'a>(&'a self, model: &'a str) -> &'a str {
        let behind = self.find(model).and_then(|known| known.parent.as_deref().or(known.own_name.as_deref()));
        behind.unwrap_or(model)
    }

    /// Returns the engine's own name of a model, if different from the name `model` that clients use; None otherwise.
    pub(crate) fn own_name(&self, model: &str) -> Option<&str> {
        self.find(model)?.own_name.as_deref()
    }

    /// True if a request of `tokens` tokens fits into the context length of each model in the list.
    pub(crate) fn have_room(&self, tokens: u32) -> bool {
        tokens <= self.least_len
    }

    /// Returns the context length for a model in tokens, or for the first model if `model` is None. None if unknown.
    pub(crate) fn max_len(&self, model: Option<&str>) -> Option<u32> {
        model.map_or_else(|| self.names.first(), |model| self.find(model))?.max_len
    }

    /// Returns a copy of the list with a record that the engine answered not to have `model`.
    pub(crate) fn denying(&self, model: &str) -> Self {
        let now = millis();
        let mut denied: Vec<_> =
            self.denied.iter().filter(|(name, until)| name != model && *until > now).cloned().collect();
        if denied.len() == MOST_DENIED {
            denied.remove(0);
        }
        denied.push((model.to_owned(), now + DENIED_FOR));
        Self { denied, ..self.clone() }
    }

    /// Returns the list with the records in `before` of models that the engine answered not to have, except for models
    /// that are new in this list.
    pub(crate) fn after(mut self, before: &Self) -> Self {
        let is_new = |name: &str| self.find(name).is_some() && before.find(name).is_none();
        self.denied = before.denied.iter().filter(|(name, _)| !is_new(name)).cloned().collect();
        self
    }

    /// True if the other list has the same models. The field `created` of an entry does not count: vLLM sets it to the
    /// time of its answer.
    pub(crate) fn lists_same(&self, other: &Self) -> bool {
        let undated = |model: &Model| {
            let mut model = model.clone();
            model.card.as_object_mut().and_then(|card| card.remove("created"));
            model
        };
        self.names.iter().map(undated).eq(other.names.iter().map(undated))
    }

    /// Returns a copy of the list with an adapter that the engine has just loaded.
    pub(crate) fn with_adapter(&self, name: &str) -> Self {
        let mut models = self.clone();
        models.denied.retain(|(denied, _)| denied != name);
        if models.is_whole && models.find(name).is_none() {
            let base = models.names.iter().find(|model| model.parent.is_none()).cloned();
            let mut model = Model::named(name, base.as_ref());
            model.parent = base.map(|base| base.name);
            model.card["parent"] = model.parent.clone().into();
            models.least_len = models.least_len.min(model.max_len.unwrap_or(0));
            models.names.push(model);
        }
        models
    }

    /// Returns a copy of the list without an adapter that the engine has just unloaded.
    pub(crate) fn without(&self, name: &str) -> Self {
        let mut models = self.clone();
        models.names.retain(|model| model.name != name || model.parent.is_none());
        models
    }
}

/// True if an engine's error answer states that the engine does not have the requested model or adapter.
pub(crate) fn denies_model(status: u16, body: &[u8]) -> bool {
    let Some([error, ..]) = pick(body, ["error"]) else { return false };
    let is_there = |raw: &&RawValue| raw.get() != "null";
    let error = error.filter(is_there);
    let inside = error.map_or(body, |error| error.get().as_bytes());
    let [code, message, detail] = pick(inside, ["code", "message", "detail"]).unwrap_or_default();
    if json_fields::read::<Cow<'_, str>>(code).is_some_and(|code| code == "model_not_found") {
        return true;
    }
    let message = [error, message, detail].into_iter().find_map(json_fields::read::<String>).unwrap_or_default();
    let message = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    match status {
        404 => {
            let of_model = says(&["model", "adapter"]);
            of_model
                && says(&["does not exist", "not found", "cannot be found", "no such", "unknown model", "not loaded"])
        }
        // SGLang's word for an adapter that it does not have.
        400 => says(&["lora"]) && says(&["not loaded", "never been loaded"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Option<Vec<Model>> {
        Models::read(text.as_bytes()).map(|said| said.models)
    }

    fn config(models: &[&str], aliases: &[&str], adapters: &[&str]) -> EngineConfig {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (models, aliases, adapters) = (owned(models), owned(aliases), owned(adapters));
        EngineConfig { models, aliases, adapters, ..EngineConfig::at("http://a:1") }
    }

    const LIST: &str = r#"{"data": [{"id": "m", "max_model_len": 100}, {"id": "a", "parent": "m"}, {"no": "id"}]}"#;

    #[test]
    fn what_engines_list() {
        let models = Models::new(&config(&[], &[], &[]), said(LIST));
        assert_eq!(["m", "a", "x"].map(|name| models.serving(name)), [Serving::Listed, Serving::Listed, Serving::Not]);
        assert_eq!(["m", "a", "x"].map(|name| models.max_len(Some(name))), [Some(100), Some(100), None]);
        assert_eq!((models.max_len(None), models.base("a"), models.base("x")), (Some(100), "m", "x"));
        for nothing in ["", "<html>", "[]", "{}", r#"{"data": []}"#, r#"{"data": {}}"#, r#"{"data": [{"id": ""}, 5]}"#]
        {
            let models = Models::new(&config(&[], &[], &[]), said(nothing));
            assert_eq!(models.serving("m"), Serving::Unknown, "{nothing}");
            assert!(models.may_serve(Some("m")) && models.max_len(None).is_none());
        }
    }

    #[test]
    fn the_time_of_an_answer_is_no_change() {
        let listed = |text: &str| Models::new(&config(&[], &[], &[]), said(text));
        let vllms = |id: &str, created: u64, max_len: u32| {
            listed(&format!(r#"{{"data": [{{"id": "{id}", "created": {created}, "max_model_len": {max_len}}}]}}"#))
        };
        let first = vllms("m", 1, 100);
        assert!(first.lists_same(&vllms("m", 2, 100)));
        for other in [vllms("x", 1, 100), vllms("m", 1, 200), listed(LIST), Models::default()] {
            assert!(!first.lists_same(&other) && !other.lists_same(&first), "{other:?}");
        }
    }

    #[test]
    fn what_configurations_add() {
        let unasked = Models::new(&config(&[], &["gpt"], &["lora"]), None);
        assert_eq!(
            ["gpt", "lora", "m"].map(|name| unasked.serving(name)),
            [Serving::Listed, Serving::Listed, Serving::Unknown]
        );
        assert_eq!(unasked.own_name("gpt"), None, "nobody knows it yet");
        let asked = Models::new(&config(&[], &["gpt", "a", "m"], &["lora"]), said(LIST));
        assert_eq!(["gpt", "a", "m", "lora"].map(|name| asked.own_name(name)), [Some("m"), None, None, None]);
        assert_eq!((asked.base("gpt"), asked.base("lora"), asked.max_len(Some("gpt"))), ("m", "m", Some(100)));
        assert_eq!((asked.serving("x"), asked.names.len()), (Serving::Not, 4));
        let named = Models::new(&config(&["n"], &["gpt"], &[]), said(LIST));
        assert_eq!((named.own_name("gpt"), named.own_name("n"), named.serving("m")), (Some("m"), None, Serving::Not));
        assert_eq!(named.max_len(Some("n")), Some(100), "it is the only model there");
    }

    #[test]
    fn what_is_denied() {
        let models = Models::new(&config(&[], &[], &[]), None);
        let mut denying = models.denying("x");
        assert_eq!((denying.serving("x"), denying.serving("y")), (Serving::Denied, Serving::Unknown));
        assert!(denying.may_serve(Some("x")));
        for number in 0..100 {
            denying = denying.denying(&format!("m{number}"));
        }
        assert_eq!((denying.denied.len(), denying.serving("x")), (MOST_DENIED, Serving::Unknown));
        let denying = models.denying("m").denying("z");
        let listed = Models::new(&config(&[], &[], &[]), said(LIST)).after(&denying);
        assert_eq!((listed.serving("m"), listed.denied.len()), (Serving::Listed, 1), "it has it now");
        assert_eq!(listed.denying("m").serving("m"), Serving::Denied);
        let loaded = listed.denying("b").with_adapter("b");
        assert_eq!(
            (loaded.serving("b"), loaded.base("b"), loaded.max_len(Some("b"))),
            (Serving::Listed, "m", Some(100))
        );
        assert_eq!(
            (loaded.without("b").serving("b"), loaded.without("m").serving("m")),
            (Serving::Not, Serving::Listed)
        );
    }

    #[test]
    fn words_of_engines() {
        for (status, body) in [
            (404, r#"{"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}}"#),
            (404, r#"{"object": "error", "message": "The model `x` does not exist.", "code": 404}"#),
            (404, r#"{"error": {"message": "The model 'x' does not exist", "code": "model_not_found"}}"#),
            (404, r#"{"error": "model 'x' not found"}"#),
            (404, r#"{"detail": "Model x not found"}"#),
            (400, r#"{"error": {"message": "nothing", "code": "model_not_found"}}"#),
            (400, r#"{"object": "error", "message": "The following requested LoRA adapters are not loaded: x"}"#),
            (400, r#"{"error": {"message": "Got LoRA adapter that has never been loaded: x"}}"#),
        ] {
            assert!(denies_model(status, body.as_bytes()), "{status} {body}");
        }
        for (status, body) in [
            (404, r#"{"detail": "Not Found"}"#),
            (404, r#"{"error": {"message": "Response with id 'resp_1' not found.", "type": "invalid_request_error"}}"#),
            (404, "<html>model not found</html>"),
            (404, ""),
            (404, "null"),
            (400, r#"{"error": {"message": "The model does not exist."}}"#),
            (400, r#"{"error": {"message": "tools are not supported by the model"}}"#),
        ] {
            assert!(!denies_model(status, body.as_bytes()), "{status} {body}");
        }
    }
}
