//! Sections of a snapshot, each with its kind, its length and a checksum.

use std::io::{self, Write};

use kvatlas_codec::{Cursor, put_varint};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"KVASNAP\0";
const VERSION: u32 = 1;

/// Kinds of a snapshot's sections.
pub mod kind {
    /// Section with the time, the writer's version and an identifier of a service's snapshot.
    pub const HEAD: u8 = 1;
    /// Section that begins a keyspace (a model in a routing group), to which the following sections belong.
    pub const KEYSPACE: u8 = 2;
    /// Section with a part of the dictionary of blocks.
    pub const BLOCKS: u8 = 3;
    /// Section with an event stream and the blocks of its ranks.
    pub const STREAM: u8 = 4;
    /// Section that marks the end of a snapshot.
    pub const END: u8 = 5;
    /// Section with the configuration and counts of an index that is saved without a service.
    pub const INDEX: u8 = 6;
    /// Section with the blocks of one rank of an index that is saved without a service.
    pub const RANK: u8 = 7;
    /// Smallest kind of section that a reader may skip if it does not know the kind.
    pub(super) const OPTIONAL: u8 = 128;
    /// Section with a pool (a store shared by several engines) of a keyspace.
    pub const POOL: u8 = 128;

    pub(super) fn name(kind: u8) -> &'static str {
        match kind {
            HEAD => "head",
            KEYSPACE => "keyspace",
            BLOCKS => "blocks",
            STREAM => "stream",
            END => "end",
            INDEX => "index",
            RANK => "rank",
            POOL => "pool",
            _ => "unknown",
        }
    }
}

/// Writer of a snapshot's sections (typed parts, each with a checksum).
#[derive(Debug)]
pub struct SectionWriter<W> {
    out: W,
    sections: u64,
    bytes: u64,
}

impl<W: Write> SectionWriter<W> {
    /// Writes the start of a snapshot, its format and version, to `out`.
    ///
    /// # Errors
    ///
    /// Any error of writing to `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { out, sections: 0, bytes: (MAGIC.len() + 4) as u64 })
    }

    /// Writes one section with its kind, length and checksum.
    ///
    /// # Errors
    ///
    /// Any error of the underlying writer.
    pub fn section(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut head = [kind; 9];
        head[1..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        let sum = sum(&head, payload).to_le_bytes();
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.out.write_all(&sum)?;
        self.sections += 1;
        self.bytes += (head.len() + payload.len() + sum.len()) as u64;
        Ok(())
    }

    /// Writes the section that ends the snapshot. Returns the underlying writer, and the snapshot's size in bytes.
    ///
    /// # Errors
    /// Any error of the underlying writer.
    pub fn end(mut self) -> io::Result<(W, u64)> {
        let mut payload = Vec::new();
        put_varint(&mut payload, self.sections);
        self.section(kind::END, &payload)?;
        Ok((self.out, self.bytes))
    }
}

fn sum(head: &[u8; 9], payload: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&xxh3_64(head).to_le_bytes());
    sum.update(&xxh3_64(payload).to_le_bytes());
    sum.digest()
}

/// Section (typed part with a checksum) that was read from a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    /// Kind of the section, one of the constants in [`kind`].
    pub kind: u8,
    /// Content of the snapshot's section, in bytes.
    pub payload: &'a [u8],
    number: u64,
    at: usize,
}

impl Section<'_> {
    /// Formats an error message that names this section and says `what` is wrong with it.
    #[must_use]
    pub fn wrong(&self, what: &str) -> String {
        format!("section {} ({}, at byte {}): {what}", self.number, kind::name(self.kind), self.at)
    }

    /// Formats an error message for a section that must not be at this place in a snapshot.
    #[must_use]
    pub fn misplaced(&self) -> String {
        format!("a section of kind {} cannot be here", self.kind)
    }
}

/// Reader of a snapshot's sections (typed parts, each with a checksum).
#[derive(Debug)]
pub struct Sections<'a> {
    rest: &'a [u8],
    bytes: usize,
    number: u64,
}

impl<'a> Sections<'a> {
    /// Checks the start of a snapshot, its format and version, in `bytes`.
    ///
    /// # Errors
    ///
    /// A description of why the bytes are not a snapshot.
    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let Some((start, rest)) = bytes.split_first_chunk::<{ MAGIC.len() + 4 }>() else {
            return Err("it is too short for a snapshot".to_owned());
        };
        let (magic, version) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err("it does not begin as a snapshot does".to_owned());
        }
        let version = version.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
        // Version 1 is the first. The next reads two.
        if version != VERSION {
            return Err(format!("it is of version {version}, and this kvatlas reads version {VERSION}"));
        }
        Ok(Self { rest, bytes: bytes.len(), number: 0 })
    }

    /// Reads the next section; None after the section that ends the snapshot, whose number of sections is checked.
    ///
    /// # Errors
    ///
    /// A description of what is wrong, with the section's number.
    #[allow(clippy::should_implement_trait, reason = "it may fail, and then it must not go on")]
    pub fn next(&mut self) -> Result<Option<Section<'a>>, String> {
        loop {
            let (number, at) = (self.number, self.bytes - self.rest.len());
            let Some(&kind) = self.rest.first() else {
                return Err(format!("section {number} (missing, at byte {at}): it is cut off"));
            };
            let mut section = Section { kind, payload: &[], number, at };
            section.payload = self.payload().map_err(|what| section.wrong(&what))?;
            self.number += 1;
            match kind {
                kind::OPTIONAL.. if kind != kind::POOL => {}
                kind::END => {
                    self.end(section).map_err(|what| section.wrong(&what))?;
                    return match self.rest.len() {
                        0 => Ok(None),
                        surplus => Err(format!("{surplus} bytes come after its end")),
                    };
                }
                _ => return Ok(Some(section)),
            }
        }
    }

    fn payload(&mut self) -> Result<&'a [u8], String> {
        let cut = || "it is cut off".to_owned();
        let (head, rest) = self.rest.split_first_chunk::<9>().ok_or_else(cut)?;
        let length = Cursor(&head[1..]).word()?;
        let (payload, rest) =
            usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length)).ok_or_else(cut)?;
        let (stored, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let (stored, computed) = (u64::from_le_bytes(*stored), sum(head, payload));
        if stored != computed {
            return Err(format!("its checksum is {stored:016x}, and its bytes have {computed:016x}"));
        }
        self.rest = rest;
        Ok(payload)
    }

    fn end(&self, section: Section<'_>) -> Result<(), String> {
        let mut cursor = Cursor(section.payload);
        let said = cursor.varint()?;
        cursor.end()?;
        if said == section.number {
            return Ok(());
        }
        Err(format!("{said} sections should come before it, and {} do", section.number))
    }
}
