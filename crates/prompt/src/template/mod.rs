//! Chat templates: Jinja with the additions of Hugging Face's transformers, as rendered by engines.

mod accepts;
mod environment;
mod local;
mod output;
mod syntax;

use minijinja::{Environment, ErrorKind, Value};

use crate::allowance;
use crate::dialect::Dialect;
use crate::prompt_tokens::{Error, PromptFailure};
use crate::rope::Rope;
use accepts::InlineSystem;
pub(crate) use environment::Clock;
use environment::{FUEL, fuel_for};
use output::{MeteredMessages, Output};

/// Name of the chat template within its rendering environments.
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    /// Rendering environments that contain the template, one for each work limit of [`FUEL`].
    environments: [Environment<'static>; FUEL.len()],
    /// True if the template accepts a message's content as a list of parts; determined by a loop over the content.
    pub as_parts: bool,
    /// True if the template writes each message independently of all others except its neighbours.
    is_local: bool,
    inline_system: InlineSystem,
    /// Variable by which SGLang turns the template's thinking off; `None` if the template has no such variable.
    pub(crate) toggle: Option<&'static str>,
    special_tokens: Vec<(String, Value)>,
}

/// Variables for rendering a template, besides special tokens.
#[derive(Debug, Default)]
pub struct Variables {
    /// Messages of the chat, as values for templates.
    pub messages: Vec<Value>,
    /// Tools offered to the model; `None` is passed to the template as `none`, which differs there from an undefined
    /// variable.
    pub tools: Option<Value>,
    /// Documents for retrieval, for templates that include them.
    pub documents: Option<Value>,
    /// True if the rendered text ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Further variables for the template. They override the fields of this struct except the messages.
    pub more: Vec<(String, Value)>,
}

/// Text of the chat's earlier request, which the next text is likely to continue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownText<'t> {
    pub(crate) text: &'t Rope<u8>,
    /// Offset at which each message begins in the text, in bytes; empty if unknown.
    pub(crate) begins: &'t [usize],
    /// Number of leading messages equal to those of the earlier text, if all other inputs of the template are equal;
    /// else 0.
    pub(crate) known: usize,
}

