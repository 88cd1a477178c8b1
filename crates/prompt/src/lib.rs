//! Prompts: from the body of a request to text, tokens and content hashes.
//!
//! A router parses a body once with [`Request::parse`], which reads what routing needs and leaves the prompt as it is in
//! the body, finds the model's [`Prompter`], and asks it for the tokens with [`Prompter::prompt`]:
//!
//! ```
//! use kvatlas_prompt::{Endpoint, Options, Prompter, Request};
//!
//! let body = br#"{"model": "m", "prompt": [1, 2, 3, 4, 5], "max_tokens": 10, "stream": true}"#;
//! let request = Request::parse(Endpoint::Completions, body)?;
//! assert_eq!(request.model.as_deref(), Some("m"));
//!
//! let prompter = Prompter::without_tokenizer(Options::default())?;
//! let prompted = prompter.prompt(&request);
//! assert_eq!((prompted.tokens(), prompted.why_not), (&[1, 2, 3, 4, 5][..], None));
//! assert_eq!(prompted.content_hashes(4, None, request.cache_salt.as_deref()).len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here is a reason to refuse a request: what cannot be turned into tokens has a [`PromptFailure`] instead, to be
//! counted, and is routed without knowledge of caches. No code here does I/O, but for reading a tokenizer's files.

mod allowance;
mod chat;
mod convert;
mod dialect;
mod dialect_chat;
mod endpoint;
mod endpoint_of_body;
mod engine;
mod error;
mod files;
mod json_string;
mod known_fields;
mod media;
mod messages;
mod pictures;
mod prompt_failure;
mod prompt_tokens;
mod prompter;
mod python;
mod request;
mod request_message;
mod rope;
mod template;
mod tokenizer;
mod truncation;
mod turns;

pub use allowance::reading_memory;
pub use dialect::{Dialect, Engine};
pub use endpoint::Endpoint;
pub use engine::{MESSAGES_RENDER_PATH, Question, RESPONSES_RENDER_PATH, TOKENIZE_PATH, tokenize_answer};
pub use error::Error;
pub use media::{MEDIA_TOKENS, Media, MediaKind};
pub use pictures::{PICTURE_PREFIX, Picture, PictureNames, PictureScope, Pictures};
pub use prompt_failure::PromptFailure;
pub use prompt_tokens::{Placeholders, PromptTokens};
pub use prompter::{Options, Prompter};
pub use request::{Request, SessionFields};
pub use template::{ChatTemplate, Variables};
pub use tokenizer::Library;
pub use turns::{RecalledBody, Turns};
