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
//! No error of this crate refuses a request: a prompt that cannot be tokenized has a [`PromptFailure`] instead, which is
//! counted, and the request is routed without knowledge of caches. Only a tokenizer's files are read from disk.
//!
//! | module | holds |
//! |---|---|
//! | `endpoint` | the API of a request: by its path, or by its body alone |
//! | `request`, `request_fields` | the parsed body, and its fields, with those of a message of a chat in it |
//! | `json_string` | strings borrowed from the body |
//! | `media`, `pictures` | content that is not text, counted by kind; pictures with names for vLLM |
//! | `dialect` | differences between versions of engines, and the request without the fields that an engine ignores |
//! | `messages` | messages in the form for templates, from a chat request |
//! | `convert` | the same from requests of Messages and Responses, and tools from all three APIs |
//! | `chat` | a chat with messages, tools and variables, rendered to text |
//! | `template`, `python` | chat templates: Jinja as in Python and transformers |
//! | `tokenizer`, `files` | text to tokens; a model's files |
//! | `prompter` | all of it together: from a request to tokens |
//! | `prompt_tokens` | the result, and the reasons why tokens are missing |
//! | `turn`, `turns`, `rope` | data kept for a chat's next turn, and sequences that share their beginning |
//! | `engine` | the request to an engine's `/tokenize`, and its answer |
//! | `allowance` | limits on memory and time |

mod allowance;
mod chat;
mod convert;
mod dialect;
mod endpoint;
mod engine;
mod files;
mod json_string;
mod media;
mod messages;
mod pictures;
mod prompt_tokens;
mod prompter;
mod python;
mod request;
mod request_fields;
mod rope;
mod template;
mod tokenizer;
mod turn;
mod turns;

pub use allowance::reading_memory;
pub use dialect::{Dialect, Engine};
pub use endpoint::Endpoint;
pub use engine::{MESSAGES_RENDER_PATH, Question, RESPONSES_RENDER_PATH, TOKENIZE_PATH, tokenize_answer};
pub use media::{MEDIA_TOKENS, Media, MediaKind};
pub use pictures::{PICTURE_PREFIX, Picture, PictureNames, PictureScope, Pictures};
pub use prompt_tokens::{Error, Placeholders, PromptFailure, PromptTokens};
pub use prompter::{Options, Prompter};
pub use request::{Request, SessionFields};
pub use template::{ChatTemplate, Variables};
pub use tokenizer::Library;
pub use turns::{RecalledBody, Turns};
