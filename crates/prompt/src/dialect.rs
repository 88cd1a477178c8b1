//! Dialects: the request fields that each engine version knows, and the way in which the engine converts a request
//! before its chat template is rendered. Taken from the sources of vLLM 0.30 to 0.33 and SGLang 0.5.23.

use std::borrow::Cow;

use minijinja::Value;

use crate::endpoint::Endpoint;
use crate::messages::{Part, field, given, object, with};
use crate::request::{Parts, Request, is_there, shortened};

/// Prefix of the line in a system prompt by which Claude Code identifies itself. The line differs between sessions, so
/// vLLM drops it to keep prefixes equal.
pub(crate) const BILLING: &str = "x-anthropic-billing-header";

/// Variable of chat templates by which vLLM turns thinking on or off.
pub(crate) const THINKS: &str = "enable_thinking";

/// Name of the only parameter of the function that represents a tool of type `custom` in a chat.
pub(crate) const CUSTOM_INPUT: &str = "input";

/// Kind of engine: vLLM or SGLang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// The engine vLLM.
    #[default]
    Vllm,
    /// The engine SGLang.
    Sglang,
}

/// Way in which an engine prepares chats before rendering, common to a range of the engine's versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// vLLM up to 0.30: the field `thinking` of `POST /v1/messages` is ignored.
    Vllm30,
    /// vLLM 0.31: disabled `thinking` becomes the reasoning effort `none`, or `low` for a template for which `none`
    /// makes no difference.
    Vllm31,
    /// vLLM from 0.32 on: lines with billing data are dropped from every system message; requests of Messages may add
    /// and remove tools; requests of Responses may have tools of type `custom`.
    #[default]
    Vllm32,
    /// SGLang, all known versions.
    Sglang,
}

impl Dialect {
    /// All dialects, in the order of the engines and their versions.
    pub const ALL: [Self; 4] = [Self::Vllm30, Self::Vllm31, Self::Vllm32, Self::Sglang];

    /// Dialect of an engine's version, such as `0.31.1`. An unknown version, or a version newer than the known ones,
    /// counts as the newest.
    #[must_use]
    pub fn of(engine: Engine, version: Option<&str>) -> Self {
        let Engine::Vllm = engine else { return Self::Sglang };
        let mut numbers = version.unwrap_or_default().trim_start_matches('v').split('.');
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        match (next(), next()) {
            (Some(0), Some(..=30)) => Self::Vllm30,
            (Some(0), Some(31)) => Self::Vllm31,
            _ => Self::Vllm32,
        }
    }

    /// Returns the kind of engine whose way of preparing chats this dialect is.
    #[must_use]
    pub const fn engine(self) -> Engine {
        match self {
            Self::Vllm30 | Self::Vllm31 | Self::Vllm32 => Engine::Vllm,
            Self::Sglang => Engine::Sglang,
        }
    }

    /// Name of the dialect in answers and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vllm30 => "vllm-0.30",
            Self::Vllm31 => "vllm-0.31",
            Self::Vllm32 => "vllm-0.32",
            Self::Sglang => "sglang",
        }
    }

    pub(crate) fn is_vllm(self) -> bool {
        self.engine() == Engine::Vllm
    }

    /// Separator that the engine puts between several texts of one message's content.
    pub(crate) const fn between_texts(self) -> &'static str {
        match self.engine() {
            Engine::Vllm => "\n",
            Engine::Sglang => " ",
        }
    }

    /// True if the engine accepts additions and removals of tools in requests of Messages, and tools of type `custom`
    /// in requests of Responses.
    pub(crate) fn has_changing_tools(self) -> bool {
        self == Self::Vllm32
    }

    /// True if the engine drops a system prompt that is given as one string with the text `text`.
    pub(crate) fn leaves_out_system(self, text: &str) -> bool {
        match self.engine() {
            Engine::Vllm => text.is_empty(),
            Engine::Sglang => text.trim().is_empty(),
        }
    }

    /// True if the engine drops the text `text` from a list of system blocks, or from a system message after the first.
    pub(crate) fn leaves_out_block(self, text: &str) -> bool {
        text.is_empty() || (self.is_vllm() && text.starts_with(BILLING))
    }

    /// Text of a system message after the first, as the engine changes it when moving it to the top of the chat.
    pub(crate) fn trimmed_inline(self, text: Cow<'_, str>) -> Cow<'_, str> {
        match self.engine() {
            Engine::Vllm => text,
            Engine::Sglang => match text {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_owned().into(),
            },
        }
    }

    /// Joins the texts of system blocks, or of the assistant's thoughts, in the way of the engine.
    pub(crate) fn joined_blocks(self, mut texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
        if texts.len() == 1 {
            return texts.remove(0);
        }
        texts
            .join(match self.engine() {
                Engine::Vllm => "",
                Engine::Sglang => "\n",
            })
            .into()
    }
}

