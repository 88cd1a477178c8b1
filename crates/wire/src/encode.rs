//! Encoder of a batch of events into a payload, in the formats that engines send.
//!
//! Events in map form are byte for byte what vLLM 0.33 and SGLang 0.5.23 send for the same events. Events in array form
//! are what earlier releases sent, with all positions that the last of these releases had.

use std::str::FromStr;

use kvatlas_index::Tier;

use crate::event::{Batch, Event, Name, Removed, Stored};
use crate::keys::Key;

/// Event format of an engine, given by the engine's kind and version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dialect {
    /// vLLM from version 0.24 on: events are maps.
    #[default]
    Vllm,
    /// Recent versions of SGLang: events are maps.
    Sglang,
    /// vLLM before version 0.24: events are positional arrays.
    VllmArrays,
    /// Old versions of SGLang: events are positional arrays that are shorter than vLLM's, with a map for fields added
    /// later.
    SglangArrays,
}

impl Dialect {
    /// All formats, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Vllm, Self::Sglang, Self::VllmArrays, Self::SglangArrays];

    /// Returns the name of the format: `vllm`, `sglang`, `vllm-arrays` or `sglang-arrays`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::VllmArrays => "vllm-arrays",
            Self::SglangArrays => "sglang-arrays",
        }
    }

    /// Returns the engine's name for a tier, which events have in the field `medium`.
    #[must_use]
    pub fn medium(self, tier: Tier) -> &'static str {
        match (self, tier) {
            (_, Tier::Gpu) => "GPU",
            (Self::Vllm | Self::VllmArrays, Tier::Cpu) => "CPU",
            (Self::Vllm | Self::VllmArrays, Tier::Disk) => "STORAGE",
            (Self::Sglang | Self::SglangArrays, Tier::Cpu) => "CPU_PINNED",
            (Self::Sglang | Self::SglangArrays, Tier::Disk) => "DISK",
            (_, Tier::External) => "EXTERNAL",
        }
    }
}

/// Error for an unknown name of an event format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown dialect {0:?}: it is one of \"vllm\", \"sglang\", \"vllm-arrays\", \"sglang-arrays\"")]
pub struct UnknownDialect(pub String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name).ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

/// Encodes a batch as a payload. Events that could not be decoded before ([`Batch::refused`]) are not encoded.
///
/// Fields for which the engine's format has no place are left out: SGLang has no cache groups, and vLLM publishes a
/// salt with the first block of a prompt only, so stores that continue a prompt have none.
#[must_use]
pub fn encode(batch: &Batch, dialect: Dialect) -> Vec<u8> {
    let mut out = Out { bytes: Vec::with_capacity(encoded_about(batch)) };
    out.array(3);
    out.byte(0xcb);
    out.raw(&batch.timestamp.to_be_bytes());
    out.array(batch.events.len());
    for event in &batch.events {
        match (event, dialect) {
            (Event::Stored(it), Dialect::Vllm) => vllm(&mut out, it),
            (Event::Stored(it), Dialect::Sglang) => sglang(&mut out, it),
            (Event::Stored(it), Dialect::VllmArrays) => vllm_array(&mut out, it),
            (Event::Stored(it), Dialect::SglangArrays) => sglang_array(&mut out, it),
            (Event::Removed(it), _) => removed(&mut out, it, dialect),
            (Event::Cleared(_), Dialect::Vllm | Dialect::Sglang) => {
                out.map(1);
                out.entry("type", |out| out.text("AllBlocksCleared"));
            }
            (Event::Cleared(_), Dialect::VllmArrays | Dialect::SglangArrays) => {
                out.array(1);
                out.text("AllBlocksCleared");
            }
        }
    }
    match batch.rank {
        Some(rank) => out.unsigned(rank.into()),
        None => out.byte(0xc0),
    }
    out.bytes
}

