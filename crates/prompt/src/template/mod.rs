//! Chat templates: Jinja with what Hugging Face's transformers offers them, which is what engines render with.

mod doubling;
mod environment;
mod generation;
#[cfg(test)]
mod golden;
mod inline_system;
mod local;
mod metered_messages;
mod output;
mod pieces;
mod strftime;
mod syntax;
mod wants_parts;
mod work;

use minijinja::{Environment, ErrorKind, Value};

use crate::allowance;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::prompt_failure::PromptFailure;
use crate::rope::Rope;

pub(crate) use environment::Clock;
use inline_system::InlineSystem;
use metered_messages::MeteredMessages;
use output::Output;
use work::{FUEL, fuel_for};

/// The name of the only template in its environment.
const NAME: &str = "chat";

/// A chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    /// Environments with the template, which differ in how much it may do: [`FUEL`].
    environments: [Environment<'static>; FUEL.len()],
    /// True if the template takes the content of a message as a list of parts: it does if it loops over one.
    pub as_parts: bool,
    /// True if the template writes each message for itself.
    is_local: bool,
    inline_system: InlineSystem,
    /// The variable by which SGLang has the template leave out thinking.
    pub(crate) toggle: Option<&'static str>,
    special_tokens: Vec<(String, Value)>,
}

/// The variables that a template is rendered with, beside special tokens.
#[derive(Debug, Default)]
pub struct Variables {
    /// The messages, as templates take them.
    pub messages: Vec<Value>,
    /// The tools offered; undefined is not the same as none.
    pub tools: Option<Value>,
    /// The documents, for templates that take them.
    pub documents: Option<Value>,
    /// True if the beginning of the assistant's answer follows.
    pub add_generation_prompt: bool,
    /// Any others, which go before those above but for the messages.
    pub more: Vec<(String, Value)>,
}

/// A text that was written before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownText<'t> {
    pub(crate) text: &'t Rope<u8>,
    /// Places at which the text of each message begins; empty if they are not known.
    pub(crate) begins: &'t [usize],
    /// Number of messages that are the same, if all else that the template is given is the same too; else 0.
    pub(crate) known: usize,
}

/// The text that a template writes.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: Rope<u8>,
    /// Number of leading bytes that are those of the earlier text.
    pub(crate) same: usize,
    /// Places at which the text of each message begins, as in [`KnownText`].
    pub(crate) begins: Vec<usize>,
}

impl ChatTemplate {
    /// Compile it. `special_tokens` are what `bos_token`, `eos_token` and so on are in it.
    ///
    /// # Errors
    ///
    /// [`Error::Template`]: it is not valid, or uses what is not supported here.
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
        if doubling::adds_to_itself(source) {
            let message = "adds a value to itself, which can make more than any memory holds".to_owned();
            return Err(Error::Template { message });
        }
        let inline_system = InlineSystem::of(source);
        let toggle = ["enable_thinking", "thinking"].into_iter().find(|name| has_word(source, name));
        let source = generation::without_marks(source);
        let invalid = |error: minijinja::Error| Error::Template { message: format!("is not valid: {error}") };
        let as_parts = wants_parts::wants_parts(&source).map_err(invalid)?;
        let is_local = local::is_local(&source).map_err(invalid)?;
        let mut environment = environment::environment(clock);
        environment.add_template_owned(NAME, pieces::with_pieces(&source)).map_err(invalid)?;
        let environments = FUEL.map(|fuel| {
            let mut environment = environment.clone();
            environment.set_fuel(Some(fuel));
            environment
        });
        let special_tokens =
            special_tokens.into_iter().map(|(name, token)| (name.into(), Value::from(token.into()))).collect();
        Ok(Self { environments, as_parts, is_local, inline_system, toggle, special_tokens })
    }

    /// True if an engine takes system messages of Messages to the top for this template.
    pub(crate) fn merges_system(&self, dialect: Dialect) -> bool {
        self.inline_system.is_merged(dialect)
    }

    /// The text of a chat.
    ///
    /// # Errors
    ///
    /// In words: what the template refuses the messages for, or how it fails for them.
    pub fn render(&self, variables: Variables) -> Result<String, String> {
        let nothing = Rope::default();
        let (_, text, _) = self.write(&nothing, variables)?;
        String::from_utf8(text).map_err(|_| "a template wrote something that is not text".to_owned())
    }

    /// The text of a chat after an earlier text: what is of that is not written again.
    pub(crate) fn render_after(&self, earlier: KnownText<'_>, variables: Variables) -> Result<Text, String> {
        if let Some(text) = self.last_messages(earlier, &variables) {
            return Ok(text);
        }
        let (same, rest, begins) = self.write(earlier.text, variables)?;
        Ok(Text { text: earlier.text.join_vec(same, rest), same, begins })
    }

    /// The text where only its end has to be written. None: all of it has to be.
    ///
    /// What is written for a message depends on those beside it, on its being the first or last, and on whether its place
    /// is even ([`local`]). So the last message that is known may be written in another way now, and all before are as
    /// they were. What is rendered is a shorter chat: the first message, and from at least one before the last known one
    /// on, so that the last known one has its own neighbours, with an even number left out between.
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
        // What stands before the first message, and that one, must have come out as before.
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

    /// Writes the text. Returns how many bytes are those of the earlier text, those that follow, and where the text for
    /// each message begins, if each is written for itself.
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

/// Bytes that the texts of messages are, where they are strings, and a little for what a template writes around each.
fn texts_length(messages: &[Value]) -> usize {
    /// Marks and names.
    const AROUND: usize = 64;
    let text = |message: &Value| message.get_attr("content").ok()?.as_str().map(str::len);
    messages.iter().map(|message| text(message).unwrap_or(0) + AROUND).sum()
}

/// True if a name stands in a template, be it in what is code there or not.
fn has_word(source: &str, name: &str) -> bool {
    let is_other = |at: Option<char>| at.is_none_or(|char| !char.is_alphanumeric() && !"_<>/\"'.".contains(char));
    let is_word =
        |at: usize| is_other(source[..at].chars().next_back()) && is_other(source[at + name.len()..].chars().next());
    source.match_indices(name).any(|(at, _)| is_word(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chat that goes on, and is cut back, turn by turn: with the text of the turn before and without, it is the same.
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
                // So many messages stay, and so many come.
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
}
