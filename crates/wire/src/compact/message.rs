//! Messages that a relay (a service that publishes engines' event streams) sends, the frames in a message, and the
//! decoding of a frame's bytes into changes of an index.

use kvatlas_codec::{Cursor, from_zigzag, put_varint};
use kvatlas_index::{self as index, BlockHash, RankRef, Tier};

use super::recorder::{CHUNK, CLEAR, COPIES, GAPLESS, KIND, KNOWN, ONCE, PARENT, REMOVE, STORE, TIER_SHIFT};
use super::{FormatError, name_of};

/// Version of the message format that relays (publishers of engines' streams) write and readers accept.
pub const VERSION: u8 = 1;

/// First byte of a message of a relay (a publisher of engines' streams). No MessagePack value begins with this byte, so
/// a message cannot be confused with an engine's batch.
const MAGIC: u8 = 0xc1;

/// Maximum number of blocks in the changes of a message, in addition to one block for each byte of the message. The
/// limit bounds the reader's work, because a few bytes can encode any number of consecutive blocks.
pub const MOST_BLOCKS: u64 = 1 << 18;

const BATCH: u8 = 1;
const FORGOTTEN: u8 = 2;
const STATE_BEGIN: u8 = 3;
const STATE: u8 = 4;
const STATE_RANK_END: u8 = 5;
const STATE_END: u8 = 6;
const STATUS: u8 = 7;
const GONE: u8 = 8;

/// True if the payload begins like a message of a relay (a publisher of engines' streams), of any version.
#[must_use]
pub fn is_compact(payload: &[u8]) -> bool {
    payload.first() == Some(&MAGIC)
}

/// Status of an engine's event stream, as reported by the relay (the service that follows the engine and publishes its
/// stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// True if the published blocks are exactly those that the engine announced.
    pub trusted: bool,
    /// True if the engine may hold more blocks than the publisher of the stream knows.
    pub partial: bool,
    /// True if matched depths for this engine are only upper bounds.
    pub upper_bound: bool,
    /// True if the engine does not announce which blocks have a cache salt.
    pub no_salts: bool,
    /// True if the message waited too long in the publisher's queue before it was sent.
    pub late: bool,
    /// True if, after a reconnection, only the sequence number indicates that the engine is the same process as before,
    /// so that the held blocks may be outdated.
    pub unverified: bool,
}

impl Status {
    fn bits(self) -> u8 {
        let Self { trusted, partial, upper_bound, no_salts, late, unverified } = self;
        let bits = [trusted, partial, upper_bound, no_salts, late, unverified].into_iter().enumerate();
        bits.map(|(at, bit)| u8::from(bit) << at).sum()
    }

    fn from_bits(bits: u8) -> Self {
        let [trusted, partial, upper_bound, no_salts, late, unverified] =
            [0, 1, 2, 3, 4, 5].map(|at| bits >> at & 1 == 1);
        Self { trusted, partial, upper_bound, no_salts, late, unverified }
    }
}

/// Part of a relay's message: changes of held blocks, or a fact about the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Changes that one batch of the engine's events makes to the blocks held by a rank, to be decoded by
    /// [`Changes`](super::Changes).
    Batch {
        /// Data-parallel rank whose held blocks change.
        rank: u32,
        /// Encoded changes of the held blocks.
        changes: &'a [u8],
    },
    /// All ranks of the stream count as empty, because the publisher no longer knows which blocks they hold.
    Forgotten,
    /// Start of a full state: the following frames list all held blocks, for readers that do not have them. Other
    /// readers may skip them.
    StateBegin,
    /// Part of the blocks held by one rank, within a full state (the list of all held blocks).
    State {
        /// Data-parallel rank that holds the blocks.
        rank: u32,
        /// Encoded changes that add the blocks to a rank which was empty when the full state began.
        changes: &'a [u8],
    },
    /// End of the blocks of one rank within a full state. A reader of the state applies only batches of this rank that
    /// come after this frame.
    StateRankEnd {
        /// Data-parallel rank whose blocks have all been sent.
        rank: u32,
    },
    /// End of a full state: the blocks of all ranks have been sent.
    StateEnd,
    /// Status of the stream, valid from this frame on.
    Status(Status),
    /// End of the stream: the relay no longer follows the engine.
    Gone,
}

