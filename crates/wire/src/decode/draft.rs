//! Decoding of the fields of one event, and the reasons why an event cannot be decoded.

use super::msgpack::{Cursor, MsgpackError, Value};
use super::values::{integer, kind, lookahead, names, optional_name, text, tokens, unsigned};
use super::{Spare, values};
use crate::error::Reason;
use crate::event;
use crate::event::{BlockName, Cleared, EventOf, RemovedOf, StoredOf};

/// Partly decoded event, whose fields may come in any order, by key or by position.
pub(crate) struct Draft<'a, N> {
    event: EventOf<N>,
    /// Set of the required fields read so far, one bit each.
    seen: u32,
    /// Position of the field `extra_keys` in the payload. The field is decoded last, because its meaning depends on the
    /// LoRA name.
    extra_keys: Option<Cursor<'a>>,
}

impl<'a, N: BlockName> Draft<'a, N> {
    pub(crate) fn new(tag: &[u8], spare: &mut Spare<N>) -> Result<Self, Fault> {
        let event = match tag {
            b"BlockStored" => EventOf::Stored(spare.stored()),
            b"BlockRemoved" => EventOf::Removed(RemovedOf { block_hashes: spare.names(), ..RemovedOf::default() }),
            b"AllBlocksCleared" => EventOf::Cleared(Cleared),
            _ => {
                let name: String = String::from_utf8_lossy(tag).chars().take(64).collect();
                return Err(Fault::Event(Reason::UnknownEvent, format!("unknown event: {name:?}")));
            }
        };
        Ok(Self { event, seen: 0, extra_keys: None })
    }

    /// Reads the fields of an event that is encoded as a map with `entries` entries.
    pub(crate) fn entries(&mut self, cursor: &mut Cursor<'a>, entries: usize) -> Result<(), Fault> {
        for _ in 0..entries {
            match cursor.key()?.and_then(Field::of) {
                Some(field) => self.field(field, cursor)?,
                None => cursor.skip()?,
            }
        }
        Ok(())
    }

    /// Reads the fields of an event that is encoded as an array of `elements` elements after its type.
    pub(crate) fn elements(&mut self, cursor: &mut Cursor<'a>, elements: usize) -> Result<(), Fault> {
        let order: &[Field] = match self.event {
            EventOf::Stored(_) => &STORED,
            EventOf::Removed(_) => &REMOVED,
            EventOf::Cleared(_) => &[],
        };
        // Keys have a place of their own, or are in a map at the end.
        let mut bare = elements <= EXTRA_KEYS;
        for at in 0..elements {
            if at > OPTIONAL {
                let mut inside = *cursor;
                if let Value::Map(entries) = inside.value()? {
                    self.entries(&mut inside, entries)?;
                    *cursor = inside;
                    bare = false;
                    continue;
                }
            }
            match order.get(at) {
                Some(&field) => self.field(field, cursor)?,
                None => cursor.skip()?,
            }
        }
        if let EventOf::Stored(it) = &mut self.event {
            it.bare = bare;
        }
        Ok(())
    }

    fn field(&mut self, field: Field, cursor: &mut Cursor<'a>) -> Result<(), Fault> {
        self.seen |= 1 << field as u32;
        match &mut self.event {
            EventOf::Stored(_) if field == Field::ExtraKeys => {
                self.extra_keys = Some(*cursor);
                cursor.skip()?;
            }
            EventOf::Stored(it) => stored(it, field, cursor)?,
            EventOf::Removed(it) => removed(it, field, cursor)?,
            EventOf::Cleared(_) => cursor.skip()?,
        }
        Ok(())
    }

    /// Returns the decoded event, or an error if a required field is missing.
    pub(crate) fn finish(self) -> Result<EventOf<N>, Fault> {
        let needed: &[Field] = match self.event {
            EventOf::Stored(_) => &[Field::BlockHashes, Field::Parent, Field::Tokens, Field::BlockSize],
            EventOf::Removed(_) => &[Field::BlockHashes],
            EventOf::Cleared(_) => &[],
        };
        if let Some(missing) = needed.iter().find(|&&field| self.seen & (1 << field as u32) == 0) {
            return Err(Fault::Event(Reason::MissingField, format!("no {}", missing.name())));
        }
        let mut event = self.event;
        if let (EventOf::Stored(it), Some(mut keys)) = (&mut event, self.extra_keys) {
            values::read(&mut keys, it)?;
        }
        Ok(event)
    }
}