/// Settings by which a chat template can be made to think less, or not at all.
pub(crate) struct ThinkingSwitches<'t> {
    /// Function that returns the reasoning effort which turns a template's thinking off in vLLM.
    pub(crate) no_effort: &'t dyn Fn() -> &'static str,
    /// Variable of the template by which SGLang turns thinking off; `None` if the template has no such variable.
    pub(crate) toggle: Option<&'static str>,
}

impl Dialect {
    /// Removes the lines by which Claude Code identifies itself from the texts of a system message, if the engine
    /// removes them too.
    pub(crate) fn leave_out_billing(self, role: &str, content: &mut Vec<Part<'_>>) {
        if self != Self::Vllm32 || role != "system" {
            return;
        }
        content.retain_mut(|part| {
            let Part::Text(text) = part else { return true };
            if !text.starts_with(BILLING) {
                return true;
            }
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
            let is_left = !rest.is_empty();
            *text = rest.into();
            is_left
        });
    }

    /// Returns the variables for the chat template that follow from the request's reasoning effort and thinking
    /// settings.
    pub(crate) fn variables(
        self,
        endpoint: Endpoint,
        parts: &Parts<'_>,
        template: &ThinkingSwitches<'_>,
    ) -> Vec<(String, Value)> {
        let there = |value: Value| Some(value).filter(|value| !value.is_none());
        let inner = |raw, name| field(&given(raw)?, name).and_then(there);
        let thinking = inner(parts.thinking, "type").filter(|_| endpoint == Endpoint::Messages);
        let thinks = thinking.as_ref().map(|kind| kind.as_str() != Some("disabled"));
        let mut effort = match endpoint {
            Endpoint::Messages => inner(parts.output_config, "effort"),
            Endpoint::Responses => inner(parts.reasoning, "effort"),
            _ => given(parts.reasoning_effort).and_then(there),
        };
        let mut made = Vec::new();
        if self.is_vllm() {
            if thinks == Some(false) && self != Self::Vllm30 {
                effort = Some((template.no_effort)().into());
            }
            if let Some(effort) = effort {
                let thinks = effort.as_str() != Some("none");
                made.push(("reasoning_effort".to_owned(), effort));
                made.push((THINKS.to_owned(), thinks.into()));
            }
            return made;
        }
        if endpoint == Endpoint::Messages {
            if effort.as_ref().and_then(Value::as_str) == Some("xhigh") {
                effort = Some("max".into());
            }
        } else {
            effort = effort.or_else(|| inner(parts.reasoning, "effort"));
            if let Some(effort) = &effort {
                // Families of models differ in the name.
                let thinks = effort.as_str() != Some("none");
                made.extend(["thinking", THINKS].map(|name| (name.to_owned(), thinks.into())));
            }
        }
        made.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort)));
        made.extend(template.toggle.zip(thinks).map(|(name, thinks)| (name.to_owned(), thinks.into())));
        made
    }

    /// True if the prompt of a chat ends by default with the start of an assistant's message, for the model to
    /// continue.
    pub(crate) fn begins_answer(self, endpoint: Endpoint) -> bool {
        !(self.is_vllm() && endpoint == Endpoint::Embeddings)
    }

    /// Tool call with its fields in the engine's order. vLLM keeps unknown fields after the known ones; SGLang drops
    /// them.
    pub(crate) fn call(self, call: &Value, function: &Value) -> Value {
        if self.is_vllm() {
            let function = ordered(function, &["arguments", "name"]);
            return ordered(&with(call, "function", function), &["id", "function", "type"]);
        }
        let null = || Value::from(());
        let of = |map: &Value, name| field(map, name).unwrap_or_else(null);
        object([
            ("id", of(call, "id")),
            ("index", of(call, "index")),
            ("type", field(call, "type").unwrap_or("function".into())),
            ("function", object(["name", "arguments"].map(|name| (name, of(function, name))))),
        ])
    }
}

