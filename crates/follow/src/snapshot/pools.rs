//! Pools in a snapshot: their blocks' hashes, contents and ages.

use kvatlas_codec::{Cursor, put_text, put_varint, put_words};
use kvatlas_index::{SavedPool, SavedPoolBlock};

use crate::state::KeyedPool;

/// Bits of a block's first byte that say which of its optional parts follow.
const HAS_PARENT: u8 = 1;
const HAS_PREFIX: u8 = 2;
const IS_HELD: u8 = 4;
/// Least number of bytes of a block: its first byte, name and content hash.
const LEAST: usize = 1 + 8 + 8;

/// Writes a pool as bytes.
pub(super) fn encode(it: &KeyedPool) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + 32 * it.pool.blocks.len());
    put_varint(&mut out, it.key.into());
    put_text(&mut out, &it.pool.name);
    put_varint(&mut out, it.pool.blocks.len() as u64);
    for block in &it.pool.blocks {
        let parts = [
            (HAS_PARENT, block.parent.is_some()),
            (HAS_PREFIX, block.prefix.is_some()),
            (IS_HELD, block.age.is_some()),
        ];
        out.push(parts.iter().filter(|(_, has)| *has).map(|(bit, _)| bit).sum());
        put_words(&mut out, [Some(block.name), Some(block.content), block.parent, block.prefix].into_iter().flatten());
        if let Some(age) = block.age {
            put_varint(&mut out, (age.max(0.0) * 1e3) as u64);
        }
    }
    out
}

/// Reads a pool.
///
/// # Errors
/// A text that names the fault in the bytes.
pub(super) fn decode(payload: &[u8]) -> Result<KeyedPool, String> {
    let mut cursor = Cursor(payload);
    let key = cursor.small()?;
    let name = cursor.text()?.into();
    let count = cursor.count(LEAST)?;
    let blocks = (0..count).map(|_| block(&mut cursor)).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(KeyedPool { key, pool: SavedPool { name, blocks } })
}

fn block(cursor: &mut Cursor<'_>) -> Result<SavedPoolBlock, String> {
    let parts = cursor.byte()?;
    if parts & !(HAS_PARENT | HAS_PREFIX | IS_HELD) != 0 {
        return Err(format!("a block has parts {parts:#04x}, which are not known"));
    }
    let (name, content) = (cursor.word()?, cursor.word()?);
    let parent = if parts & HAS_PARENT != 0 { Some(cursor.word()?) } else { None };
    let prefix = if parts & HAS_PREFIX != 0 { Some(cursor.word()?) } else { None };
    let age = if parts & IS_HELD != 0 { Some(cursor.varint()? as f64 / 1e3) } else { None };
    Ok(SavedPoolBlock { name, parent, content, prefix, age })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_comes_out_as_it_went_in_or_not_at_all() {
        let block = |name, parent, prefix, age| SavedPoolBlock { name, parent, content: name * 10, prefix, age };
        let blocks = vec![
            block(1, None, Some(10), Some(0.25)),
            block(2, Some(1), None, None),
            block(u64::MAX / 16, Some(2), Some(u64::MAX), Some(1e6)),
        ];
        let it = KeyedPool { key: 7, pool: SavedPool { name: "folder".into(), blocks } };
        let bytes = encode(&it);
        assert_eq!(decode(&bytes), Ok(it));
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut off at {end}");
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut unknown = bytes;
        unknown[9] = 0x80;
        assert!(decode(&unknown).expect_err("unknown parts").contains("0x80"));
    }
}