/// Message of a relay (a publisher of engines' streams), with its header decoded and its frames still encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Message<'a> {
    /// Number of the relay's life (the time between two restarts of the relay), which grows with each restart.
    pub life: u64,
    /// Number of the message, consecutive from 0 at each start of its sender (the relay).
    pub id: u64,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Check value that identifies the secret key which content hashes depend on; 0 without a key.
    pub key: u32,
    /// Engine's timestamp of the last batch in the message, in seconds; 0 if the message has no batch.
    pub timestamp: f64,
    frames: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads the header of a relay's message, without decoding its frames.
    ///
    /// # Errors
    /// If the payload is not a relay's message, or has an unknown version.
    pub fn read(payload: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor(payload);
        if cursor.byte()? != MAGIC {
            return Err(FormatError("it does not begin with the byte 0xc1"));
        }
        if cursor.byte()? != VERSION {
            return Err(FormatError("it has another version than 1: this program is older than the relay, or newer"));
        }
        let life = cursor.word()?;
        let id = cursor.varint()?;
        if id == u64::MAX {
            return Err(FormatError("no message can follow it"));
        }
        let block_size = cursor.small()?;
        let key = cursor.small()?;
        let timestamp = f64::from_bits(cursor.word()?);
        Ok(Self { life, id, block_size, key, timestamp, frames: cursor.0 })
    }

    /// Checks all frames of the message, so that none has to be applied before the last is known to be valid.
    ///
    /// # Errors
    /// If a frame or a change cannot be read, or the changes have more than [`MOST_BLOCKS`] blocks beyond one per byte.
    pub fn check(&self) -> Result<(), FormatError> {
        let mut blocks = 0_u64;
        for frame in self.frames() {
            if let Frame::Batch { changes, .. } | Frame::State { changes, .. } = frame? {
                blocks = blocks.saturating_add(weight(changes)?);
            }
        }
        if blocks > MOST_BLOCKS + self.frames.len() as u64 {
            return Err(FormatError("its changes are of more blocks than those of one message may be"));
        }
        Ok(())
    }

    /// Iterates over the frames of the message, in order; ends after the first frame that cannot be read, which is
    /// returned as an error.
    pub fn frames(&self) -> impl Iterator<Item = Result<Frame<'a>, FormatError>> + use<'a> {
        let mut cursor = Cursor(self.frames);
        std::iter::from_fn(move || {
            if cursor.is_empty() {
                return None;
            }
            let frame = frame(&mut cursor);
            if frame.is_err() {
                cursor = Cursor(&[]);
            }
            Some(frame)
        })
    }
}

fn frame<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, FormatError> {
    let tag = cursor.byte()?;
    let changes = |cursor: &mut Cursor<'a>| {
        let length = cursor.varint()?;
        cursor.bytes(length)
    };
    Ok(match tag {
        BATCH => Frame::Batch { rank: cursor.small()?, changes: changes(cursor)? },
        FORGOTTEN => Frame::Forgotten,
        STATE_BEGIN => Frame::StateBegin,
        STATE => Frame::State { rank: cursor.small()?, changes: changes(cursor)? },
        STATE_RANK_END => Frame::StateRankEnd { rank: cursor.small()? },
        STATE_END => Frame::StateEnd,
        STATUS => Frame::Status(Status::from_bits(cursor.byte()?)),
        GONE => Frame::Gone,
        _ => return Err(FormatError("a frame is of an unknown kind")),
    })
}

/// Writer of the messages of a relay (a publisher of engines' streams), with the header fields that are equal in all of
/// them.
#[derive(Debug, Clone, Copy)]
pub struct MessageWriter {
    /// Number of the relay's life (the time between two restarts of the relay), which grows with each restart.
    pub life: u64,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Check value that identifies the secret key which content hashes depend on; 0 without a key.
    pub key: u32,
}

impl MessageWriter {
    /// Begins a message by writing its header. Frames are then added by [`put`](Self::put); `room` is the number of
    /// bytes to allocate for them.
    #[must_use]
    pub fn begin(&self, id: u64, timestamp: f64, room: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(room + 40);
        out.extend([MAGIC, VERSION]);
        out.extend(self.life.to_le_bytes());
        put_varint(&mut out, id);
        put_varint(&mut out, u64::from(self.block_size));
        put_varint(&mut out, u64::from(self.key));
        out.extend(timestamp.to_le_bytes());
        out
    }

    /// Appends an encoded frame to a message.
    pub fn put(out: &mut Vec<u8>, frame: Frame<'_>) {
        let long = |out: &mut Vec<u8>, tag, rank: u32, changes: &[u8]| {
            out.push(tag);
            put_varint(out, u64::from(rank));
            put_varint(out, changes.len() as u64);
            out.extend(changes);
        };
        match frame {
            Frame::Batch { rank, changes } => long(out, BATCH, rank, changes),
            Frame::Forgotten => out.push(FORGOTTEN),
            Frame::StateBegin => out.push(STATE_BEGIN),
            Frame::State { rank, changes } => long(out, STATE, rank, changes),
            Frame::StateRankEnd { rank } => {
                out.push(STATE_RANK_END);
                put_varint(out, u64::from(rank));
            }
            Frame::StateEnd => out.push(STATE_END),
            Frame::Status(status) => out.extend([STATUS, status.bits()]),
            Frame::Gone => out.push(GONE),
        }
    }
}

