//! The fields of events: their keys in maps, their places in arrays.

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

/// The order of the positional form, after the tag.
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

/// The position of the extra keys among those of a store.
pub(crate) const EXTRA_KEYS: usize = 7;

/// From this position on a map is no field but more fields by key, as one engine appended them.
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
