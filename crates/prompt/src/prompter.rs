//! A model's prompts.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::chat::{Around, Chat, Rendered};
use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::error::Error;
use crate::files::{DEFAULT, Files, WITH_TOOLS};
use crate::media::MEDIA_TOKENS;
use crate::prompted::Prompted;
use crate::request::{Given, Request, read};
use crate::rope::Rope;
use crate::template::{ChatTemplate, Earlier};
use crate::tokenizer::{Library, Tokenized, Tokenizer};
use crate::turns::{Before, Made};
use crate::why_not::WhyNot;

/// How prompts are turned into tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// A chat template instead of the model's.
    pub chat_template: Option<String>,
    /// Variables for chat templates that the engine was started with, as a JSON object
    /// (`--default-chat-template-kwargs`); those of a request go before them.
    pub template_kwargs: Option<String>,
    /// The most bytes that remembered text and tokens may take.
    pub cache_bytes: usize,
    /// Longer prompts, in bytes of text, are not turned into tokens.
    pub max_bytes: usize,
    /// Whether [`Prompted::text`] is wanted.
    pub text: bool,
    /// Which tokenizer library.
    pub library: Library,
    /// Whose way of preparing chats.
    pub engine: Engine,
}

impl Default for Options {
    /// vLLM's way, the quick library where it agrees, 256 MiB to remember, prompts of up to 16 MiB, no text.
    fn default() -> Self {
        Self {
            chat_template: None,
            template_kwargs: None,
            cache_bytes: 256 << 20,
            max_bytes: 16 << 20,
            text: false,
            library: Library::Best,
            engine: Engine::Vllm,
        }
    }
}

/// Bytes of text that are taken for one token where there is no better knowledge.
const BYTES_A_TOKEN: usize = 4;

/// Turns the prompts of one model into tokens. Threads share one.
#[derive(Debug)]
pub struct Prompter {
    /// No other one has it.
    pub(crate) id: u64,
    options: Options,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    with_tools: Option<ChatTemplate>,
    template_kwargs: Vec<(String, Value)>,
    notes: Vec<String>,
}

/// The text of a prompt, and what else is known about it.
struct Text<'a> {
    text: Cow<'a, str>,
    prompts: u32,
    add_special_tokens: bool,
    cut: Option<WhyNot>,
}

