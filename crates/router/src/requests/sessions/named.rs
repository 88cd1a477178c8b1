//! Sessions named in fields of the body or in headers, and further facts about a request that clients send in headers.
//!
//! | client | headers |
//! |---|---|
//! | Dynamo's | `x-dynamo-session-id`, `x-dynamo-parent-session-id`, `x-dynamo-session-final` |
//! | Claude Code | `x-claude-code-session-id`; of an agent also `-agent-id`, and `-parent-agent-id` if another agent started it; with `CLAUDE_CODE_GATEWAY_HINT_HEADERS`, `-request-class`, `-compaction`, `-context-compacted`, `-prev-tool-durations` |
//! | Codex | `thread-id` and `session-id`; `session_id` before 0.144 |
//! | OpenCode and others | `x-session-id`, `x-session-affinity`, `x-opencode-session`, `x-hermes-session-id`; `x-parent-session-id` |

use std::borrow::Cow;

use hyper::header::{HeaderMap, HeaderName};
use kvatlas_prompt::SessionFields;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::turn::{Class, Hints, Name};
use crate::config::Source;

/// Sessions named in the fields of a body, by the kind of field.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BodyNames {
    body: Option<Name>,
    metadata: Option<Name>,
    cache_key: Option<Name>,
}

impl BodyNames {
    /// Reads the session ids in the fields of a body.
    pub(crate) fn of(fields: &SessionFields<'_>) -> Self {
        let body = plain(fields.session_id)
            .or_else(|| agent(fields.agentic_context))
            .or_else(|| read::<Arguments<'_>>(fields.vllm_xargs)?.name())
            .or_else(|| read::<Dynamo<'_>>(fields.nvext)?.name())
            .or_else(|| agent(fields.session_params));
        Self {
            body,
            metadata: read::<Metadata<'_>>(fields.metadata).and_then(|metadata| metadata.name()),
            cache_key: plain(fields.prompt_cache_key),
        }
    }

    /// Returns the session named in the fields of the kind `source`; None if they name none.
    pub(super) fn name(&self, source: Source) -> Option<Name> {
        match source {
            Source::Body => self.body,
            Source::Metadata => self.metadata,
            Source::CacheKey => self.cache_key,
            _ => None,
        }
    }
}

/// Identity of an agent in a body, with the field names of Dynamo and vllm-router.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Context<'a> {
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    trajectory_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_trajectory_id: Option<&'a RawValue>,
    #[serde(borrow)]
    program_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_program_id: Option<&'a RawValue>,
    #[serde(borrow)]
    agent_id: Option<&'a RawValue>,
    /// Id of a session in SGLang's format.
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

impl<'a> Context<'a> {
    /// Returns the most specific session that the fields name: the agent's own, else the whole session; None if no
    /// field names one.
    fn name(&self) -> Option<Name> {
        let named = |name, parent| {
            let parent: Option<Cow<'_, str>> = text(parent);
            text(name).map(|name| Name::new(name.as_bytes(), parent.as_deref().map(str::as_bytes)))
        };
        let session = text(self.session_id);
        named(self.program_id, self.parent_program_id)
            .or_else(|| named(self.trajectory_id, self.parent_trajectory_id))
            .or_else(|| Some(Name::of_agent(session.as_ref()?.as_bytes(), text(self.agent_id)?.as_bytes(), None)))
            .or_else(|| named(self.session_id, self.parent_session_id))
            .or_else(|| named(self.id, None))
    }
}

/// Parses an object that identifies an agent. The object may be written as a string, as some fields accept only
/// strings.
fn agent(raw: Option<&RawValue>) -> Option<Name> {
    match text(raw) {
        Some(inner) => serde_json::from_str::<Context<'_>>(&inner).ok()?.name(),
        None => read::<Context<'_>>(raw)?.name(),
    }
}

/// Session fields in vLLM's `vllm_xargs`, a field of the body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments<'a> {
    #[serde(borrow)]
    agentic_context: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
}

impl Arguments<'_> {
    fn name(&self) -> Option<Name> {
        agent(self.agentic_context).or_else(|| plain(self.session_id))
    }
}

