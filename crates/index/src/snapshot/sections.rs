//! Sections: a snapshot's parts, each with its kind, its length and a checksum.

use std::io::{self, Write};

use kvatlas_codec::{Cursor, put_varint};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"KVASNAP\0";
const VERSION: u32 = 1;

/// Kinds of sections.
pub mod kind {
    /// The head of a service's snapshot.
    pub const HEAD: u8 = 1;
    /// A keyspace, to which the next sections belong.
    pub const KEYSPACE: u8 = 2;
    /// Part of a dictionary.
    pub const BLOCKS: u8 = 3;
    /// A stream, with its ranks.
    pub const STREAM: u8 = 4;
    /// The end.
    pub const END: u8 = 5;
    /// An index by itself.
    pub const INDEX: u8 = 6;
    /// A rank of an index.
    pub const RANK: u8 = 7;
    /// Kinds from here on may be left out.
    pub(super) const OPTIONAL: u8 = 128;
    /// A pool of a keyspace.
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

/// Writes sections.
#[derive(Debug)]
pub struct SectionWriter<W> {
    out: W,
    sections: u64,
    bytes: u64,
}

impl<W: Write> SectionWriter<W> {
    /// Begins a snapshot.
    ///
    /// # Errors
    /// Any error of the writer that it writes to.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { out, sections: 0, bytes: (MAGIC.len() + 4) as u64 })
    }

    /// Writes a section.
    ///
    /// # Errors
    /// Any error of the writer that it writes to.
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

    /// Writes the end. Returns the writer, and the number of bytes of the whole.
    ///
    /// # Errors
    /// Any error of the writer that it writes to.
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

/// A section.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    /// Kind of the section.
    pub kind: u8,
    /// Bytes of the section.
    pub payload: &'a [u8],
    number: u64,
    at: usize,
}

impl Section<'_> {
    /// Says which section is at fault.
    #[must_use]
    pub fn wrong(&self, what: &str) -> String {
        format!("section {} ({}, at byte {}): {what}", self.number, kind::name(self.kind), self.at)
    }

    /// Words for a section that cannot come where it is.
    #[must_use]
    pub fn misplaced(&self) -> String {
        format!("a section of kind {} cannot be here", self.kind)
    }
}

/// Reads the sections of a snapshot.
#[derive(Debug)]
pub struct Sections<'a> {
    rest: &'a [u8],
    bytes: usize,
    number: u64,
}

impl<'a> Sections<'a> {
    /// Begins to read.
    ///
    /// # Errors
    /// Words for why the bytes are no snapshot.
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

    /// The next section; none at the end, which is checked.
    ///
    /// # Errors
    /// Words for which section is damaged, and how.
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
