//! Prompts that the request has the engine cut (`truncate_prompt_tokens`).

use std::borrow::Cow;

use crate::endpoint::Endpoint;
use crate::request::{Request, read};
use crate::rope::Rope;

/// The tokens of a prompt that vLLM keeps. If the request does not say on which side they are cut, the tokenizer cuts:
/// the end stays of what is generated from, the beginning of what is embedded, and with both the special tokens that it
/// adds. Otherwise these are cut like any other.
///
/// `around`: how many of the first and of the last are such special tokens.
pub(crate) fn truncated(tokens: Rope<u32>, around: (usize, usize), request: &Request<'_>) -> Rope<u32> {
    let most = read::<usize>(request.parts.truncate_prompt_tokens).filter(|most| *most < tokens.len());
    let Some(most) = most else { return tokens };
    let side = read::<Cow<'_, str>>(request.parts.truncation_side);
    let keeps_end = match side.as_deref() {
        Some(side) => side == "left",
        None => request.endpoint != Endpoint::Embeddings,
    };
    let (before, after) = if side.is_none() && around.0 + around.1 <= most { around } else { (0, 0) };
    let all = tokens.to_vec();
    let (begin, rest) = all.split_at(before);
    let (text, end) = rest.split_at(rest.len() - after);
    let room = most - before - after;
    let kept = if keeps_end { &text[text.len() - room..] } else { &text[..room] };
    [begin, kept, end].concat().into()
}
