//! ChunkListing of the chunks that LMCache holds, read page by page from its coordinator (`GET /directory/keys`).
//!
//! A key names the part of a chunk that one rank of an engine has. Pages are positions in a list that grows at its end and
//! shrinks anywhere, so that between two pages keys may move from the second to the first. A page continues the pages
//! before it only if it begins with a key of the last one; if it does not, the listing goes back. So every key that was
//! there all the time is found.

use std::borrow::Cow;
use std::collections::HashSet;

use hashbrown::HashMap;
use serde::Deserialize;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed};

/// Maximum number of steps back in one listing. Of more, the coordinator's keys go faster than they can be listed.
const STEPS_BACK: u32 = 100;
/// Maximum number of ranks whose parts of a chunk are counted.
const RANKS: u32 = 128;

/// Reason for which keys of a listing do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeftOut {
    /// Hash that is not in hexadecimal, or shorter than 8 bytes.
    Hash,
    /// Number of ranks that cannot be: 0, or too many.
    Ranks,
    /// Part of a group of layers other than the first.
    Group,
    /// Copy in the own memory or on the own disks of an LMCache server that is not the pool's.
    Private,
    /// Part of a chunk whose other ranks' parts are missing.
    Incomplete,
}

impl LeftOut {
    /// All reasons, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Hash, Self::Ranks, Self::Group, Self::Private, Self::Incomplete];

    /// Name of the reason in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Ranks => "ranks",
            Self::Group => "group",
            Self::Private => "private",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Page of the coordinator's answer.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    keys: Vec<ListedKey<'a>>,
}

#[derive(Deserialize)]
struct ListedKey<'a> {
    #[serde(borrow)]
    key: Key<'a>,
    #[serde(borrow)]
    placements: Vec<Placement<'a>>,
}

#[derive(Deserialize)]
struct Key<'a> {
    #[serde(borrow)]
    chunk_hash_hex: Cow<'a, str>,
    #[serde(borrow)]
    model_name: Cow<'a, str>,
    kv_rank: u32,
    #[serde(default)]
    object_group_id: u32,
    #[serde(borrow, default)]
    cache_salt: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Placement<'a> {
    #[serde(borrow)]
    instance_id: Cow<'a, str>,
    #[serde(default)]
    shared: bool,
}

impl Key<'_> {
    /// Hash of all that makes the key, to recognise it on the next page.
    fn mark(&self) -> u64 {
        let mut hasher = Xxh3Default::new();
        for text in [&self.chunk_hash_hex, &self.model_name, &self.cache_salt] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&self.kv_rank.to_le_bytes());
        hasher.update(&self.object_group_id.to_le_bytes());
        hasher.digest()
    }

    /// Name of the chunk, as [`chunk_name`].
    fn chunk(&self) -> Option<u64> {
        let hex = self.chunk_hash_hex.as_bytes();
        let is_hash = hex.len() >= 16 && hex.len().is_multiple_of(2) && hex.iter().all(u8::is_ascii_hexdigit);
        let last = self.chunk_hash_hex.get(hex.len().checked_sub(16)?..).filter(|_| is_hash)?;
        Some(salted(u64::from_str_radix(last, 16).ok()?, &self.cache_salt))
    }
}

/// Name in the index of a chunk with this hash, stored under this salt: the hash covers no salt.
pub(super) fn chunk_name(hash: &[u8], salt: &str) -> u64 {
    let last = hash.last_chunk().copied().map_or(0, u64::from_be_bytes);
    salted(last, salt)
}

fn salted(name: u64, salt: &str) -> u64 {
    if salt.is_empty() { name } else { xxh3_64_with_seed(salt.as_bytes(), name) }
}

/// Names of the complete chunks of one model, by the number of ranks that engines have.
pub(crate) type ByRanks = HashMap<u32, HashSet<u64>>;

/// Complete listing.
#[derive(Debug, Default)]
pub(crate) struct ChunkListing {
    /// Complete chunks by model.
    pub(crate) models: HashMap<Box<str>, ByRanks>,
    /// Number of keys left out, by reason.
    pub(crate) left_out: [u64; LeftOut::ALL.len()],
}

impl ChunkListing {
    /// Number of complete chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.models.values().flat_map(HashMap::values).map(HashSet::len).sum()
    }
}

