//! [`Prompter`] of one model: converts a parsed request to the tokens of its prompt.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::allowance::{self, LONGEST_CHAT, within};
use crate::chat::{Chat, ChatText, Habits, TemplateContext};
use crate::dialect::{Dialect, ThinkingSwitches};
use crate::endpoint::Endpoint;
use crate::files::{DEFAULT, Files, WITH_TOOLS};
use crate::media::MEDIA_TOKENS;
use crate::prompt_tokens::{Error, Placeholders, PromptFailure, PromptTokens, truncated};
use crate::request::{BodyPrompt, Request, TokenIds, is_there, read};
use crate::rope::Rope;
use crate::template::{ChatTemplate, KnownText};
use crate::tokenizer::{Library, TextTokens, Tokenizer};
use crate::turn::{KnownMessages, NewTurn};

/// Options of a [`Prompter`], which converts a model's prompts to tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Chat template (Jinja) used in place of the model's own; `None` to use the model's.
    pub chat_template: Option<String>,
    /// Variables for chat templates set when the engine was started, as a JSON object
    /// (`--default-chat-template-kwargs`); a request's variables override them.
    pub template_kwargs: Option<String>,
    /// Maximum memory for the cache of recently tokenized texts and their tokens, in bytes.
    pub cache_bytes: usize,
    /// Maximum length of a prompt's text that is tokenized, in bytes; longer prompts get no tokens.
    pub max_bytes: usize,
    /// True if results shall contain the prompt's text ([`PromptTokens::text`]).
    pub text: bool,
    /// True if results for chats with images shall contain [`PromptTokens::placeholders`], the positions of images
    /// among the tokens; for engines that put placeholder tokens there.
    pub images: bool,
    /// Library that converts texts to tokens.
    pub library: Library,
    /// Dialect: the engine and its version whose way of preparing chats is reproduced.
    pub dialect: Dialect,
}

impl Default for Options {
    /// Default options: the dialect of the newest vLLM; the quick tokenizer library where its tokens equal those of the
    /// common one; 256 MiB of cache; prompts of up to 16 MiB; no text in results.
    fn default() -> Self {
        Self {
            chat_template: None,
            template_kwargs: None,
            cache_bytes: 256 << 20,
            max_bytes: 16 << 20,
            text: false,
            images: false,
            library: Library::Best,
            dialect: Dialect::default(),
        }
    }
}

/// Assumed number of bytes of text per token, for estimates.
const BYTES_A_TOKEN: usize = 4;

/// Converter of one model's prompts to tokens. May be shared by threads.
#[derive(Debug)]
pub struct Prompter {
    /// Number that no other prompter of the process has.
    pub(crate) id: u64,
    options: Options,
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<Arc<ChatTemplate>>,
    with_tools: Option<Arc<ChatTemplate>>,
    template_kwargs: Vec<(String, Value)>,
    /// Placeholder token that the chat template writes for an image; `None` if the model does not accept images.
    image_token: Option<u32>,
    /// Token at the beginning of each text (`bos_token`); `None` if the model has none.
    begin_token: Option<u32>,
    /// Reasoning effort that makes the chat template turn thinking off in vLLM: `none` or `low`; determined on first
    /// use.
    no_effort: OnceLock<&'static str>,
    notes: Vec<String>,
}

/// Reasoning efforts that a client of `POST /v1/messages` can request.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Returns a number that no other prompter of the process has.
fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(0);
    IDS.fetch_add(1, Relaxed)
}

/// Text of a prompt before the text is tokenized: number of prompts in the request, need of special tokens, and the
/// reason why the text ends early.
struct Text<'a> {
    text: Cow<'a, str>,
    prompts: u32,
    add_special_tokens: bool,
    cut: Option<PromptFailure>,
}