/// Rendered text of a chat, with the data that the next rendering needs to reuse it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: Rope<u8>,
    /// Number of leading bytes that equal the text rendered earlier.
    pub(crate) same: usize,
    /// Offset at which each message begins in the text, in bytes; empty if unknown.
    pub(crate) begins: Vec<usize>,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens`: names (`bos_token`, `eos_token`, …) and texts of special tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Template`]: the source is not valid, or uses an unsupported feature.
    pub fn new<K: Into<String>, V: Into<String>>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, Error> {
        Self::with_clock(source, special_tokens, Clock::default())
    }

    pub(crate) fn with_clock<K: Into<String>, V: Into<String>>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (K, V)>,
        clock: Clock,
    ) -> Result<Self, Error> {
        if syntax::adds_to_itself(source) {
            let message = "adds a value to itself, which can make more than any memory holds".to_owned();
            return Err(Error::Template { message });
        }
        let inline_system = InlineSystem::of(source);
        let toggle = ["enable_thinking", "thinking"].into_iter().find(|name| has_word(source, name));
        let source = syntax::without_marks(source);
        let invalid = |error: minijinja::Error| Error::Template { message: format!("is not valid: {error}") };
        let as_parts = accepts::wants_parts(&source).map_err(invalid)?;
        let is_local = local::is_local(&source).map_err(invalid)?;
        let mut environment = environment::environment(clock);
        environment.add_template_owned(NAME, syntax::with_pieces(&source)).map_err(invalid)?;
        let environments = FUEL.map(|fuel| {
            let mut environment = environment.clone();
            environment.set_fuel(Some(fuel));
            environment
        });
        let special_tokens =
            special_tokens.into_iter().map(|(name, token)| (name.into(), Value::from(token.into()))).collect();
        Ok(Self { environments, as_parts, is_local, inline_system, toggle, special_tokens })
    }

    /// True if an engine moves system messages after the first to the top of the chat for this template.
    pub(crate) fn merges_system(&self, dialect: Dialect) -> bool {
        self.inline_system.is_merged(dialect)
    }

    /// Renders the text of a chat.
    ///
    /// # Errors
    ///
    /// The message with which the template refuses the chat, or a description of the failure.
    pub fn render(&self, variables: Variables) -> Result<String, String> {
        let nothing = Rope::default();
        let (_, text, _) = self.write(&nothing, variables)?;
        String::from_utf8(text).map_err(|_| "a template wrote something that is not text".to_owned())
    }

    /// Renders the text of a chat. The beginning that equals the text of an earlier request is shared with that text.
    pub(crate) fn render_after(&self, earlier: KnownText<'_>, variables: Variables) -> Result<Text, String> {
        if let Some(text) = self.last_messages(earlier, &variables) {
            return Ok(text);
        }
        let (same, rest, begins) = self.write(earlier.text, variables)?;
        Ok(Text { text: earlier.text.join_vec(same, rest), same, begins })
    }

    /// Renders only the end of a chat's text. `None` if the whole text has to be rendered.
    ///
    /// The text of a message depends on its neighbours, on its being the first or last, and on its index being even
    /// ([`local`]). The last known message may therefore be written differently now, and all messages before it are
    /// unchanged. A shorter chat is rendered: the first message, and the messages from at least one before the last
    /// known message on, so that the last known message keeps its neighbours, with an even number of messages left out
    /// in between.
    fn last_messages(&self, earlier: KnownText<'_>, variables: &Variables) -> Option<Text> {
        let KnownText { text, begins, known } = earlier;
        let messages = &variables.messages;
        let last = known.checked_sub(1)?;
        let from = last.checked_sub(1)? / 2 * 2 + 1;
        let from = if from > last - 1 { from.checked_sub(2)? } else { from };
        if !self.is_local || from < 3 || begins.len() < known || messages.len() < known {
            return None;
        }
        let short = Variables {
            messages: messages[..1].iter().chain(&messages[from..]).cloned().collect(),
            tools: variables.tools.clone(),
            documents: variables.documents.clone(),
            add_generation_prompt: variables.add_generation_prompt,
            more: variables.more.clone(),
        };
        let count = short.messages.len();
        let (same, rest, made) = self.write(text, short).ok()?;
        // The text around the first message must be equal to the earlier one.
        if made.len() != count || made[0] != begins[0] || made[1] != begins[1] || same < made[1] {
            return None;
        }
        let at = 1 + last - from;
        let new = rest.get(made[at].checked_sub(same)?..)?;
        let start = begins[last];
        let mut all = begins[..last].to_vec();
        all.extend(made[at..].iter().map(|begin| begin - made[at] + start));
        let same = start + text.common(start, new);
        Some(Text { text: text.join_slice(same, &new[same - start..]), same, begins: all })
    }

    /// Renders a chat and compares the output with an earlier text.
    ///
    /// Returns the number of leading bytes that equal the earlier text, the bytes after them, and the offset of each
    /// message's text, if the template writes messages independently.
    fn write(&self, earlier: &Rope<u8>, variables: Variables) -> Result<(usize, Vec<u8>, Vec<usize>), String> {
        let (length, count) = (texts_length(&variables.messages), variables.messages.len());
        let room = if earlier.len() == 0 { length } else { 0 };
        let mut output = Output::after(earlier, room);
        let (messages, watched) = if self.is_local {
            let watched = MeteredMessages::new(variables.messages, output.written().clone());
            (Value::from_dyn_object(watched.clone()), Some(watched))
        } else {
            (Value::from(variables.messages), None)
        };
        let mut context: Vec<(String, Value)> = self.special_tokens.clone();
        context.push(("tools".into(), variables.tools.unwrap_or(Value::from(()))));
        context.push(("documents".into(), variables.documents.unwrap_or(Value::from(()))));
        context.push(("add_generation_prompt".into(), variables.add_generation_prompt.into()));
        context.extend(variables.more);
        context.push(("messages".into(), messages));
        let context = Value::from_pairs(context);
        let environment = &self.environments[fuel_for(count, length)];
        let template = environment.get_template(NAME).map_err(|error| error.to_string())?;
        template.render_captured_to(context, &mut output).map_err(|error| {
            if error.kind() == ErrorKind::OutOfFuel {
                allowance::fail(PromptFailure::TookTooLong);
            }
            error.to_string()
        })?;
        let (same, rest) = output.text();
        Ok((same, rest, watched.map(|watched| watched.begins()).unwrap_or_default()))
    }
}

