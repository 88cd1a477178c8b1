//! Snapshots of a tree: writing it as bytes, and restoring it.
//!
//! ```text
//!   "KVAT" version kind page policy     8 bytes
//!   tenants: count, then each name      by name; numbers are LEB128
//!   number of top nodes, then each node before its children, siblings in order:
//!     edge       length, then UTF-8 or the tokens as numbers
//!     holders    count, then for each: tenant, since, accessed, hits, priority (zigzag)
//!     children   count
//!   ticks                               matches go on during writing: the clock is read last
//!   XXH3-64 of all that                 8 bytes, little-endian
//! ```
//!
//! Equal trees give equal bytes. A snapshot is checked for everything on which the tree relies before the tree is used,
//! and memory is allocated only as the bytes for it are present.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_codec::{Cursor, ReadError, put_text, put_varint};
use xxhash_rust::xxh3::xxh3_64;

use super::TreeError;
use super::holders::Holder;
use super::nodes::{Core, Piece, ROOT, Run};
use super::order::EvictionPolicy;
use super::shared::SharedTree;
use super::units::{LONGEST, Units};

const MAGIC: &[u8; 4] = b"KVAT";
const VERSION: u8 = 1;
const CHECKSUM: usize = 8;

fn refuse(why: &'static str) -> TreeError {
    TreeError::Snapshot { why }
}

/// Fields at the beginning of a snapshot.
pub(crate) struct Header<'a> {
    pub(crate) page: usize,
    policy: EvictionPolicy,
    body: &'a [u8],
}

/// Checks and reads the beginning of a snapshot, which is the same for text and tokens.
pub(crate) fn header(bytes: &[u8], kind: u8) -> Result<Header<'_>, TreeError> {
    let (head, _) = bytes.split_at_checked(8).ok_or(refuse("it is shorter than a header"))?;
    if &head[..4] != MAGIC {
        return Err(refuse("it has the wrong header"));
    }
    if head[4] != VERSION {
        return Err(refuse("it has a version this release does not read"));
    }
    if head[5] != kind {
        return Err(refuse("it is of the other kind of tree"));
    }
    let policy = EvictionPolicy::ALL.get(usize::from(head[7])).copied().ok_or(refuse("its policy is unknown"))?;
    let end = bytes.len().checked_sub(CHECKSUM).filter(|&e| e >= 8).ok_or(refuse("it is cut off"))?;
    if xxh3_64(&bytes[..end]).to_le_bytes() != bytes[end..] {
        return Err(refuse("its checksum is wrong"));
    }
    Ok(Header { page: usize::from(head[6]), policy, body: &bytes[8..end] })
}

impl<U: Units> SharedTree<U> {
    /// Writes the tree as bytes. Readers of the tree continue meanwhile, writers wait.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.with(|core| {
            let mut out = Vec::new();
            out.extend_from_slice(MAGIC);
            let (kind, page) = core.units_of.kind();
            let policy = EvictionPolicy::ALL.iter().position(|p| *p == core.policy).unwrap_or(0);
            out.extend_from_slice(&[VERSION, kind, page, policy as u8]);
            core.write(&mut out);
            let sum = xxh3_64(&out);
            out.extend_from_slice(&sum.to_le_bytes());
            out
        })
    }

    pub(crate) fn restore(units: U, header: &Header<'_>) -> Result<Self, TreeError> {
        let mut core = Core::new(Arc::new(units), header.policy);
        let mut body = Cursor(header.body);
        core.parse(&mut body)?;
        if !body.is_empty() {
            return Err(refuse("it has data after its end"));
        }
        Ok(Self::of(core))
    }
}