/// Maximum number of blocks in one change.
const MOST: u64 = 1 << 24;
/// Maximum number of copies of a block in one change.
const MOST_COPIES: u64 = 1 << 16;

/// Change of the blocks held by one rank, as a relay (a publisher of engines' streams) publishes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Consecutive blocks of a chain were stored on a tier.
    Store {
        /// Tier on which the blocks were stored.
        tier: Tier,
        /// Block hash of the block before the first one; `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// Block hashes of the stored blocks, in the order of the chain.
        names: &'a [BlockHash],
        /// Content hash of each stored block, in the order of the chain.
        contents: &'a [u64],
        /// True if a stored block that the rank already holds on the tier gains no further copy.
        once: bool,
        /// Number of copies stored of each block, on the tier.
        copies: u32,
    },
    /// Blocks that the rank already holds were stored on a further tier.
    StoreKnown {
        /// Tier on which the blocks were stored.
        tier: Tier,
        /// Block hashes of the stored blocks.
        names: &'a [BlockHash],
    },
    /// One copy of each block was removed.
    Remove {
        /// Tier from which the blocks were removed.
        tier: Tier,
        /// Block hashes of the removed blocks.
        names: &'a [BlockHash],
    },
    /// The rank has lost all its blocks.
    Clear,
    /// Number of blocks in a chunk (the unit of storage) of a tier beyond the device became known.
    Chunk {
        /// Tier that stores chunks of this size.
        tier: Tier,
        /// Number of blocks in a chunk.
        blocks: u32,
        /// True if the engine loads a chunk from this tier only if all chunks before it, from the prompt's beginning on,
        /// are on its tiers beyond the device too.
        is_gapless: bool,
    },
}

impl Change<'_> {
    /// Applies the change to the blocks that a rank holds in an index.
    ///
    /// # Errors
    /// If the index cannot number any more blocks.
    pub fn apply(&self, index: &mut index::Changes<'_>, rank: &impl RankRef) -> Result<(), index::Error> {
        match *self {
            Self::Store { tier, parent, names, contents, once, copies } => {
                for _ in 0..copies {
                    if once {
                        index.store_once(rank, tier, parent, names, contents)?;
                    } else {
                        index.store(rank, tier, parent, names, contents)?;
                    }
                }
            }
            Self::StoreKnown { tier, names } => {
                index.store_known(rank, tier, names);
            }
            Self::Remove { tier, names } => index.remove(rank, tier, names),
            Self::Clear => index.clear(rank.worker(), Some(rank.rank()), None),
            Self::Chunk { tier, blocks, is_gapless } => {
                index.learn_chunk(rank.worker(), rank.rank(), tier, blocks, is_gapless);
            }
        }
        Ok(())
    }
}

/// Header of an encoded change, including the number of blocks that follow it.
struct Heading {
    kind: u8,
    /// Number of blocks in a chunk, if the change is a [`Change::Chunk`]; `None` for other changes.
    chunk: Option<u32>,
    /// True if the change is a [`Change::Chunk`] of chunks that are only loaded without a gap from the prompt's beginning.
    is_gapless: bool,
    tier: Tier,
    once: bool,
    copies: u32,
    parent: Option<BlockHash>,
    blocks: u64,
}

impl Heading {
    /// Reads the header of an encoded change. `last` is the number of the previous block; the next block's number is
    /// encoded as a difference from it.
    fn read(cursor: &mut Cursor<'_>, last: &mut u64) -> Result<Self, FormatError> {
        let head = cursor.byte()?;
        let (kind, tier) = (head & KIND, Tier::ALL[usize::from(head >> TIER_SHIFT & 3)]);
        if head & CHUNK != 0 {
            let chunk = Some(cursor.small()?);
            if chunk == Some(0) || tier == Tier::Gpu {
                return Err(FormatError("a chunk has no blocks, or is of the device, which has no chunks"));
            }
            let is_gapless = head & GAPLESS != 0;
            return Ok(Self { kind, chunk, is_gapless, tier, once: false, copies: 1, parent: None, blocks: 0 });
        }
        let copies = if head & COPIES == 0 { 1 } else { cursor.varint()? };
        if kind == CLEAR {
            *last = 0;
            return Ok(Self {
                kind,
                chunk: None,
                is_gapless: false,
                tier,
                once: false,
                copies: 1,
                parent: None,
                blocks: 0,
            });
        }
        if !(1..=MOST_COPIES).contains(&copies) {
            return Err(FormatError("a block has no copies, or more than there can be"));
        }
        let parent = if head & PARENT == 0 {
            None
        } else {
            *last = from_zigzag(*last, cursor.varint()?);
            Some(name_of(*last))
        };
        let blocks = cursor.varint()?;
        if blocks > MOST {
            return Err(FormatError("a change has more blocks than there can be"));
        }
        Ok(Self {
            kind,
            chunk: None,
            is_gapless: false,
            tier,
            once: head & ONCE != 0,
            copies: copies as u32,
            parent,
            blocks,
        })
    }

