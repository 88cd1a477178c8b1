//! Listings of the pools that LMCache fills, put to use: chunks of prompts are added to the pools, and what is not listed any
//! more leaves them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::config::PoolConfig;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::lmcache::{ChunkListing, LmcacheConfig, NextPage, PartialListing};
use crate::state::{Keyspace, tell_time};

impl Keyspace {
    /// Adds the chunks of a prompt that LMCache has to the pools that it fills, so that the prompt's look-up finds them.
    /// `contents`: content hashes of the prompt's blocks.
    pub fn describe_to_pools(&self, tokens: &[u32], contents: &[u64], adapter: Option<&str>, salt: Option<&str>) {
        for (pool, lmcache) in self.lmcache_pools() {
            let listed = lmcache.listed.complete.load();
            let Some((listing, _)) = listed.as_deref() else { continue };
            let Some(chunk) = lmcache.chunk(self.block_size) else { continue };
            let Ok(Some(names)) = lmcache.chunks_of(listing, &self.model) else { continue };
            if adapter.is_some_and(|adapter| !adapter.is_empty()) {
                lmcache.listed.adapters.fetch_add(1, Relaxed);
                continue;
            }
            let salt = salt.unwrap_or_default();
            let found = lmcache.listed_chunks(names, chunk.get() as usize, tokens, contents, salt);
            if !found.is_empty() {
                let index = self.index();
                tell_time(&index);
                index.add_to_pool(&pool.name, &found);
            }
        }
    }

    /// True if the model's engines may load from a pool that LMCache fills.
    #[must_use]
    pub fn has_listed_pools(&self) -> bool {
        self.lmcache_pools().next().is_some()
    }

    fn lmcache_pools(&self) -> impl Iterator<Item = (&PoolConfig, &LmcacheConfig)> {
        self.pool_settings().iter().filter_map(|pool| Some((pool, pool.lmcache.as_ref()?)))
    }
}

/// Begins a listing of a pool's chunks, before its first page is asked for.
///
/// # Errors
/// [`Error::Unknown`] if LMCache fills no pool of this name.
pub(crate) fn begin(fleet: &Fleet, name: &str) -> Result<(), Error> {
    let (_, lmcache) = find(fleet, name)?;
    *lmcache.listed.partial.lock() = Some((PartialListing::default(), Instant::now()));
    Ok(())
}

/// Takes in a page of a listing. Returns the position of the next page to ask for; `None` after the last page, which ends
/// the listing: chunks that it lacks leave the pool.
///
/// # Errors
/// [`Error::Unknown`] if LMCache fills no pool of this name, or its listing has not begun; [`Error::Invalid`] if the page
/// cannot be used, which ends the listing, too.
pub(crate) fn add_page(
    fleet: &Fleet,
    name: &str,
    (offset, limit): (u64, u64),
    body: &[u8],
) -> Result<Option<u64>, Error> {
    let (pool, lmcache) = find(fleet, name)?;
    let mut partial = lmcache.listed.partial.lock();
    let Some((listing, begun)) = &mut *partial else {
        return Err(Error::unknown("unknown_listing", format!("no listing of pool {name:?} has begun")));
    };
    let next = listing.add(offset, limit, body, lmcache.instance.as_deref());
    let begun = *begun;
    match next {
        Ok(NextPage::At(offset)) => Ok(Some(offset)),
        Ok(NextPage::Done(listing)) => {
            *partial = None;
            drop(partial);
            complete(fleet, pool, lmcache, listing, begun);
            Ok(None)
        }
        Err(message) => {
            *partial = None;
            Err(Error::invalid("invalid_listing", message))
        }
    }
}

/// Counts a listing that came to no end, and logs the first of several.
///
/// # Errors
/// [`Error::Unknown`] if LMCache fills no pool of this name.
pub(crate) fn fail(fleet: &Fleet, name: &str, why: &str) -> Result<(), Error> {
    let (_, lmcache) = find(fleet, name)?;
    *lmcache.listed.partial.lock() = None;
    lmcache.listed.failed.fetch_add(1, Relaxed);
    if !lmcache.listed.has_failed.swap(true, Relaxed) {
        tracing::warn!(
            pool = name,
            why,
            "LMCache's coordinator cannot be read: what it listed last counts until it can"
        );
    }
    Ok(())
}

fn find<'f>(fleet: &'f Fleet, name: &str) -> Result<(&'f PoolConfig, &'f LmcacheConfig), Error> {
    let pool = fleet.pools().iter().find(|pool| *pool.name == *name);
    pool.and_then(|pool| Some((pool, pool.lmcache.as_ref()?)))
        .ok_or_else(|| Error::unknown("unknown_pool", format!("no pool named {name:?} is filled by LMCache")))
}

/// Puts a complete listing to use.
fn complete(fleet: &Fleet, pool: &PoolConfig, lmcache: &LmcacheConfig, listing: ChunkListing, begun: Instant) {
    let listed = &lmcache.listed;
    if listed.has_failed.swap(false, Relaxed) {
        tracing::info!(pool = %pool.name, "LMCache's coordinator can be read again");
    }
    let listing = Arc::new((listing, begun));
    let before = listed.complete.swap(Some(listing.clone()));
    listed.completed.fetch_add(1, Relaxed);
    let none = HashSet::new();
    for keyspace in fleet.keyspaces() {
        let index = keyspace.index().clone();
        tell_time(&index);
        let until = index.time() - begun.elapsed().as_secs_f64();
        let (model, name) = (&*keyspace.model, &*pool.name);
        if before.is_none() && lmcache.chunk(keyspace.block_size).is_none() {
            let (chunk, block_size) = (lmcache.chunk_tokens, keyspace.block_size);
            tracing::warn!(
                model,
                pool = name,
                chunk,
                block_size,
                "nothing of LMCache counts for this model, as LMCache's \
                           chunks are not whole blocks of its engines"
            );
        }
        let names = lmcache.chunks_of(&listing.0, model);
        let was_fine = before.as_deref().is_none_or(|(before, _)| lmcache.chunks_of(before, model).is_ok());
        if let (Err(why), true) = (&names, was_fine) {
            tracing::warn!(model, pool = name, why, "nothing of LMCache counts for this model");
        }
        let found = names.ok().flatten().unwrap_or(&none);
        let mut gone = 0;
        keyspace.change(|index| gone = index.keep_in_pool(name, found, until));
        keyspace.gone_from_pools.fetch_add(gone as u64, Relaxed);
    }
}