/// Copies a map with the fields `first` before all others.
fn ordered(map: &Value, first: &[&str]) -> Value {
    let named = first.iter().filter_map(|name| Some((Value::from(*name), field(map, name)?)));
    let keys = map.try_iter().into_iter().flatten();
    let others = keys.filter(|key| key.as_str().is_none_or(|key| !first.contains(&key))).map(|key| {
        let value = map.get_item(&key).unwrap_or_default();
        (key, value)
    });
    Value::from_pairs(named.chain(others))
}

/// Changes the role of the last message from assistant to user, since SGLang lets the model continue only a user's
/// message.
pub(crate) fn end_with_user(messages: &mut [Value]) {
    let Some(last) = messages.last_mut() else { return };
    let is_assistant = field(last, "role").as_ref().and_then(Value::as_str) == Some("assistant");
    if let Some(content) = field(last, "content").filter(|content| is_assistant && content.as_str().is_some()) {
        *last = object([("role", "user".into()), ("content", content)]);
    }
}

/// Removes the last message of a chat if it is a text of the assistant, and returns the text; else `None`.
pub(crate) fn take_answer(messages: &mut Vec<Value>) -> Option<String> {
    let last = messages.last()?;
    let is_assistant = field(last, "role").as_ref().and_then(Value::as_str) == Some("assistant");
    let answer = field(last, "content").filter(|_| is_assistant)?.as_str()?.to_owned();
    messages.pop();
    Some(answer)
}

/// Name of a function within a namespace of tools, as one string.
pub(crate) fn name_in(namespace: &Value, name: &Value) -> Value {
    format!("{namespace}__{name}").into()
}

/// JSON schema for the parameters of the function that represents a tool of type `custom`.
pub(crate) fn custom_parameters() -> Value {
    let input = object([("type", "string".into()), ("description", "The freeform text payload for this tool.".into())]);
    object([
        ("type", "object".into()),
        ("properties", object([(CUSTOM_INPUT, input)])),
        ("required", vec![Value::from(CUSTOM_INPUT)].into()),
        ("additionalProperties", false.into()),
    ])
}

impl Dialect {
    /// Copy of the request without the fields that an engine of this dialect ignores.
    pub(crate) fn known_fields<'a>(self, request: &Request<'a>) -> Request<'a> {
        Request { parts: self.known_parts(request.endpoint, &request.parts), ..request.clone() }
    }

    fn known_parts<'a>(self, endpoint: Endpoint, parts: &Parts<'a>) -> Parts<'a> {
        let is_converted = matches!(endpoint, Endpoint::Messages | Endpoint::Responses);
        let mut known = *parts;
        if endpoint != Endpoint::Generate && (self.is_vllm() || endpoint != Endpoint::Chat) {
            known.input_ids = None;
        }
        if !self.is_vllm() || is_converted || endpoint.has_plain_prompt() {
            known.chat_template = None;
            known.documents = None;
            known.add_generation_prompt = None;
            known.add_special_tokens = None;
            known.truncate_prompt_tokens = None;
            known.truncation_side = None;
        }
        if is_converted {
            known.continue_final_message = None;
        }
        known
    }
}

impl Request<'_> {
    /// Cache salt of the request's blocks in an engine of this kind: prompts with different salts share no blocks.
    /// `None` if the request has no salt.
    ///
    /// SGLang also separates blocks by the request field `extra_key`, which its events do not contain. The salt of a
    /// request with an `extra_key` therefore equals the salt of no announced block.
    #[must_use]
    pub fn salt(&self, engine: Engine) -> Option<Cow<'_, str>> {
        let salt = self.cache_salt.as_deref();
        let engine = self.engine(engine);
        match engine {
            Engine::Vllm => salt.map(Cow::Borrowed),
            Engine::Sglang if matches!(self.endpoint, Endpoint::Messages | Endpoint::Embeddings) => None,
            Engine::Sglang => match self.own_key(engine) {
                None => salt.map(Cow::Borrowed),
                Some(key) => Some(format!("extra_key\0{}\0{}", shortened(key), salt.unwrap_or_default()).into()),
            },
        }
    }

    /// True if an engine of this kind separates the request's blocks by a key that its events do not contain.
    #[must_use]
    pub fn has_own_key(&self, engine: Engine) -> bool {
        self.own_key(engine).is_some()
    }

    /// Engine whose rules apply to the request: SGLang for SGLang's own path `/generate`, else `engine`.
    fn engine(&self, engine: Engine) -> Engine {
        if self.endpoint == Endpoint::Generate { Engine::Sglang } else { engine }
    }

    fn own_key(&self, engine: Engine) -> Option<&str> {
        let has_keys =
            matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions | Endpoint::Responses | Endpoint::Generate);
        let is_sglang = self.engine(engine) == Engine::Sglang;
        let key = self.parts.extra_key.filter(|raw| is_sglang && has_keys && is_there(Some(raw)));
        key.map(serde_json::value::RawValue::get)
    }
}