/// Estimates the length of the payload in bytes, so that the buffer rarely has to grow.
fn encoded_about(batch: &Batch) -> usize {
    let event = |event: &Event| match event {
        Event::Stored(it) => 256 + 4 * it.tokens.len() + 12 * it.block_hashes.len(),
        Event::Removed(it) => 64 + 12 * it.block_hashes.len(),
        Event::Cleared(_) => 24,
    };
    32 + batch.events.iter().map(event).sum::<usize>()
}

fn vllm(out: &mut Out, it: &Stored) {
    let optional = usize::from(!it.block_hashes.is_empty())
        + usize::from(it.group.is_some())
        + usize::from(it.kind.is_some())
        + usize::from(it.window.is_some())
        + usize::from(it.locality.is_some())
        + usize::from(it.ownership.is_some())
        + usize::from(it.session_id.is_some())
        + usize::from(it.lookahead.is_some())
        + usize::from(it.reused);
    // The class has more than 15 fields, and its encoder does not look at how many there are now.
    out.byte(0xde);
    out.raw(&(8 + optional as u16).to_be_bytes());
    core(out, it, Dialect::Vllm);
    out.entry("lora_name", |out| out.optional_text(it.lora.as_deref()));
    if !it.block_hashes.is_empty() {
        out.entry("extra_keys", |out| extra_keys(out, it));
    }
    out.some("group_idx", it.group, |out, group| out.unsigned(group.into()));
    out.some("kv_cache_spec_kind", it.kind.as_deref(), Out::text);
    out.some("kv_cache_spec_sliding_window", it.window, Out::unsigned);
    out.some("locality", it.locality.as_deref(), Out::text);
    out.some("ownership", it.ownership.as_deref(), Out::text);
    out.some("session_id", it.session_id.as_deref(), Out::text);
    out.some("lookahead_token_ids", it.lookahead.as_deref(), |out, all| {
        out.array(all.len());
        all.iter().for_each(|after| out.tokens(after));
    });
    if it.reused {
        out.entry("origin", |out| out.text("REUSED"));
    }
}

fn sglang(out: &mut Out, it: &Stored) {
    let optional =
        usize::from(it.salt.is_some()) + usize::from(it.session_id.is_some()) + usize::from(it.lora.is_some());
    out.map(7 + optional);
    core(out, it, Dialect::Sglang);
    out.some("cache_salt", it.salt.as_deref(), Out::text);
    out.some("session_id", it.session_id.as_deref(), Out::text);
    out.some("lora_name", it.lora.as_deref(), Out::text);
}

/// Writes the fields that every store event has when encoded as a map.
fn core(out: &mut Out, it: &Stored, dialect: Dialect) {
    out.entry("type", |out| out.text("BlockStored"));
    out.entry("block_hashes", |out| out.names(&it.block_hashes));
    out.entry("parent_block_hash", |out| out.optional_name(it.parent.as_ref()));
    out.entry("token_ids", |out| token_ids(out, it));
    out.entry("block_size", |out| out.unsigned(it.block_size.into()));
    out.entry("lora_id", |out| out.optional_integer(it.lora_id));
    out.entry("medium", |out| out.text(medium(it, dialect)));
}

fn vllm_array(out: &mut Out, it: &Stored) {
    out.array(12);
    array_core(out, it, Dialect::VllmArrays);
    out.optional_text(it.lora.as_deref());
    extra_keys(out, it);
    out.optional_integer(it.group.map(i64::from));
    out.optional_text(it.kind.as_deref());
    match it.window {
        Some(window) => out.unsigned(window),
        None => out.byte(0xc0),
    }
}

fn sglang_array(out: &mut Out, it: &Stored) {
    let metadata = [("cache_salt", &it.salt), ("session_id", &it.session_id), ("lora_name", &it.lora)];
    let metadata: Vec<(&str, &str)> =
        metadata.iter().filter_map(|(key, value)| value.as_deref().map(|value| (*key, value))).collect();
    out.array(7 + usize::from(!metadata.is_empty()));
    array_core(out, it, Dialect::SglangArrays);
    if !metadata.is_empty() {
        out.map(metadata.len());
        for (key, value) in metadata {
            out.entry(key, |out| out.text(value));
        }
    }
}