/// Estimated length of a chat's rendered text in bytes: the messages' texts, where they are strings, and a constant for
/// the template's text around each message.
fn texts_length(messages: &[Value]) -> usize {
    /// Assumed length of the template's text around one message, in bytes.
    const AROUND: usize = 64;
    let text = |message: &Value| message.get_attr("content").ok()?.as_str().map(str::len);
    messages.iter().map(|message| text(message).unwrap_or(0) + AROUND).sum()
}

/// True if a name occurs anywhere in a template's source, in code or in text.
fn has_word(source: &str, name: &str) -> bool {
    let is_other = |at: Option<char>| at.is_none_or(|char| !char.is_alphanumeric() && !"_<>/\"'.".contains(char));
    let is_word =
        |at: usize| is_other(source[..at].chars().next_back()) && is_other(source[at + name.len()..].chars().next());
    source.match_indices(name).any(|(at, _)| is_word(at))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::civil::DateTime;
    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;
    use crate::chat::{Chat, Habits};
    use crate::dialect::ThinkingSwitches;
    use crate::rope::Rope;
    use crate::template::{ChatTemplate, Clock, KnownText};
    use crate::{Dialect, Endpoint, Request};

    /// Renders a chat that grows and is cut back request by request: the result with the previous text must equal the
    /// result without it.
    #[test]
    fn the_end_alone_is_as_all_of_it() {
        let public: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/templates.json")).expect("the file of templates");
        let own = "{{ messages[0].role }}{% for m in messages %}{% if loop.first %}^{% endif %}{{ loop.index0 % 2 }}\
            {{ messages[loop.index0 - 1].content }}{{ m.role }}{{ m.content }}{% if loop.last %}${% endif %}\
            {{ messages[loop.index0 + 1].content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}";
        let public = public["templates"].as_object().expect("templates by name").iter();
        let mut sources: Vec<(&str, &str)> =
            public.map(|(name, family)| (&**name, family["template"].as_str().unwrap_or_default())).collect();
        sources.push(("own", own));
        let (mut local, mut shortened) = (0, 0);
        for (name, source) in sources {
            let template =
                ChatTemplate::new(source, [("bos_token", "<s>"), ("eos_token", "</s>")]).expect("a template");
            local += usize::from(template.is_local);
            for seed in 0..12_usize {
                let message = |at: usize, step: usize| {
                    let role = match (at, (at * 7 + seed * 5 + step) % 11) {
                        (0, _) if seed % 3 > 0 => "system",
                        (_, 3) if seed % 4 == 0 => "tool",
                        _ => ["assistant", "user"][(at + seed % 3) % 2],
                    };
                    let text = format!(" {seed}:{at}:{step} ").repeat(1 + (at * seed) % 9);
                    let content = if template.as_parts && role != "tool" {
                        Value::from(vec![Value::from_pairs([
                            ("type", Value::from("text")),
                            ("text", Value::from(text)),
                        ])])
                    } else {
                        Value::from(text)
                    };
                    Value::from_pairs([("role", Value::from(role)), ("content", content)])
                };
                let (mut before, mut chat) = (Text { text: Rope::default(), same: 0, begins: Vec::new() }, Vec::new());
                // Numbers of messages to keep and to add.
                for (step, (stay, come)) in
                    [(0, 3), (3, 1), (4, 1), (4, 2), (6, 5), (11, 1), (9, 3), (11, 0), (8, 6), (14, 1), (4, 1), (5, 9)]
                        .into_iter()
                        .enumerate()
                {
                    chat.truncate(stay);
                    chat.extend((stay..stay + come).map(|at| message(at, step)));
                    let variables = || Variables {
                        messages: chat.clone(),
                        add_generation_prompt: seed % 2 == 0,
                        ..Variables::default()
                    };
                    let nothing = Rope::default();
                    let whole = template.render_after(KnownText { text: &nothing, begins: &[], known: 0 }, variables());
                    let Ok(whole) = whole else { break };
                    let earlier = KnownText { text: &before.text, begins: &before.begins, known: stay };
                    shortened += usize::from(template.last_messages(earlier, &variables()).is_some());
                    let got = template.render_after(earlier, variables()).expect("a text");
                    let text = |text: &Text| String::from_utf8(text.text.to_vec()).expect("a text");
                    assert_eq!(text(&got), text(&whole), "{name}, seed {seed}, step {step}");
                    assert_eq!(got.begins, whole.begins, "{name}, seed {seed}, step {step}");
                    assert!(got.same <= before.text.len() && before.text.common(0, &got.text.to_vec()) >= got.same);
                    before = got;
                }
            }
        }
        assert!(local >= 8 && shortened >= 200, "{local} templates, {shortened} texts");
    }

    #[derive(Deserialize)]
    struct Samples {
        special_tokens: BTreeMap<String, String>,
        now: String,
        bodies: BTreeMap<String, Box<RawValue>>,
        templates: BTreeMap<String, Family>,
    }

    #[derive(Deserialize)]
    struct Family {
        template: String,
        as_parts: bool,
        expected: BTreeMap<String, Option<String>>,
    }

    fn golden() -> Samples {
        let path = std::env::var("KVATLAS_TEMPLATES")
            .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates.json").to_owned());
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn as_transformers_renders_them() {
        let golden = golden();
        let now: DateTime = golden.now.parse().unwrap();
        let clock = Clock::at(now.to_zoned(jiff::tz::TimeZone::UTC).unwrap());
        let thinks = ThinkingSwitches { no_effort: &|| "none", toggle: None };
        let habits = Habits { defaults: &[], dialect: Dialect::Vllm32, merges_system: false, thinks };
        let mut wrong = Vec::new();
        let mut right = 0;
        for (name, family) in &golden.templates {
            let template =
                match ChatTemplate::with_clock(&family.template, golden.special_tokens.clone(), clock.clone()) {
                    Ok(template) => template,
                    Err(error) => {
                        wrong.push(format!("{name}: {error}"));
                        continue;
                    }
                };
            if template.as_parts != family.as_parts {
                wrong.push(format!("{name}: as_parts {}", template.as_parts));
            }
            for (case, expected) in &family.expected {
                let request = Request::parse(Endpoint::Chat, golden.bodies[case].get().as_bytes()).unwrap();
                let got = Chat::of(&request, &habits, &[]).and_then(|chat| {
                    let nothing = KnownText { text: &Rope::default(), begins: &[], known: 0 };
                    chat.render(&template, nothing)
                });
                match (got, expected) {
                    (Ok(got), Some(expected)) if got.text.to_vec() == expected.as_bytes() => right += 1,
                    (Err(_), None) => right += 1,
                    (got, expected) => {
                        wrong.push(format!("{name}/{case}:\n  got      {got:?}\n  expected {expected:?}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} right, {} wrong:\n{}", right, wrong.len(), wrong.join("\n"));
        assert!(golden.templates.len() >= 12 && right >= 200, "{right} texts of {} templates", golden.templates.len());
    }
}