/// ChunkListing whose pages have not all been read.
#[derive(Debug, Default)]
pub(crate) struct PartialListing {
    /// Keys of the last page that continued the listing.
    last_page: HashSet<u64>,
    steps_back: u32,
    models: HashMap<Box<str>, HashMap<(u32, u64), u128>>,
    left_out: [u64; LeftOut::ALL.len()],
    /// Marks of keys that were left out, as pages overlap.
    left: HashSet<u64>,
}

/// Next step after a page of the listing was read.
#[derive(Debug)]
pub(crate) enum NextPage {
    /// Ask for the page at this position.
    At(u64),
    /// All pages have been read.
    Done(ChunkListing),
}

impl PartialListing {
    /// Takes in the page of up to `limit` keys at position `offset`. `instance`: the server whose own copies count besides
    /// shared ones.
    ///
    /// # Errors
    /// The message of an answer that is no page, or of a listing that does not come to an end.
    pub(crate) fn add(
        &mut self,
        offset: u64,
        limit: u64,
        body: &[u8],
        instance: Option<&str>,
    ) -> Result<NextPage, String> {
        let page: Page<'_> = serde_json::from_slice(body)
            .map_err(|error| format!("the answer is not a page of keys as LMCache 0.5.6 has them: {error}"))?;
        let count = page.keys.len() as u64;
        if count > limit {
            return Err(format!("a page has {count} keys, of {limit} that were asked for"));
        }
        let first = page.keys.first().map(|listed| listed.key.mark());
        if offset > 0 && first.is_none_or(|first| !self.last_page.contains(&first)) {
            // Keys have left the list, and others have moved to where this page no longer looks.
            self.steps_back += 1;
            if self.steps_back > STEPS_BACK {
                return Err(format!(
                    "keys come and go faster than they can be listed: {STEPS_BACK} pages were in vain"
                ));
            }
            return Ok(NextPage::At(offset.saturating_sub((limit / 2).max(1))));
        }
        self.last_page.clear();
        page.keys.iter().for_each(|listed| self.count(listed, instance));
        if count < limit {
            return Ok(NextPage::Done(std::mem::take(self).finish()));
        }
        // The next page begins with the last keys of this one: some of these may be removed until then.
        Ok(NextPage::At(offset + count - (limit / 8).clamp(1, count)))
    }

    fn count(&mut self, ListedKey { key, placements }: &ListedKey<'_>, instance: Option<&str>) {
        let mark = key.mark();
        self.last_page.insert(mark);
        let (ranks, rank) = (key.kv_rank >> 24, key.kv_rank >> 16 & 0xff);
        let is_had = |it: &Placement<'_>| it.shared || instance.is_some_and(|instance| *instance == *it.instance_id);
        let counted = match key.chunk() {
            None => Err(LeftOut::Hash),
            Some(_) if ranks == 0 || ranks > RANKS || rank >= ranks => Err(LeftOut::Ranks),
            Some(_) if key.object_group_id != 0 => Err(LeftOut::Group),
            Some(_) if !placements.iter().any(is_had) => Err(LeftOut::Private),
            Some(chunk) => Ok(chunk),
        };
        match counted {
            Ok(chunk) => {
                let model = match self.models.get_mut(&*key.model_name) {
                    Some(model) => model,
                    None => self.models.entry((&*key.model_name).into()).or_default(),
                };
                *model.entry((ranks, chunk)).or_default() |= 1 << rank;
            }
            Err(why) if self.left.insert(mark) => self.left_out[why as usize] += 1,
            Err(_) => {}
        }
    }

    fn finish(self) -> ChunkListing {
        let mut listing = ChunkListing { left_out: self.left_out, ..ChunkListing::default() };
        for (model, parts) in self.models {
            let by_ranks = listing.models.entry(model).or_default();
            for ((ranks, chunk), had) in parts {
                if had.count_ones() == ranks {
                    by_ranks.entry(ranks).or_default().insert(chunk);
                } else {
                    listing.left_out[LeftOut::Incomplete as usize] += u64::from(had.count_ones());
                }
            }
        }
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page with one key for each chunk, of a shared copy, and the next position or the chunks found.
    fn page(chunks: &[u64]) -> Vec<u8> {
        let key = |chunk: &u64| {
            format!(
                r#"{{"key":{{"chunk_hash_hex":"{chunk:064x}","model_name":"m","kv_rank":16777472}},
                    "placements":[{{"instance_id":"i","incarnation":1,"tier":"l2","backend":"fs","shared":true}}]}}"#
            )
        };
        let keys: Vec<_> = chunks.iter().map(key).collect();
        format!(r#"{{"total":{},"keys":[{}]}}"#, chunks.len(), keys.join(",")).into_bytes()
    }

