//! Sessions that headers name, and what clients say of a request in others.
//!
//! | client | headers |
//! |---|---|
//! | Dynamo's | `x-dynamo-session-id`, `x-dynamo-parent-session-id`, `x-dynamo-session-final` |
//! | Claude Code | `x-claude-code-session-id`; of an agent also `-agent-id`, and `-parent-agent-id` if another agent started it; with `CLAUDE_CODE_GATEWAY_HINT_HEADERS`, `-request-class`, `-compaction`, `-context-compacted`, `-prev-tool-durations` |
//! | Codex | `thread-id` and `session-id`; `session_id` before 0.144 |
//! | OpenCode and others | `x-session-id`, `x-session-affinity`, `x-opencode-session`, `x-hermes-session-id`; `x-parent-session-id` |

use hyper::header::{HeaderMap, HeaderName};

use super::identity::{Class, Hints, Name};
use crate::config::Source;

/// The headers of a request that are about its session. Empty ones are as if they were not there.
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
    /// The common ones, in the order of [`COMMON`].
    common: [Option<&'h [u8]>; COMMON.len()],
    parent: Option<&'h [u8]>,
    pub(super) hints: Hints,
}

/// Headers with a session, of any client.
const COMMON: [&str; 4] = ["x-session-id", "x-session-affinity", "x-opencode-session", "x-hermes-session-id"];

impl<'h> Headers<'h> {
    /// Reads all headers once. `own`: the header that the configuration names.
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

    /// The session that headers of this kind name.
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

/// True unless a flag says no.
fn is_yes(value: &[u8]) -> bool {
    !["0", "false", "no", "none"].iter().any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}

/// Seconds that all tools took of a text like `Bash=742;Read=9`, in milliseconds.
fn seconds(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let took = text.split(';').filter_map(|tool| tool.rsplit_once('=')?.1.trim().parse::<u32>().ok());
    let (count, sum) = took.fold((0, 0.0), |(count, sum), took| (count + 1, sum + f64::from(took)));
    (count > 0).then_some(sum / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

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
