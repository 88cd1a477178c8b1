//! A snapshot out of bytes. What is wrong with it is said by section.

use std::sync::Arc;

use kvatlas_codec::Cursor;
use kvatlas_index::BlockHash;
use kvatlas_index::snapshot::{Dictionary, SavedBlocks, Section, Sections, kind};
use kvatlas_wire::SaltedBlock;

use super::encode::{Head, KeyspaceHead};
use super::saved::{SavedKeyspace, SavedRank, SavedStream, StreamHead};

/// A whole snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) head: Head,
    pub(crate) keyspaces: Vec<SavedKeyspace>,
}

/// Reads a snapshot.
///
/// # Errors
/// A text that names the damaged section, and says what is wrong in it.
pub(crate) fn decode(bytes: &[u8]) -> Result<Snapshot, String> {
    let mut sections = Sections::new(bytes)?;
    let mut read = PartialSnapshot { head: None, keyspaces: Vec::new() };
    while let Some(section) = sections.next()? {
        read.section(section).map_err(|what| section.wrong(&what))?;
    }
    let head = read.head.ok_or("it has no head")?;
    Ok(Snapshot { head, keyspaces: read.keyspaces })
}

struct PartialSnapshot {
    head: Option<Head>,
    keyspaces: Vec<SavedKeyspace>,
}

impl PartialSnapshot {
    fn section(&mut self, section: Section<'_>) -> Result<(), String> {
        let payload = section.payload;
        match (section.kind, self.keyspaces.last_mut()) {
            (kind::HEAD, None) if self.head.is_none() => self.head = Some(json(payload)?),
            (kind::KEYSPACE, _) => {
                let KeyspaceHead { model, routing_group, block_size } = json(payload)?;
                let (dictionary, streams) = (Dictionary::default(), Vec::new());
                self.keyspaces.push(SavedKeyspace { model, routing_group, block_size, dictionary, streams });
            }
            (kind::BLOCKS, Some(keyspace)) => keyspace.dictionary.read(payload)?,
            (kind::STREAM, Some(keyspace)) => {
                let stream = stream(payload, &keyspace.dictionary)?;
                keyspace.streams.push(stream);
            }
            (kind::INDEX, None) => {
                return Err("the snapshot is of an index by itself, which knows no streams".to_owned());
            }
            _ => return Err(section.misplaced()),
        }
        Ok(())
    }
}

fn json<'a, T: serde::Deserialize<'a>>(payload: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

fn stream(payload: &[u8], dictionary: &Dictionary) -> Result<SavedStream, String> {
    let mut cursor = Cursor(payload);
    let length = cursor.varint()?;
    let head: StreamHead = json(cursor.bytes(length)?)?;
    let ranks = head.ranks.iter().map(|_| rank(&mut cursor, dictionary)).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(SavedStream { head, ranks })
}

fn rank(cursor: &mut Cursor<'_>, dictionary: &Dictionary) -> Result<SavedRank, String> {
    let held = SavedBlocks::read(cursor, dictionary)?;
    let mut names: Vec<Arc<str>> = Vec::new();
    for _ in 0..cursor.count(1)? {
        let salt = cursor.text()?;
        if names.last().is_some_and(|last| **last >= *salt) {
            return Err("its salts are not in increasing order".to_owned());
        }
        names.push(salt.into());
    }
    let mut salts = Vec::new();
    for _ in 0..cursor.count(8 + 1 + 4)? {
        let name = BlockHash(cursor.word()?);
        let salt = usize::try_from(cursor.varint()?).ok().and_then(|at| names.get(at));
        let salt = salt.ok_or("it is of a salt that is not there")?.clone();
        let mut copies = [0; 4];
        for copies in &mut copies {
            *copies = cursor.small()?;
        }
        salts.push(SaltedBlock { name, salt, copies });
    }
    let answered = cursor.count(8)?;
    let answered = cursor.words(answered)?.map(BlockHash).collect();
    Ok(SavedRank { held, salts, answered })
}