impl Prompter {
    /// Creates a prompter with a model's tokenizer and chat templates, read from files.
    ///
    /// `path` is a directory with `tokenizer.json`, as published with models, or that file; chat templates and the
    /// names of special tokens are read from files in the same directory.
    ///
    /// # Errors
    ///
    /// [`Error::File`]: a file is missing or cannot be read. [`Error::Template`]: the template of the options is not
    /// valid, or the variables are not a JSON object. An invalid template of the model itself is one of the
    /// [`notes`](Self::notes), and chats then have no tokens.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let files = Files::read(path.as_ref())?;
        let mut made = Self::new(options, &files.special_tokens)?;
        let (tokenizer, note) = Tokenizer::open(&files.tokenizer, made.options.library, made.options.cache_bytes)?;
        made.notes.extend(note);
        if made.options.chat_template.is_none() {
            made.template = made.compiled(&files, DEFAULT).map(Arc::new);
            made.with_tools = made.compiled(&files, WITH_TOOLS).map(Arc::new);
        }
        let begin = files.special_tokens.iter().find(|(name, _)| name == "bos_token");
        made.begin_token = begin.and_then(|(_, text)| match tokenizer.encode(text, false)?.ids.to_vec()[..] {
            [one] => Some(one),
            _ => None,
        });
        made.tokenizer = Some(Arc::new(tokenizer));
        made.image_token = files.image_token;
        Ok(made)
    }

    /// Creates a prompter without a tokenizer: prompts given as tokens get their tokens, all others only their text.
    ///
    /// # Errors
    ///
    /// [`Error::Template`], for the reasons given at [`open`](Self::open).
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
        let template = template.map(Arc::new);
        let id = next_id();
        Ok(Self {
            id,
            options,
            tokenizer: None,
            template,
            with_tools: None,
            template_kwargs,
            image_token: None,
            begin_token: None,
            no_effort: OnceLock::new(),
            notes: Vec::new(),
        })
    }

    /// Creates a prompter with the same tokenizer and templates for another dialect.
    #[must_use]
    pub fn with_dialect(&self, dialect: Dialect) -> Self {
        Self {
            id: next_id(),
            options: Options { dialect, ..self.options.clone() },
            tokenizer: self.tokenizer.clone(),
            template: self.template.clone(),
            with_tools: self.with_tools.clone(),
            template_kwargs: self.template_kwargs.clone(),
            image_token: self.image_token,
            begin_token: self.begin_token,
            no_effort: OnceLock::new(),
            notes: Vec::new(),
        }
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

    /// Warnings about the model's files: a chat template that cannot be used, a tokenizer that is slower than others.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// True if texts are tokenized by the quick tokenizer library, or if there is no tokenizer.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.tokenizer.as_ref().is_none_or(|tokenizer| tokenizer.is_quick())
    }

    /// Converts a request's prompt to tokens.
    #[must_use]
    pub fn prompt(&self, request: &Request<'_>) -> PromptTokens {
        self.after(request, None).map(|(prompted, _)| prompted).unwrap_or_default()
    }

    /// Tokens of a chat request, and the data to keep for the chat's next request.
    ///
    /// `before`: leading messages known from an earlier request of the same chat. `None` if these known messages cannot
    /// be used, so that the request has to be parsed again with all of its messages.
    pub(crate) fn after(
        &self,
        request: &Request<'_>,
        before: Option<&KnownMessages>,
    ) -> Option<(PromptTokens, Option<NewTurn>)> {
        let mut kept = None;
        let are_common = request.endpoint.has_plain_prompt() || request.parts.are_common();
        let request = &self.options.dialect.known_fields(request);
        let (made, failure) = within(request.limits, || self.read(request, before, &mut kept));
        let mut made = made?;
        if let Some(why_not) = failure {
            (made, kept) = (Err(why_not), None);
        }
        let mut made = made.unwrap_or_else(|why_not| PromptTokens {
            prompt_tokens: estimate(request.body_len()),
            prompts: 1,
            why_not: Some(why_not),
            ..PromptTokens::default()
        });
        made.is_plain &= are_common;
        if let Some((known, why_not)) = request.known_tokens() {
            made.end_at(known, why_not);
        }
        // The tokens of a prompt given as tokens with places for media are counted exactly.
        if made.why_not.is_some_and(PromptFailure::may_have_media)
            && !is_there(request.parts.features)
            && let Some(media) = request.media()
        {
            let known = u32::try_from(made.token_count()).unwrap_or(u32::MAX);
            made.prompt_tokens = known.max(media.tokens(&MEDIA_TOKENS) as u32);
            made.media = Some(media);
        }
        Some((made, kept))
    }

    /// Converts a prompt, given as text, as tokens or as a chat, to tokens. `None` if the messages known from an
    /// earlier request (`before`) cannot be used.
    fn read(
        &self,
        request: &Request<'_>,
        before: Option<&KnownMessages>,
        kept: &mut Option<NewTurn>,
    ) -> Option<Result<PromptTokens, PromptFailure>> {
        Some(match request.given() {
            Ok(BodyPrompt::Tokens { first: TokenIds { ids, count }, prompts }) => {
                let is_all = count == ids.len();
                let mut made = whole(ids, (0, 0), prompts, request);
                if !is_all {
                    made.whole = false;
                    made.why_not = Some(PromptFailure::TooLong);
                    made.prompt_tokens = u32::try_from(count).unwrap_or(u32::MAX);
                }
                Ok(PromptTokens { is_plain: true, ..made })
            }
            Ok(BodyPrompt::Text { first, cut, prompts }) => {
                let add_special_tokens = read(request.parts.add_special_tokens).unwrap_or(true);
                let cut = cut.then_some(PromptFailure::TooLong);
                let made = self.tokens(Text { text: first, prompts, add_special_tokens, cut }, request);
                Ok(PromptTokens { is_plain: true, ..made })
            }
            Ok(BodyPrompt::Chat) if request.list().is_some_and(|list| list.get().len() > LONGEST_CHAT) => {
                Err(PromptFailure::TooLong)
            }
            Ok(BodyPrompt::Chat) => return self.chat(request, before, kept, true),
            Err(why_not) => Err(why_not),
        })
    }

    fn chat(
        &self,
        request: &Request<'_>,
        before: Option<&KnownMessages>,
        kept: &mut Option<NewTurn>,
        keeps_images: bool,
    ) -> Option<Result<PromptTokens, PromptFailure>> {
        let known = match before {
            Some(before) if before.turn.prompter != self.id => return None,
            Some(before) => before.messages(),
            None => &[],
        };
        let dialect = self.options.dialect;
        // Older vLLM and SGLang try the template without tools only.
        let with_tools = self.with_tools.as_ref().filter(|_| matches!(dialect, Dialect::Vllm31 | Dialect::Vllm32));
        let merges_system = self.template.iter().chain(with_tools).any(|template| template.merges_system(dialect));
        let no_effort = || *self.no_effort.get_or_init(|| self.tried_no_effort());
        let toggle = self.template.as_ref().and_then(|template| template.toggle);
        let thinks = ThinkingSwitches { no_effort: &no_effort, toggle };
        let habits = Habits { defaults: &self.template_kwargs, dialect, merges_system, thinks };
        let mut chat = match Chat::of(request, &habits, known) {
            Ok(chat) => chat,
            Err(why_not) => return Some(Err(why_not)),
        };
        let is_apart = chat.is_apart;
        let plain_messages = match before {
            Some(before) if before.turn.plain < known.len() => before.turn.plain,
            _ => known.len() + chat.plain,
        };
        let is_plain = chat.is_plain(plain_messages);
        let template =
            if chat.has_tools() { self.with_tools.as_ref().or(self.template.as_ref()) } else { self.template.as_ref() };
        let fits = |before: &KnownMessages| {
            template.is_some_and(|template| template.as_parts == before.turn.as_parts) && chat.can_follow() && is_apart
        };
        if before.is_some_and(|before| !fits(before)) {
            return None;
        }
        let Some(template) = template else {
            let (text, cut) = chat.words();
            let why_not = if self.tokenizer.is_some() { PromptFailure::NoTemplate } else { PromptFailure::NoTokenizer };
            let why_not = Some(cut.unwrap_or(why_not));
            return Some(Ok(PromptTokens { is_plain, ..self.without_tokens(text.into(), 1, why_not, request) }));
        };
        // For a template that takes parts, vLLM converts a content that is a string to a list, and SGLang does not.
        let is_plain = is_plain && !template.as_parts;
        let image = self.image_token.filter(|_| keeps_images && template.as_parts && self.can_have_images(request));
        let images = image.map(|token| (token, chat.images())).filter(|(_, count)| *count > 0);
        chat.keeps_images = images.is_some();
        let first = chat.begin(template.as_parts);
        let nothing = Rope::default();
        let earlier = match before {
            None => KnownText { text: &nothing, begins: &[], known: 0 },
            Some(KnownMessages { turn, .. }) => {
                let is_same = turn.first == first && turn.around.is_of(&request.parts);
                let known = if is_same { known.len() + first.iter().len() } else { 0 };
                KnownText { text: &turn.text, begins: &turn.begins, known }
            }
        };
        let ChatText { text, same, begins, answer, cut, mut messages, ends, weight } =
            match chat.render(template, earlier) {
                Ok(rendered) => rendered,
                Err(_) if images.is_some() => return self.chat_up_to_images(request, before, kept),
                Err(why_not) => return Some(Err(why_not)),
            };
        // A chat's template writes the special tokens itself.
        let add_special_tokens = read(request.parts.add_special_tokens).unwrap_or(false);
        let plain = cut.is_none() && !add_special_tokens && text.len() <= self.options.max_bytes;
        let string = || String::from_utf8(text.to_vec()).unwrap_or_default() + answer.as_deref().unwrap_or_default();
        if images.is_some() && !plain {
            return self.chat_up_to_images(request, before, kept);
        }
        let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| plain) else {
            return Some(Ok(self.tokens(Text { text: string().into(), prompts: 1, add_special_tokens, cut }, request)));
        };
        let tokens = match before {
            Some(KnownMessages { turn, .. }) => tokenizer.encode_next(&text, same, &turn.tokens),
            None => std::str::from_utf8(&text.flat()).ok().and_then(|text| tokenizer.encode(text, false)),
        };
        let Some(tokens) = tokens else {
            return Some(Ok(self.without_tokens(string().into(), 1, Some(PromptFailure::NoTokenizer), request)));
        };
        if let Some(why_not) = tokens.cut {
            return Some(Ok(PromptTokens { is_plain, ..self.beginning(tokens, text.len(), request, why_not) }));
        }
        if let Some((image, count)) = images {
            let Some(placeholders) = Placeholders::of(tokens.ids.to_vec(), image, count) else {
                return self.chat_up_to_images(request, before, kept);
            };
            let known: Rope<u32> = placeholders.tokens[..placeholders.places[0]].to_vec().into();
            return Some(Ok(PromptTokens {
                is_plain,
                tokens: known.into(),
                prompts: 1,
                why_not: Some(PromptFailure::Image),
                placeholders: Some(placeholders),
                ..PromptTokens::default()
            }));
        }
        let ids = match answer.as_deref().map(|answer| self.begun(answer)) {
            None => tokens.ids.clone(),
            Some(Some(answer)) => tokens.ids.join_slice(tokens.ids.len(), &answer),
            Some(None) => return Some(Err(PromptFailure::NoTokenizer)),
        };
        let mut made = PromptTokens { is_plain, ..whole(ids, (0, 0), 1, request) };
        if self.options.text {
            made.text = string();
        }
        if !is_apart {
            return Some(Ok(made));
        }
        if first.is_some() {
            messages.remove(0);
        }
        let around = TemplateContext::of(&request.parts);
        *kept = Some(NewTurn {
            first,
            as_parts: template.as_parts,
            plain: plain_messages,
            around,
            ends,
            begins,
            messages,
            text,
            tokens,
            weight,
        });
        Some(Ok(made))
    }

    /// Converts a chat to tokens up to its first image.
    fn chat_up_to_images(
        &self,
        request: &Request<'_>,
        before: Option<&KnownMessages>,
        kept: &mut Option<NewTurn>,
    ) -> Option<Result<PromptTokens, PromptFailure>> {
        allowance::begin_again();
        self.chat(request, before, kept, false)
    }

    /// True if the tokens of the request's images can be known: the engine writes a placeholder token for each image
    /// and does not truncate the prompt.
    fn can_have_images(&self, request: &Request<'_>) -> bool {
        self.options.images
            && self.options.dialect.is_vllm()
            && request.endpoint == Endpoint::Chat
            && !is_there(request.parts.truncate_prompt_tokens)
    }

    /// Tokenizes the beginning of an answer that a request contains. SGLang tokenizes this beginning as a separate
    /// text; the token at the start of every text (`bos_token`) is left out. `None` if tokenizing fails.
    fn begun(&self, answer: &str) -> Option<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref().filter(|_| !answer.is_empty());
        let Some(tokenizer) = tokenizer else { return Some(Vec::new()) };
        let mut ids = tokenizer.encode(answer, true)?.ids.to_vec();
        if ids.first().is_some_and(|first| self.begin_token == Some(*first)) {
            ids.remove(0);
        }
        Some(ids)
    }

    /// Determines the reasoning effort that makes the chat template turn thinking off in vLLM: `none`, or `low` if the
    /// template refuses `none` or renders it like another effort.
    fn tried_no_effort(&self) -> &'static str {
        let text = |effort: &'static str| {
            let thinks = ThinkingSwitches { no_effort: &|| "none", toggle: None };
            let habits =
                Habits { defaults: &self.template_kwargs, dialect: self.options.dialect, merges_system: false, thinks };
            let body =
                format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}], "reasoning_effort": "{effort}"}}"#);
            let request = Request::parse(Endpoint::Chat, body.as_bytes()).ok()?;
            let earlier = KnownText { text: &Rope::default(), begins: &[], known: 0 };
            let chat = Chat::of(&request, &habits, &[]).ok()?;
            Some(chat.render(self.template.as_ref()?, earlier).ok()?.text.to_vec())
        };
        match text("none") {
            Some(none) if !EFFORTS.iter().any(|effort| text(effort).as_ref() == Some(&none)) => "none",
            _ => "low",
        }
    }

    fn tokens(&self, given: Text<'_>, request: &Request<'_>) -> PromptTokens {
        let Text { text, prompts, add_special_tokens, cut } = given;
        let Some(tokenizer) = &self.tokenizer else {
            return self.without_tokens(text, prompts, Some(cut.unwrap_or(PromptFailure::NoTokenizer)), request);
        };
        if text.len() > self.options.max_bytes {
            return self.without_tokens(text, prompts, Some(PromptFailure::TooLong), request);
        }
        let Some(tokens) = tokenizer.encode(&text, add_special_tokens) else {
            return self.without_tokens(text, prompts, Some(PromptFailure::NoTokenizer), request);
        };
        if let Some(why_not) = tokens.cut {
            let made = self.beginning(tokens, text.len(), request, cut.unwrap_or(why_not));
            return PromptTokens { prompts, text: self.kept(text), ..made };
        }
        let ids = tokens.ids;
        let around = if add_special_tokens { tokenizer.around() } else { (0, 0) };
        let mut made = whole(ids, around, prompts, request);
        if cut.is_some() {
            made.whole = false;
            made.why_not = cut;
            made.prompt_tokens = made.prompt_tokens.max(estimate(request.body_len().min(self.options.max_bytes)));
        }
        made.text = self.kept(text);
        made
    }

    /// Makes the result for a long prompt that is tokenized only at its beginning; the total number of tokens is
    /// estimated. `bytes`: length of the whole text.
    fn beginning(
        &self,
        tokens: TextTokens,
        bytes: usize,
        request: &Request<'_>,
        why_not: PromptFailure,
    ) -> PromptTokens {
        let counted = u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX);
        // The engine's truncation of a prompt depends on its whole length.
        let ids = if is_there(request.parts.truncate_prompt_tokens) { Rope::default() } else { tokens.ids };
        PromptTokens {
            tokens: ids.into(),
            prompt_tokens: counted.max(estimate(bytes)),
            prompts: 1,
            why_not: Some(why_not),
            ..PromptTokens::default()
        }
    }

    fn without_tokens(
        &self,
        text: Cow<'_, str>,
        prompts: u32,
        why_not: Option<PromptFailure>,
        request: &Request<'_>,
    ) -> PromptTokens {
        let is_text = matches!(request.endpoint, Endpoint::Completions | Endpoint::Generate);
        let bytes = if is_text { text.len() } else { request.body_len() };
        PromptTokens {
            prompt_tokens: estimate(bytes),
            prompts,
            why_not,
            text: self.kept(text),
            ..PromptTokens::default()
        }
    }

    fn kept(&self, text: Cow<'_, str>) -> String {
        if self.options.text { text.into_owned() } else { String::new() }
    }
}

/// Makes the result for a prompt all of whose tokens are known, after the truncation that the request asks for.
/// `around`: numbers of leading and trailing special tokens added by the tokenizer.
fn whole(tokens: impl Into<Rope<u32>>, around: (usize, usize), prompts: u32, request: &Request<'_>) -> PromptTokens {
    let tokens = truncated(tokens.into(), around, request);
    let prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    PromptTokens { tokens: tokens.into(), prompt_tokens, whole: true, prompts, ..PromptTokens::default() }
}

/// Estimates the number of tokens of a text of `bytes` bytes.
fn estimate(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_A_TOKEN)).unwrap_or(u32::MAX)
}
