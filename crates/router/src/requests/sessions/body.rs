//! Sessions that fields of the body name.

use std::borrow::Cow;

use kvatlas_prompt::SessionFields;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::identity::Name;
use crate::config::Source;

/// The sessions that the fields of a body name, by the kind of field.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BodyNames {
    body: Option<Name>,
    metadata: Option<Name>,
    cache_key: Option<Name>,
}

impl BodyNames {
    /// Reads the session fields of a body.
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

    /// The session that fields of this kind name.
    pub(super) fn name(&self, source: Source) -> Option<Name> {
        match source {
            Source::Body => self.body,
            Source::Metadata => self.metadata,
            Source::CacheKey => self.cache_key,
            _ => None,
        }
    }
}

/// An agent's identity, by the names that Dynamo and vllm-router have for it.
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
    /// SGLang's own name of a session.
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

impl<'a> Context<'a> {
    /// The session of an agent's chain, else that of the whole session.
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

/// The agent that an object names. It may be written as a string: not every field takes objects.
fn agent(raw: Option<&RawValue>) -> Option<Name> {
    match text(raw) {
        Some(inner) => serde_json::from_str::<Context<'_>>(&inner).ok()?.name(),
        None => read::<Context<'_>>(raw)?.name(),
    }
}

/// vLLM's further arguments.
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

/// Dynamo's further fields.
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
    /// The session within `user_id`, in the two forms that Claude Code has had, or beside it.
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

/// Returns the session in a string or number.
fn plain(raw: Option<&RawValue>) -> Option<Name> {
    text(raw).map(|name| Name::new(name.as_bytes(), None))
}

/// Returns a non-empty string, or a number as text.
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

#[cfg(test)]
mod tests {
    use kvatlas_prompt::{Endpoint, Request};

    use super::*;

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
}