fn stored<N: BlockName>(it: &mut StoredOf<N>, field: Field, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    match field {
        Field::BlockHashes => names(cursor, &mut it.block_hashes)?,
        Field::Parent => it.parent = optional_name(cursor, field)?,
        Field::Tokens => it.bigrams = tokens(cursor, &mut it.tokens)?,
        Field::BlockSize => it.block_size = unsigned(cursor, field)?.unwrap_or(0),
        Field::LoraId => it.lora_id = integer(cursor, field)?,
        Field::Medium => it.medium = text(cursor, field)?.map(event::intern),
        Field::LoraName => it.lora = text(cursor, field)?.map(Into::into),
        Field::Group => it.group = unsigned(cursor, field)?,
        Field::Kind => it.kind = text(cursor, field)?.map(kind),
        Field::Window => it.window = unsigned(cursor, field)?,
        Field::Locality => it.locality = text(cursor, field)?.map(Into::into),
        Field::Ownership => it.ownership = text(cursor, field)?.map(Into::into),
        Field::Salt => it.salt = text(cursor, field)?.and_then(values::salt).map(Into::into),
        Field::Session => it.session_id = text(cursor, field)?.map(Into::into),
        Field::Lookahead => it.lookahead = lookahead(cursor)?,
        // Proposed for vLLM (vllm-project/vllm#51699): NEW or REUSED.
        Field::Origin => it.reused = text(cursor, field)?.is_some_and(|origin| origin.eq_ignore_ascii_case("reused")),
        Field::ExtraKeys => cursor.skip()?,
    }
    Ok(())
}

/// Reads one field of a removal event. Fields that removal events do not have are skipped, whatever their type.
fn removed<N: BlockName>(it: &mut RemovedOf<N>, field: Field, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    match field {
        Field::BlockHashes => names(cursor, &mut it.block_hashes)?,
        Field::Medium => it.medium = text(cursor, field)?.map(event::intern),
        Field::Group => it.group = unsigned(cursor, field)?,
        Field::Locality => it.locality = text(cursor, field)?.map(Into::into),
        Field::Ownership => it.ownership = text(cursor, field)?.map(Into::into),
        _ => cursor.skip()?,
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    BlockHashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
    Ownership,
    Salt,
    Session,
    Lookahead,
    Origin,
}

/// Fields of a store event encoded as an array, in their order after the event's type.
pub(crate) const STORED: [Field; 13] = [
    Field::BlockHashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
    Field::Window,
    Field::Locality,
    Field::Ownership,
];
pub(crate) const REMOVED: [Field; 5] =
    [Field::BlockHashes, Field::Medium, Field::Group, Field::Locality, Field::Ownership];

/// Position of the field `extra_keys` among the fields of a store event.
pub(crate) const EXTRA_KEYS: usize = 7;

/// Position in an event array after which an element may be a map that has further fields by key, as SGLang sends.
pub(crate) const OPTIONAL: usize = 5;

impl Field {
    pub(crate) fn of(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"block_hashes" => Self::BlockHashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"kv_cache_spec_sliding_window" => Self::Window,
            b"locality" => Self::Locality,
            b"ownership" => Self::Ownership,
            b"cache_salt" => Self::Salt,
            b"session_id" => Self::Session,
            b"lookahead_token_ids" => Self::Lookahead,
            b"origin" => Self::Origin,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BlockHashes => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::Tokens => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName => "lora_name",
            Self::ExtraKeys => "extra_keys",
            Self::Group => "group_idx",
            Self::Kind => "kv_cache_spec_kind",
            Self::Window => "kv_cache_spec_sliding_window",
            Self::Locality => "locality",
            Self::Ownership => "ownership",
            Self::Salt => "cache_salt",
            Self::Session => "session_id",
            Self::Lookahead => "lookahead_token_ids",
            Self::Origin => "origin",
        }
    }
}

/// Reason why an event cannot be decoded.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Malformed MessagePack, so that the end of the event cannot be found either.
    Broken(MsgpackError),
    /// Well-formed MessagePack that is not a valid event, with a reason and a description.
    Event(Reason, String),
}

impl From<MsgpackError> for Fault {
    fn from(broken: MsgpackError) -> Self {
        Self::Broken(broken)
    }
}