/// Session fields in Dynamo's `nvext`, a field of the body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Dynamo<'a> {
    #[serde(borrow)]
    agent_context: Option<&'a RawValue>,
    #[serde(borrow)]
    session_control: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
}

impl Dynamo<'_> {
    fn name(&self) -> Option<Name> {
        agent(self.agent_context).or_else(|| plain(self.session_id)).or_else(|| agent(self.session_control))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    user_id: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
}

impl Metadata<'_> {
    /// Returns the session within `user_id`, in either of Claude Code's two formats, or else in `session_id`.
    fn name(&self) -> Option<Name> {
        #[derive(Deserialize)]
        struct User<'a> {
            #[serde(borrow)]
            session_id: Cow<'a, str>,
        }
        let of_user = |user: &str| {
            let new = serde_json::from_str::<User<'_>>(user).ok().map(|user| user.session_id.into_owned());
            let old = || user.rsplit_once("_session_").map(|(_, session)| session.to_owned());
            new.or_else(old).filter(|session| !session.is_empty())
        };
        let within = text(self.user_id).and_then(|user| of_user(&user));
        within.map(|session| Name::new(session.as_bytes(), None)).or_else(|| plain(self.session_id))
    }
}

/// Returns the session whose id is a JSON string or number; None for other values.
fn plain(raw: Option<&RawValue>) -> Option<Name> {
    text(raw).map(|name| Name::new(name.as_bytes(), None))
}

/// Returns a non-empty string, or a number as text; None for any other value.
fn text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let raw = raw?;
    if raw.get().starts_with(|first: char| first.is_ascii_digit()) {
        return Some(raw.get().into());
    }
    read::<Cow<'_, str>>(Some(raw)).filter(|text| !text.trim().is_empty())
}

fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Headers of a request that concern its session. Empty headers count as missing.
#[derive(Default)]
pub(super) struct Headers<'h> {
    own: Option<&'h [u8]>,
    dynamo: Option<&'h [u8]>,
    dynamo_parent: Option<&'h [u8]>,
    claude: Option<&'h [u8]>,
    claude_agent: Option<&'h [u8]>,
    claude_parent: Option<&'h [u8]>,
    thread: Option<&'h [u8]>,
    session: Option<&'h [u8]>,
    session_before: Option<&'h [u8]>,
    /// Headers with a session's id that various clients send, in the order of [`COMMON`].
    common: [Option<&'h [u8]>; COMMON.len()],
    parent: Option<&'h [u8]>,
    pub(super) hints: Hints,
}

/// Headers with a session's id, sent by various clients.
const COMMON: [&str; 4] = ["x-session-id", "x-session-affinity", "x-opencode-session", "x-hermes-session-id"];

impl<'h> Headers<'h> {
    /// Reads all headers that concern the session. `own`: name of the header that the operator configured.
    pub(super) fn of(headers: &'h HeaderMap, own: Option<&HeaderName>) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            let value = value.as_bytes().trim_ascii();
            if value.is_empty() {
                continue;
            }
            if own == Some(name) {
                found.own = Some(value);
            }
            found.take(name.as_str(), value);
        }
        found
    }

    fn take(&mut self, name: &str, value: &'h [u8]) {
        let slot = match name {
            "x-dynamo-session-id" => &mut self.dynamo,
            "x-dynamo-parent-session-id" => &mut self.dynamo_parent,
            "x-claude-code-session-id" => &mut self.claude,
            "x-claude-code-agent-id" => &mut self.claude_agent,
            "x-claude-code-parent-agent-id" => &mut self.claude_parent,
            "thread-id" => &mut self.thread,
            "session-id" => &mut self.session,
            "session_id" => &mut self.session_before,
            "x-parent-session-id" => &mut self.parent,
            "x-dynamo-session-final" => {
                self.hints.is_last = is_yes(value);
                return;
            }
            "x-claude-code-request-class" => {
                self.hints.class = Class::of(value).or(self.hints.class);
                return;
            }
            // Older than the class, and sent beside it.
            "x-claude-code-compaction" => {
                self.hints.class = is_yes(value).then_some(Class::Compaction).or(self.hints.class);
                return;
            }
            "x-claude-code-context-compacted" => {
                self.hints.is_compacted = is_yes(value);
                return;
            }
            "x-claude-code-prev-tool-durations" => {
                self.hints.tools = seconds(value);
                return;
            }
            _ => match COMMON.iter().position(|common| *common == name) {
                Some(at) => &mut self.common[at],
                None => return,
            },
        };
        *slot = Some(value);
    }

    /// Returns the session named in the headers of the kind `source`; None if they name none.
    pub(super) fn name(&self, source: Source) -> Option<Name> {
        match source {
            Source::OwnHeader => Some(Name::new(self.own?, self.parent)),
            Source::Dynamo => Some(Name::new(self.dynamo?, self.dynamo_parent)),
            Source::ClaudeCode => {
                let session = self.claude?;
                Some(match self.claude_agent {
                    Some(agent) => Name::of_agent(session, agent, self.claude_parent),
                    None => Name::new(session, None),
                })
            }
            // A thread that has another name than its session was started by another thread of it.
            Source::Codex => match self.thread {
                Some(thread) => Some(Name::new(thread, self.session.or(self.session_before))),
                None => Some(Name::new(self.session.or(self.session_before)?, self.parent)),
            },
            Source::CommonHeaders => Some(Name::new(self.common.into_iter().flatten().next()?, self.parent)),
            Source::Body | Source::Metadata | Source::CacheKey | Source::Prefix => None,
        }
    }
}

