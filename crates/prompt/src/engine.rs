//! `POST /tokenize` of an engine: what to send and what the answer says. Sending is for the caller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::request::{Request, is_there, read};
use crate::why_not::WhyNot;

/// The path to send it to.
pub const TOKENIZE_PATH: &str = "/tokenize";

/// The parts of a chat request that its tokens depend on, which go on as they are.
#[derive(Serialize)]
struct Ask<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(flatten)]
    parts: BTreeMap<&'static str, &'a RawValue>,
}

/// The body that asks an engine for a prompt's tokens.
///
/// `model` is the engine's name for it, if it serves more than one. Only completions of one text and chats can be asked
/// for: engines' `/tokenize` takes nothing else.
///
/// # Errors
///
/// Why there is nothing to ask for. A prompt that is given as tokens, or a list of prompts, is [`WhyNot::NoPrompt`].
pub fn tokenize_body(request: &Request<'_>, model: Option<&str>) -> Result<Vec<u8>, WhyNot> {
    let parts = &request.parts;
    let asked = match request.endpoint {
        Endpoint::Chat => vec![
            ("messages", Some(parts.messages.ok_or(WhyNot::NoPrompt)?)),
            ("tools", parts.tools),
            ("add_generation_prompt", parts.add_generation_prompt),
            ("continue_final_message", parts.continue_final_message),
            ("add_special_tokens", parts.add_special_tokens),
            ("chat_template", parts.chat_template),
            ("chat_template_kwargs", parts.chat_template_kwargs),
        ],
        Endpoint::Completions if is_there(parts.prompt_embeds) => return Err(WhyNot::Embeds),
        Endpoint::Completions => {
            let prompt = parts.prompt.filter(|prompt| prompt.get().starts_with('"')).ok_or(WhyNot::NoPrompt)?;
            vec![("prompt", Some(prompt)), ("add_special_tokens", parts.add_special_tokens)]
        }
        Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings => return Err(WhyNot::OtherItem),
    };
    let parts = asked.into_iter().filter_map(|(name, raw)| Some((name, raw.filter(|raw| is_there(Some(raw)))?)));
    serde_json::to_vec(&Ask { model, parts: parts.collect() }).map_err(|_| WhyNot::NotJson)
}

/// The tokens in an engine's answer; none if it is not an answer to this.
#[must_use]
pub fn tokenize_answer(body: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        tokens: &'a RawValue,
    }
    let answer: Answer<'_> = serde_json::from_slice(body).ok()?;
    read(Some(answer.tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(endpoint: Endpoint, body: &str) -> Result<String, WhyNot> {
        let request = Request::parse(endpoint, body.as_bytes())?;
        tokenize_body(&request, Some("m")).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn what_is_asked() {
        assert_eq!(
            ask(Endpoint::Chat, r#"{"messages": [{"role": "user"}], "tools": null, "n": 2, "model": "x"}"#).unwrap(),
            r#"{"model":"m","messages":[{"role": "user"}]}"#
        );
        assert_eq!(
            ask(Endpoint::Completions, r#"{"prompt": "a\n", "add_special_tokens": false}"#).unwrap(),
            r#"{"model":"m","add_special_tokens":false,"prompt":"a\n"}"#
        );
        assert_eq!(ask(Endpoint::Completions, r#"{"prompt": [1]}"#), Err(WhyNot::NoPrompt));
        assert_eq!(ask(Endpoint::Completions, r#"{"prompt_embeds": "x"}"#), Err(WhyNot::Embeds));
        assert_eq!(ask(Endpoint::Responses, r#"{"input": "x"}"#), Err(WhyNot::OtherItem));
    }

    #[test]
    fn what_is_answered() {
        assert_eq!(tokenize_answer(br#"{"count": 2, "tokens": [5, 6], "max_model_len": 9}"#), Some(vec![5, 6]));
        for bad in ["", "[]", r#"{"tokens": [-1]}"#, r#"{"tokens": "a"}"#, r#"{"error": {}}"#] {
            assert_eq!(tokenize_answer(bad.as_bytes()), None, "{bad}");
        }
    }
}