/// Writes the elements that every store event has when encoded as an array.
fn array_core(out: &mut Out, it: &Stored, dialect: Dialect) {
    out.text("BlockStored");
    out.names(&it.block_hashes);
    out.optional_name(it.parent.as_ref());
    token_ids(out, it);
    out.unsigned(it.block_size.into());
    out.optional_integer(it.lora_id);
    out.text(medium(it, dialect));
}

fn removed(out: &mut Out, it: &Removed, dialect: Dialect) {
    let medium = it.medium.as_deref().unwrap_or_else(|| dialect.medium(it.tier()));
    match dialect {
        Dialect::Vllm | Dialect::Sglang => {
            let (group, locality, ownership) = match dialect {
                Dialect::Vllm => (it.group, it.locality.as_deref(), it.ownership.as_deref()),
                _ => (None, None, None),
            };
            out.map(
                3 + usize::from(group.is_some()) + usize::from(locality.is_some()) + usize::from(ownership.is_some()),
            );
            out.entry("type", |out| out.text("BlockRemoved"));
            out.entry("block_hashes", |out| out.names(&it.block_hashes));
            out.entry("medium", |out| out.text(medium));
            out.some("group_idx", group, |out, group| out.unsigned(group.into()));
            out.some("locality", locality, Out::text);
            out.some("ownership", ownership, Out::text);
        }
        Dialect::VllmArrays | Dialect::SglangArrays => {
            let group = it.group.filter(|_| dialect == Dialect::VllmArrays);
            out.array(3 + usize::from(group.is_some()));
            out.text("BlockRemoved");
            out.names(&it.block_hashes);
            out.text(medium);
            if let Some(group) = group {
                out.unsigned(group.into());
            }
        }
    }
}

fn medium(it: &Stored, dialect: Dialect) -> &str {
    it.medium.as_deref().unwrap_or_else(|| dialect.medium(it.tier()))
}

fn token_ids(out: &mut Out, it: &Stored) {
    let Some(seconds) = &it.bigrams else {
        out.tokens(&it.tokens);
        return;
    };
    out.array(it.tokens.len().min(seconds.len()));
    for (&first, &second) in it.tokens.iter().zip(seconds) {
        out.array(2);
        out.unsigned(first.into());
        out.unsigned(second.into());
    }
}

/// Writes the field `extra_keys`: for each block its LoRA name, multimodal items, salt (in the first block of a prompt
/// only) and embeddings, in this order.
fn extra_keys(out: &mut Out, it: &Stored) {
    out.array(it.block_hashes.len());
    let mut keys = it.extra_keys.as_slice();
    for block in 0..it.block_hashes.len() {
        let own = keys.iter().take_while(|(at, _)| *at as usize <= block).count();
        let (own, rest) = keys.split_at(own);
        keys = rest;
        let lora = it.lora.as_deref();
        let salt = it.salt.as_deref().filter(|_| block == 0 && it.parent.is_none());
        let digest = it.adapter_digest.as_ref().filter(|_| lora.is_some());
        let all = own.len() + usize::from(lora.is_some()) + usize::from(digest.is_some()) + usize::from(salt.is_some());
        if all == 0 {
            out.byte(0xc0);
            continue;
        }
        out.array(all);
        if let Some(lora) = lora {
            out.text(lora);
        }
        if let Some(digest) = digest {
            out.text(&digest.text);
        }
        let items = own.iter().take_while(|(_, key)| matches!(key, Key::Item { .. })).count();
        own[..items].iter().for_each(|(_, it)| key(out, it));
        if let Some(salt) = salt {
            out.text(salt);
        }
        own[items..].iter().for_each(|(_, it)| key(out, it));
    }
}