/// True unless the value of a flag in a header means no.
fn is_yes(value: &[u8]) -> bool {
    !["0", "false", "no", "none"].iter().any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}

/// Parses the durations of tools from a text such as `Bash=742;Read=9`, in milliseconds, and returns the sum in
/// seconds; None if the text has no numbers.
fn seconds(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let took = text.split(';').filter_map(|tool| tool.rsplit_once('=')?.1.trim().parse::<u32>().ok());
    let (count, sum) = took.fold((0, 0.0), |(count, sum), took| (count + 1, sum + f64::from(took)));
    (count > 0).then_some(sum / 1e3)
}

#[cfg(test)]
mod tests {
    use kvatlas_prompt::{Endpoint, Request};

    use super::super::named::*;

    fn names(body: &str) -> BodyNames {
        BodyNames::of(&Request::parse(Endpoint::Chat, body.as_bytes()).expect("JSON").session)
    }

    #[test]
    fn fields_that_are_for_sessions() {
        let plain = Name::new(b"s", None);
        let child = Name::new(b"s", Some(b"p"));
        for (body, expected) in [
            (r#"{"session_id": "s"}"#, plain),
            (r#"{"session_id": 7}"#, Name::new(b"7", None)),
            (r#"{"session_params": {"id": "s"}}"#, plain),
            (r#"{"session_params": {"session_id": "s"}}"#, plain),
            (r#"{"vllm_xargs": {"session_id": "s"}}"#, plain),
            (
                r#"{"vllm_xargs": {"agentic_context": {"program_id": "s", "session_id": "x", "parent_program_id": "p"}}}"#,
                child,
            ),
            (r#"{"vllm_xargs": {"agentic_context": "{\"program_id\": \"s\", \"parent_program_id\": \"p\"}"}}"#, child),
            (r#"{"agentic_context": {"session_id": "s", "agent_id": "a"}}"#, Name::of_agent(b"s", b"a", None)),
            (
                r#"{"nvext": {"agent_context": {"session_id": "x", "trajectory_id": "s", "parent_trajectory_id": "p"}}}"#,
                child,
            ),
            (r#"{"nvext": {"agent_context": {"session_id": "s", "parent_session_id": "p"}}}"#, child),
            (r#"{"nvext": {"session_control": {"session_id": "s", "action": "open"}}}"#, plain),
        ] {
            assert_eq!(names(body).name(Source::Body), Some(expected), "{body}");
        }
    }

    #[test]
    fn sessions_within_metadata() {
        let expected = Some(Name::new(b"6f9c", None));
        for body in [
            r#"{"metadata": {"user_id": "user_0a1b_account_77aa_session_6f9c"}}"#,
            r#"{"metadata": {"user_id": "user_0a1b_account__session_6f9c"}}"#,
            r#"{"metadata": {"user_id": "{\"device_id\": \"0a1b\", \"account_uuid\": \"\", \"session_id\": \"6f9c\"}"}}"#,
            r#"{"metadata": {"user_id": "somebody", "session_id": "6f9c"}}"#,
        ] {
            assert_eq!(names(body).name(Source::Metadata), expected, "{body}");
        }
    }

    #[test]
    fn a_person_is_no_session() {
        for body in [
            r#"{"user": "u", "safety_identifier": "i", "previous_response_id": "r"}"#,
            r#"{"metadata": {"user_id": "somebody"}}"#,
            r#"{"metadata": {"user_id": "user_1_session_"}, "session_id": "", "prompt_cache_key": null}"#,
            r#"{"metadata": "s", "session_id": {}, "nvext": [], "vllm_xargs": {"agentic_context": "x"}}"#,
        ] {
            let found = names(body);
            let named = Source::ALL.into_iter().filter_map(|source| found.name(source)).count();
            assert_eq!(named, 0, "{body}");
        }
        assert_eq!(names(r#"{"prompt_cache_key": "s"}"#).name(Source::CacheKey), Some(Name::new(b"s", None)));
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn an_agent_is_a_session_of_its_own_with_a_parent() {
        let name = |lines: &[(&'static str, &str)]| {
            Headers::of(&headers(lines), None).name(Source::ClaudeCode).expect("a session")
        };
        let session = ("x-claude-code-session-id", "s");
        let main = name(&[session]);
        let agent = name(&[session, ("x-claude-code-agent-id", "a")]);
        let nested = name(&[session, ("x-claude-code-agent-id", "b"), ("x-claude-code-parent-agent-id", "a")]);
        assert_eq!((main.parent, agent.parent, nested.parent), (None, Some(main.key), Some(agent.key)));
        // Agents of two sessions may have one name.
        let other = name(&[("x-claude-code-session-id", "t"), ("x-claude-code-agent-id", "a")]);
        assert!(other.key != agent.key && other.parent != agent.parent);
    }

    #[test]
    fn threads_and_parents() {
        let read = |lines: &[(&'static str, &str)], source| Headers::of(&headers(lines), None).name(source);
        let thread = read(&[("thread-id", "t"), ("session-id", "s")], Source::Codex).unwrap();
        let root = read(&[("thread-id", "s"), ("session-id", "s")], Source::Codex).unwrap();
        assert_eq!((thread.parent, root.parent), (Some(root.key), None));
        assert_eq!(read(&[("session_id", "s")], Source::Codex), Some(root));
        let opencode = [("x-session-affinity", "a"), ("x-session-id", "s"), ("x-parent-session-id", "p")];
        let child = read(&opencode, Source::CommonHeaders).unwrap();
        assert_eq!((child.key, child.parent.is_some()), (root.key, true));
        assert_eq!(read(&[("x-opencode-session", " "), ("x-session-id", "")], Source::CommonHeaders), None);
        let dynamo = [("x-dynamo-session-id", "s"), ("x-dynamo-parent-session-id", "p")];
        assert_eq!(read(&dynamo, Source::Dynamo), Some(child));
    }

    #[test]
    fn hints() {
        let read = |lines: &[(&'static str, &str)]| Headers::of(&headers(lines), None).hints;
        let told = read(&[
            ("x-claude-code-request-class", "compaction"),
            ("x-claude-code-context-compacted", "1"),
            ("x-claude-code-prev-tool-durations", "Bash=742;Read=9;mcp__a=b=3"),
            ("x-dynamo-session-final", "true"),
        ]);
        let expected = Hints { class: Some(Class::Compaction), is_compacted: true, is_last: true, tools: Some(0.754) };
        assert_eq!(told, expected);
        assert_eq!(read(&[("x-claude-code-compaction", "auto")]).class, Some(Class::Compaction));
        assert_eq!(
            read(&[
                ("x-claude-code-request-class", "new"),
                ("x-claude-code-context-compacted", "false"),
                ("x-claude-code-prev-tool-durations", "x"),
            ]),
            Hints::default()
        );
    }
}
