//! The fields of a request that an engine knows. An engine ignores all others, so they are ignored here, too.

use std::borrow::Cow;

use crate::dialect::{Dialect, Engine};
use crate::endpoint::Endpoint;
use crate::request::{Parts, Request, is_there, shortened};

impl Dialect {
    /// A copy of the request without the fields that an engine of this dialect ignores.
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
    /// The salt of the request's blocks in an engine of this kind: prompts with different salts share no blocks.
    ///
    /// SGLang separates blocks by `extra_key` as well, and does not announce it: no announced block has the salt of a
    /// request with an `extra_key`.
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

    /// True if an engine of this kind separates the request's blocks by a key that it does not announce.
    #[must_use]
    pub fn has_own_key(&self, engine: Engine) -> bool {
        self.own_key(engine).is_some()
    }

    /// The engine whose rules apply: SGLang for its own `/generate`, else `engine`.
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
    /// True if the request has no field that only some engines know.
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