impl Prompter {
    /// One that reads a model's tokenizer and chat templates.
    ///
    /// `path` is a directory with `tokenizer.json` as models have it, or that file; chat templates and the names of
    /// special tokens are read from the files beside it.
    ///
    /// # Errors
    ///
    /// [`Error::File`]: a file is missing or cannot be read. [`Error::Template`]: the template of the options is not
    /// valid, or the variables are not a JSON object. A model's own template that is not valid is one of the
    /// [`notes`](Self::notes), and its chats have no tokens.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let files = Files::read(path.as_ref())?;
        let mut made = Self::new(options, &files.special_tokens)?;
        let (tokenizer, note) = Tokenizer::open(&files.tokenizer, made.options.library, made.options.cache_bytes)?;
        made.notes.extend(note);
        if made.options.chat_template.is_none() {
            made.template = made.compiled(&files, DEFAULT);
            made.with_tools = made.compiled(&files, WITH_TOOLS);
        }
        made.tokenizer = Some(tokenizer);
        Ok(made)
    }

    /// One that takes prompts that are given as tokens, and has the text of others.
    ///
    /// # Errors
    ///
    /// [`Error::Template`], as in [`open`](Self::open).
    pub fn without_tokenizer(options: Options) -> Result<Self, Error> {
        Self::new(options, &[])
    }

    fn new(options: Options, special_tokens: &[(String, String)]) -> Result<Self, Error> {
        let template_kwargs = match &options.template_kwargs {
            None => Vec::new(),
            Some(json) => {
                let bad = |why: String| Error::Template { message: format!("variables must be a JSON object: {why}") };
                let object: Value = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
                if object.kind() != ValueKind::Map {
                    return Err(bad(format!("this is a {}", object.kind())));
                }
                let keys = object.try_iter().map_err(|error| bad(error.to_string()))?;
                keys.map(|key| (key.to_string(), object.get_item(&key).unwrap_or_default())).collect()
            }
        };
        let given = options.chat_template.as_deref();
        let template = given.map(|source| ChatTemplate::new(source, special_tokens.to_vec())).transpose()?;
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Relaxed);
        Ok(Self { id, options, tokenizer: None, template, with_tools: None, template_kwargs, notes: Vec::new() })
    }

    fn compiled(&mut self, files: &Files, name: &str) -> Option<ChatTemplate> {
        let source = files.templates.get(name)?;
        match ChatTemplate::new(source, files.special_tokens.clone()) {
            Ok(template) => Some(template),
            Err(error) => {
                self.notes.push(format!("{}, template {name:?}: {error}", files.tokenizer.display()));
                None
            }
        }
    }

    /// What is not as it could be: a chat template that cannot be used, a tokenizer that is not as quick as others.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether text can be turned into tokens.
    #[must_use]
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Whether chats can be turned into text.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a request's prompt.
    #[must_use]
    pub fn prompt(&self, request: &Request<'_>) -> Prompted {
        self.after(request, None).map(|(prompted, _)| prompted).unwrap_or_default()
    }

    /// The same of a request whose first messages may be known, and what is worth to be kept of it. None: what is known
    /// is of no use here, and the request has to be parsed with all of its messages.
    pub(crate) fn after(&self, request: &Request<'_>, before: Option<&Before>) -> Option<(Prompted, Option<Made>)> {
        let mut kept = None;
        let made = match request.given() {
            Ok(Given::Tokens { first, prompts }) => Ok(whole(first, prompts, request)),
            Ok(Given::Text { first, prompts }) => {
                let add_special_tokens = read(request.parts.add_special_tokens).unwrap_or(true);
                Ok(self.tokens(Text { text: first, prompts, add_special_tokens, cut: None }, request))
            }
            Ok(Given::Chat) => self.chat(request, before, &mut kept)?,
            Err(why_not) => Err(why_not),
        };
        let mut made = made.unwrap_or_else(|why_not| Prompted {
            prompt_tokens: estimate(request.body_len()),
            prompts: 1,
            why_not: Some(why_not),
            ..Prompted::default()
        });
        if made.why_not.is_some_and(WhyNot::may_have_media)
            && let Some(media) = request.media()
        {
            let known = u32::try_from(made.token_count()).unwrap_or(u32::MAX);
            made.prompt_tokens = known.max(media.tokens(&MEDIA_TOKENS) as u32);
            made.media = Some(media);
        }
        Some((made, kept))
    }

    fn chat(
        &self,
        request: &Request<'_>,
        before: Option<&Before>,
        kept: &mut Option<Made>,
    ) -> Option<Result<Prompted, WhyNot>> {
        let known = match before {
            Some(before) if before.turn.prompter != self.id => return None,
            Some(before) => &before.turn.messages[..before.count],
            None => &[],
        };
        let chat = match Chat::of(request, &self.template_kwargs, self.options.engine, known) {
            Ok(chat) => chat,
            Err(why_not) => return Some(Err(why_not)),
        };
        let template =
            if chat.has_tools() { self.with_tools.as_ref().or(self.template.as_ref()) } else { self.template.as_ref() };
        let fits = |before: &Before| {
            template.is_some_and(|template| template.as_parts == before.turn.as_parts) && chat.can_follow()
        };
        if before.is_some_and(|before| !fits(before)) {
            return None;
        }
        let Some(template) = template else {
            let (text, cut) = chat.words();
            let why_not = if self.tokenizer.is_some() { WhyNot::NoTemplate } else { WhyNot::NoTokenizer };
            let why_not = Some(cut.unwrap_or(why_not));
            return Some(Ok(self.without_tokens(text.into(), 1, why_not, request)));
        };
        let nothing = Rope::default();
        let earlier = match before {
            None => Earlier { text: &nothing, begins: &[], known: 0 },
            Some(Before { turn, count }) => {
                let known = if turn.around.is_of(&request.parts) { *count } else { 0 };
                Earlier { text: &turn.text, begins: &turn.begins, known }
            }
        };
        let Rendered { text, same, begins, cut, messages, ends } = match chat.render(template, earlier) {
            Ok(rendered) => rendered,
            Err(why_not) => return Some(Err(why_not)),
        };
        // A chat's template writes the special tokens.
        let add_special_tokens = read(request.parts.add_special_tokens).unwrap_or(false);
        let plain = cut.is_none() && !add_special_tokens && text.len() <= self.options.max_bytes;
        let string = || String::from_utf8(text.to_vec()).unwrap_or_default();
        let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| plain) else {
            return Some(Ok(self.tokens(Text { text: string().into(), prompts: 1, add_special_tokens, cut }, request)));
        };
        let tokens = match before {
            Some(Before { turn, .. }) => tokenizer.encode_next(&text, same, &turn.tokens),
            None => tokenizer.encode(&string(), false),
        };
        let Some(tokens) = tokens else {
            return Some(Ok(self.without_tokens(string().into(), 1, Some(WhyNot::NoTokenizer), request)));
        };
        let mut made = whole(tokens.ids.clone(), 1, request);
        if self.options.text {
            made.text = string();
        }
        let around = Around::of(&request.parts);
        *kept = Some(Made { as_parts: template.as_parts, around, ends, begins, messages, text, tokens });
        Some(Ok(made))
    }

    fn tokens(&self, given: Text<'_>, request: &Request<'_>) -> Prompted {
        let Text { text, prompts, add_special_tokens, cut } = given;
        let Some(tokenizer) = &self.tokenizer else {
            return self.without_tokens(text, prompts, Some(cut.unwrap_or(WhyNot::NoTokenizer)), request);
        };
        if text.len() > self.options.max_bytes {
            return self.without_tokens(text, prompts, Some(WhyNot::TooLong), request);
        }
        let Some(Tokenized { ids, .. }) = tokenizer.encode(&text, add_special_tokens) else {
            return self.without_tokens(text, prompts, Some(WhyNot::NoTokenizer), request);
        };
        let mut made = whole(ids, prompts, request);
        if cut.is_some() {
            made.whole = false;
            made.why_not = cut;
            made.prompt_tokens = made.prompt_tokens.max(estimate(request.body_len().min(self.options.max_bytes)));
        }
        made.text = self.kept(text);
        made
    }

    fn without_tokens(
        &self,
        text: Cow<'_, str>,
        prompts: u32,
        why_not: Option<WhyNot>,
        request: &Request<'_>,
    ) -> Prompted {
        let bytes = if request.endpoint == Endpoint::Completions { text.len() } else { request.body_len() };
        Prompted { prompt_tokens: estimate(bytes), prompts, why_not, text: self.kept(text), ..Prompted::default() }
    }

    fn kept(&self, text: Cow<'_, str>) -> String {
        if self.options.text { text.into_owned() } else { String::new() }
    }
}

/// All of a prompt's tokens, but for those that the request has the engine cut off.
fn whole(tokens: impl Into<Rope<u32>>, prompts: u32, request: &Request<'_>) -> Prompted {
    let mut tokens = tokens.into();
    if let Some(most) = read::<usize>(request.parts.truncate_prompt_tokens) {
        tokens = tokens.after(tokens.len().saturating_sub(most)).into();
    }
    let prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Prompted { tokens: tokens.into(), prompt_tokens, whole: true, prompts, ..Prompted::default() }
}

/// Tokens that so many bytes of text may be.
fn estimate(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_A_TOKEN)).unwrap_or(u32::MAX)
}