    /// Reads the numbers of a change's blocks, which are encoded as runs of consecutive numbers. Calls `run` for each
    /// run with its first number, the step between numbers (0 for a single number, 1, or -1 as a wrapping `u64`) and
    /// its length.
    fn numbers(
        &self,
        cursor: &mut Cursor<'_>,
        last: &mut u64,
        mut run: impl FnMut(u64, u64, u64),
    ) -> Result<(), FormatError> {
        let mut left = self.blocks;
        while left > 0 {
            let said = cursor.varint()?;
            let first = from_zigzag(*last, said >> 1);
            let (length, step) = if said & 1 == 0 {
                (1, 0)
            } else {
                let said = cursor.varint()?;
                ((said >> 1).saturating_add(2), if said & 1 == 0 { 1 } else { u64::MAX })
            };
            if length > left {
                return Err(FormatError("a run of blocks is longer than their number"));
            }
            run(first, step, length);
            *last = first.wrapping_add(step.wrapping_mul(length - 1));
            left -= length;
        }
        Ok(())
    }

    /// Reads the content hashes that follow the block numbers of a store, as encoded bytes; empty for other changes.
    fn contents<'a>(&self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], FormatError> {
        Ok(if self.kind == STORE { cursor.bytes(8 * self.blocks)? } else { &[] })
    }
}

/// Counts the blocks in encoded changes, each copy of a block once, without decoding the blocks themselves.
///
/// # Errors
/// If the bytes are malformed.
pub fn weight(bytes: &[u8]) -> Result<u64, FormatError> {
    let (mut cursor, mut last, mut weight) = (Cursor(bytes), 0, 0_u64);
    while !cursor.is_empty() {
        let head = Heading::read(&mut cursor, &mut last)?;
        if head.chunk.is_some() {
            continue;
        }
        head.numbers(&mut cursor, &mut last, |_, _, _| {})?;
        head.contents(&mut cursor)?;
        weight = weight.saturating_add(head.blocks * u64::from(head.copies));
    }
    Ok(weight)
}

/// Decoder of encoded changes, which reuses its buffers for all of them.
#[derive(Debug, Default)]
pub struct Changes {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Changes {
    /// Decodes changes and calls `change` with each, in order, until a call returns an error. The bytes should have
    /// passed [`Message::check`](super::Message::check), which refuses malformed changes and too many blocks.
    ///
    /// # Errors
    /// The error that `change` returns, or an error for malformed bytes; `change` has already been called for all
    /// changes before.
    pub fn read<E: From<FormatError>>(
        &mut self,
        bytes: &[u8],
        mut change: impl FnMut(Change<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut cursor, mut last) = (Cursor(bytes), 0);
        while !cursor.is_empty() {
            let head = Heading::read(&mut cursor, &mut last)?;
            if let Some(blocks) = head.chunk {
                change(Change::Chunk { tier: head.tier, blocks, is_gapless: head.is_gapless })?;
                continue;
            }
            self.names.clear();
            let names = &mut self.names;
            head.numbers(&mut cursor, &mut last, |first, step, length| {
                names.extend((0..length).map(|at| name_of(first.wrapping_add(step.wrapping_mul(at)))));
            })?;
            let Heading { kind, tier, once, copies, parent, .. } = head;
            let (bytes, names) = (head.contents(&mut cursor)?, &self.names[..]);
            match kind {
                STORE => {
                    self.contents.clear();
                    self.contents.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
                    change(Change::Store { tier, parent, names, contents: &self.contents, once, copies })?;
                }
                KNOWN => change(Change::StoreKnown { tier, names })?,
                CLEAR => change(Change::Clear)?,
                _ => {
                    debug_assert_eq!(kind, REMOVE);
                    change(Change::Remove { tier, names })?;
                }
            }
        }
        Ok(())
    }
}