impl Parts<'_> {
    /// True if the request has no fields that only some kinds of engines know.
    pub(crate) fn are_common(&self) -> bool {
        let own = [
            self.chat_template,
            self.documents,
            self.add_generation_prompt,
            self.add_special_tokens,
            self.truncate_prompt_tokens,
            self.truncation_side,
            self.input_ids,
            self.extra_key,
        ];
        !own.into_iter().any(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, expected) in [
            (Some("0.22.1"), Dialect::Vllm30),
            (Some("0.30.0"), Dialect::Vllm30),
            (Some("v0.31.0rc1"), Dialect::Vllm31),
            (Some("0.32.1.dev3+g1a2b"), Dialect::Vllm32),
            (Some("0.33.0"), Dialect::Vllm32),
            (Some("0.99"), Dialect::Vllm32),
            (Some("1.0.0"), Dialect::Vllm32),
            (Some("dev"), Dialect::Vllm32),
            (None, Dialect::Vllm32),
        ] {
            assert_eq!(Dialect::of(Engine::Vllm, version), expected, "{version:?}");
        }
        assert_eq!(Dialect::of(Engine::Sglang, Some("0.5.23")), Dialect::Sglang);
    }

    #[test]
    fn salts_by_kind_of_engine() {
        let salts = |endpoint, fields: &str| {
            let body = format!(r#"{{"messages": [], "prompt": "a" {fields}}}"#);
            let request = Request::parse(endpoint, body.as_bytes()).unwrap();
            [Engine::Vllm, Engine::Sglang].map(|kind| request.salt(kind).map(Cow::into_owned))
        };
        let same = |salt: Option<&str>| [salt; 2].map(|salt| salt.map(str::to_owned));
        assert_eq!(salts(Endpoint::Chat, ""), same(None));
        assert_eq!(salts(Endpoint::Chat, r#", "cache_salt": "s""#), same(Some("s")));
        assert_eq!(salts(Endpoint::Chat, r#", "extra_key": null"#), same(None));
        assert_eq!(salts(Endpoint::Messages, r#", "cache_salt": "s""#), [Some("s".to_owned()), None]);
        assert_eq!(salts(Endpoint::Messages, r#", "extra_key": "k""#), same(None));
        let listed = r#", "cache_salt": ["s", "t"]"#;
        assert_eq!(salts(Endpoint::Generate, listed), same(Some("s")), "of a list of prompts that of the first");
        assert_eq!(salts(Endpoint::Generate, r#", "cache_salt": "s""#), same(Some("s")));
        let [vllm, sglang] = salts(Endpoint::Generate, r#", "extra_key": "k""#);
        assert!(vllm == sglang && vllm.is_some(), "whatever the kind is taken for");
        assert_eq!(salts(Endpoint::Tokens, r#", "cache_salt": "s""#), same(Some("s")));
        assert_eq!(salts(Endpoint::Tokens, r#", "extra_key": "k""#), same(None));
        let mut seen = vec![None, Some("s".to_owned()), Some("k".to_owned())];
        for fields in [r#""k""#, r#""l""#, r#"["k"]"#, r#""k", "cache_salt": "s""#] {
            for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses] {
                let [vllm, sglang] = salts(endpoint, &format!(r#", "extra_key": {fields}"#));
                assert_eq!(vllm.as_deref(), fields.contains("cache_salt").then_some("s"));
                assert!(!seen.contains(&sglang) || endpoint != Endpoint::Chat, "{fields}");
                seen.push(sglang);
            }
        }
    }
}