    /// Lists a directory whose keys change before each page.
    fn list(
        limit: u64,
        mut directory: Vec<u64>,
        mut change: impl FnMut(usize, &mut Vec<u64>),
    ) -> Result<ChunkListing, String> {
        let (mut listing, mut offset) = (PartialListing::default(), 0);
        for asked in 0.. {
            change(asked, &mut directory);
            let from = directory.len().min(offset as usize);
            let to = directory.len().min(from + limit as usize);
            match listing.add(offset, limit, &page(&directory[from..to]), None)? {
                NextPage::At(at) => offset = at,
                NextPage::Done(listing) => return Ok(listing),
            }
        }
        unreachable!("pages end")
    }

    #[test]
    fn what_stays_is_found_whatever_goes_meanwhile() {
        let mut random = kvatlas_testing::Random(7);
        for _ in 0..300 {
            let limit = 2 + random.below(30);
            let whole: Vec<u64> = (0..random.below(300)).collect();
            let (mut gone, mut new) = (HashSet::new(), 1_000);
            let listing = list(limit, whole.clone(), |_, directory| {
                for _ in 0..random.below(6) {
                    if !directory.is_empty() && random.below(3) > 0 {
                        gone.insert(directory.remove(random.below(directory.len() as u64) as usize));
                    } else {
                        directory.push(new);
                        new += 1;
                    }
                }
            });
            // Small pages of what changes much may never end, which is an error, and no wrong answer.
            let Ok(listing) = listing else { continue };
            let empty = HashSet::new();
            let found = listing.models.get("m").and_then(|it| it.get(&1)).unwrap_or(&empty);
            let lost: Vec<_> = whole.iter().filter(|it| !gone.contains(*it) && !found.contains(*it)).collect();
            assert!(lost.is_empty(), "{lost:?} of {} with pages of {limit}", whole.len());
        }
    }

    #[test]
    fn a_list_that_never_stands_still_is_an_error() {
        let said = list(4, (0..40).collect(), |at, directory| {
            let next = 100 * (at as u64 + 1);
            *directory = (next..next + 40).collect();
        });
        assert!(said.is_err_and(|message| message.contains("faster")));
    }

    #[test]
    fn junk_is_an_error_and_keys_that_cannot_be_used_are_counted() {
        let add = |body: &str| PartialListing::default().add(0, 10, body.as_bytes(), Some("mine"));
        for junk in ["", "[]", "{}", r#"{"keys":[{"key":{}}]}"#, "\u{0}\u{1}"] {
            assert!(add(junk).is_err_and(|message| message.contains("page of keys")), "{junk}");
        }
        let key = |hex: &str, rank: u32, group: u32, instance: &str| {
            format!(
                r#"{{"key":{{"chunk_hash_hex":"{hex}","model_name":"m","kv_rank":{rank},"object_group_id":{group},
                "cache_salt":""}},"placements":[{{"instance_id":"{instance}","shared":false}}]}}"#
            )
        };
        let (hex, one, two) = ("00112233445566778899", 1 << 24 | 1 << 8, 2 << 24 | 2 << 8);
        let keys = [
            key(hex, one, 0, "mine"),
            key("zz112233445566778899", one, 0, "mine"),
            key("0011", one, 0, "mine"),
            key(hex, 3 << 16, 0, "mine"),
            key(hex, one, 1, "mine"),
            key(hex, one, 0, "other"),
            key(hex, two, 0, "mine"),
        ];
        let Ok(NextPage::Done(listing)) = add(&format!(r#"{{"total":7,"keys":[{}]}}"#, keys.join(","))) else {
            panic!("one page")
        };
        assert_eq!(listing.left_out, [2, 1, 1, 1, 1]);
        assert_eq!(listing.models["m"], ByRanks::from([(1, HashSet::from([0x2233_4455_6677_8899]))]));
        assert_eq!(chunk_name(&[0xff, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99], ""), 0x2233_4455_6677_8899);
        assert_ne!(chunk_name(&[1; 32], "salt"), chunk_name(&[1; 32], ""));
    }
}