fn key(out: &mut Out, key: &Key) {
    match key {
        Key::Item { identifier, offset } => {
            out.array(2);
            out.text(identifier);
            out.integer(*offset);
        }
        Key::Embeds(digest) => out.bin(digest),
        Key::Text(text) => out.text(text),
        Key::Other(value) => out.raw(value),
    }
}

/// Writer of MessagePack that encodes each value in its shortest form.
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
}

impl Out {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        match value {
            0..=0x7f => self.byte(value as u8),
            0x80..=0xff => self.raw(&[0xcc, value as u8]),
            0x100..=0xffff => {
                self.byte(0xcd);
                self.raw(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.byte(0xce);
                self.raw(&(value as u32).to_be_bytes());
            }
            _ => {
                self.byte(0xcf);
                self.raw(&value.to_be_bytes());
            }
        }
    }

    pub(crate) fn integer(&mut self, value: i64) {
        match value {
            0.. => self.unsigned(value.cast_unsigned()),
            -0x20..=-1 => self.raw(&(value as i8).to_be_bytes()),
            -0x80..=-0x21 => {
                self.byte(0xd0);
                self.raw(&(value as i8).to_be_bytes());
            }
            -0x8000..=-0x81 => {
                self.byte(0xd1);
                self.raw(&(value as i16).to_be_bytes());
            }
            -0x8000_0000..=-0x8001 => {
                self.byte(0xd2);
                self.raw(&(value as i32).to_be_bytes());
            }
            _ => {
                self.byte(0xd3);
                self.raw(&value.to_be_bytes());
            }
        }
    }

    /// Writes the header of a value with its length, in the shortest form. `nibble` is the code and the maximum length
    /// of the one-byte form, if any; the codes after it are those for lengths of 8 bits (0 if there is none), 16 bits
    /// and 32 bits.
    fn header(&mut self, length: usize, nibble: Option<(u8, usize)>, [byte, short, long]: [u8; 3]) {
        match length {
            _ if nibble.is_some_and(|(_, most)| length <= most) => {
                self.byte(nibble.map_or(0, |(code, _)| code) | length as u8);
            }
            0..=0xff if byte != 0 => self.raw(&[byte, length as u8]),
            0..=0xffff => {
                self.byte(short);
                self.raw(&(length as u16).to_be_bytes());
            }
            _ => {
                self.byte(long);
                self.raw(&(length as u32).to_be_bytes());
            }
        }
    }

    pub(crate) fn array(&mut self, items: usize) {
        self.header(items, Some((0x90, 15)), [0, 0xdc, 0xdd]);
    }

    pub(crate) fn map(&mut self, entries: usize) {
        self.header(entries, Some((0x80, 15)), [0, 0xde, 0xdf]);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.header(text.len(), Some((0xa0, 31)), [0xd9, 0xda, 0xdb]);
        self.raw(text.as_bytes());
    }

    pub(crate) fn bin(&mut self, bytes: &[u8]) {
        self.header(bytes.len(), None, [0xc4, 0xc5, 0xc6]);
        self.raw(bytes);
    }

    pub(crate) fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.unsigned(token.into());
        }
    }

    pub(crate) fn name(&mut self, name: &Name) {
        match name {
            Name::Unsigned(name) => self.unsigned(*name),
            Name::Signed(name) => self.integer(*name),
            Name::Bytes(name) => self.bin(name),
        }
    }

    pub(crate) fn names(&mut self, names: &[Name]) {
        self.array(names.len());
        names.iter().for_each(|name| self.name(name));
    }

    pub(crate) fn optional_name(&mut self, name: Option<&Name>) {
        match name {
            Some(name) => self.name(name),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn optional_integer(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.integer(value),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    pub(crate) fn some<T>(&mut self, key: &str, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        if let Some(value) = value {
            self.entry(key, |out| write(out, value));
        }
    }
}
