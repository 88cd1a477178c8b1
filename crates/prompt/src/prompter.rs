//! A model's prompts.

use crate::prompted::Prompted;
use crate::request::{Given, Request};
use crate::why_not::WhyNot;

/// How prompts are turned into tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// A chat template instead of the model's.
    pub chat_template: Option<String>,
    /// The most bytes that remembered text and tokens may take.
    pub cache_bytes: usize,
    /// Longer prompts, in bytes of text, are not turned into tokens.
    pub max_bytes: usize,
    /// Whether [`Prompted::text`] is wanted.
    pub text: bool,
}

impl Default for Options {
    /// 256 MiB to remember, prompts of up to 16 MiB, no text.
    fn default() -> Self {
        Self { chat_template: None, cache_bytes: 256 << 20, max_bytes: 16 << 20, text: false }
    }
}

/// Bytes of text that are taken for one token where there is no better knowledge.
const BYTES_A_TOKEN: usize = 4;

/// Turns the prompts of one model into tokens. Threads share one.
#[derive(Debug)]
pub struct Prompter {
    options: Options,
}

impl Prompter {
    /// One that takes prompts that are given as tokens, and has the text of others.
    #[must_use]
    pub fn without_tokenizer(options: Options) -> Self {
        Self { options }
    }

    /// The tokens of a request's prompt.
    #[must_use]
    pub fn prompt(&self, request: &Request<'_>) -> Prompted {
        match request.given() {
            Ok(Given::Tokens { first, prompts }) => {
                let prompt_tokens = u32::try_from(first.len()).unwrap_or(u32::MAX);
                Prompted { tokens: first, prompt_tokens, whole: true, prompts, ..Prompted::default() }
            }
            Ok(Given::Text { first, prompts }) => Prompted {
                prompt_tokens: estimate(first.len()),
                prompts,
                text: if self.options.text { first.into_owned() } else { String::new() },
                why_not: Some(WhyNot::NoTokenizer),
                ..Prompted::default()
            },
            Ok(Given::Chat) => Prompted {
                prompt_tokens: estimate(request.body_len()),
                prompts: 1,
                why_not: Some(WhyNot::NoTokenizer),
                ..Prompted::default()
            },
            Err(why_not) => Prompted {
                prompt_tokens: estimate(request.body_len()),
                prompts: 1,
                why_not: Some(why_not),
                ..Prompted::default()
            },
        }
    }
}

/// Tokens that so many bytes of text may be.
fn estimate(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_A_TOKEN)).unwrap_or(u32::MAX)
}