impl<U: Units> Core<U> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut last = 0;
        let mut names: Vec<_> = self.tenants.numbers().map(|(number, t)| (t.name.clone(), number)).collect();
        names.sort_unstable();
        put_varint(out, names.len() as u64);
        let mut places = vec![0; names.iter().map(|&(_, n)| n as usize + 1).max().unwrap_or(0)];
        for (place, (name, number)) in names.iter().enumerate() {
            put_text(out, name);
            places[*number as usize] = place;
        }
        let mut edge = Vec::new();
        let mut stack = self.sorted_children(ROOT);
        put_varint(out, stack.len() as u64);
        stack.reverse();
        while let Some(number) = stack.pop() {
            let node = self.node(number);
            edge.clear();
            if let Some(run) = &node.run {
                self.units_of.read(&run.buffer, node.from, node.items as usize, &mut edge);
            }
            U::write(&edge, out);
            let mut holders: Vec<&Holder> = node.holders.iter().collect();
            holders.sort_unstable_by_key(|h| places[h.tenant as usize]);
            put_varint(out, holders.len() as u64);
            for holder in holders {
                put_varint(out, places[holder.tenant as usize] as u64);
                put_varint(out, holder.since);
                let accessed = holder.accessed();
                last = last.max(accessed);
                put_varint(out, accessed);
                put_varint(out, u64::from(holder.hits()));
                let priority = (holder.priority << 1) ^ (holder.priority >> 31);
                put_varint(out, u64::from(priority.cast_unsigned()));
            }
            put_varint(out, node.children.len() as u64);
            stack.extend(self.sorted_children(number).into_iter().rev());
        }
        put_varint(out, self.ticks.load(Relaxed).max(last));
    }

    fn parse(&mut self, body: &mut Cursor<'_>) -> Result<(), TreeError> {
        let cut = |error: ReadError| refuse(error.into());
        let mut newest = 0;
        let mut last: Option<&str> = None;
        let count = body.small().map_err(cut)?;
        for number in 0..count {
            let name = body.text().map_err(cut)?;
            if last.is_some_and(|l| l >= name) || self.tenants.intern(name) != number {
                return Err(refuse("its tenants are not in order"));
            }
            last = Some(name);
        }
        // The path down: a node, the number of its unread children, and the first step of the previous one.
        let mut way: Vec<(u32, u64, Vec<U::Item>)> = vec![(ROOT, body.varint().map_err(cut)?, Vec::new())];
        while let Some((parent, left, before)) = way.last_mut() {
            if *left == 0 {
                way.pop();
                continue;
            }
            *left -= 1;
            let parent = *parent;
            let edge = self.units_of.parse(body).ok_or(refuse("an edge is invalid"))?;
            let step = self.units_of.first_step(&edge);
            if edge.is_empty() || edge.len() > LONGEST || (!before.is_empty() && before.as_slice() >= step) {
                return Err(refuse("an edge is empty, too long, or not in order"));
            }
            *before = step.to_vec();
            let piece = Piece {
                run: Run::new(self.units_of.store(&edge), edge.len()),
                items: edge.len(),
                units: self.units_of.count(&edge),
            };
            if self.len() >= u32::MAX as usize - 1 {
                return Err(refuse("it has too many nodes"));
            }
            let node = self.grow(parent, self.units_of.key(&edge), &piece, 0, piece.items, piece.units);
            let holders = body.small().map_err(cut)?;
            let mut next = 0;
            for _ in 0..holders {
                let tenant = body.small().map_err(cut)?;
                let (since, accessed) = (body.varint().map_err(cut)?, body.varint().map_err(cut)?);
                let hits = body.small().map_err(cut)?;
                let zigzag = body.small().map_err(cut)?;
                let priority = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
                newest = since.max(accessed).max(newest);
                if tenant < next || tenant >= count {
                    return Err(refuse("a holder is invalid"));
                }
                next = tenant + 1;
                if !self.restore_holder(node, Holder::restored(tenant, since, accessed, hits, priority)) {
                    return Err(refuse("a tenant holds a node but not its parent"));
                }
            }
            if holders == 0 {
                return Err(refuse("a node has no holder"));
            }
            way.push((node, body.varint().map_err(cut)?, Vec::new()));
        }
        let ticks = body.varint().map_err(cut)?;
        // The other half of the range remains for future numbers.
        if newest > ticks || ticks > u64::MAX / 2 {
            return Err(refuse("something happened in it after its last tick"));
        }
        self.ticks.store(ticks, Relaxed);
        if self.tenants.numbers().any(|(_, t)| t.units == 0) {
            return Err(refuse("a tenant holds nothing"));
        }
        self.enqueue_all();
        Ok(())
    }
}
