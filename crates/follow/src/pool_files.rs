//! Scans of the directories in which pools (stores shared by several engines) keep their blocks. Engines do not
//! announce deletions from a pool, so the index learns of them by the scans.
//!
//! vLLM's `fs` tier keeps each chunk of blocks in one file, three directories below the pool's root. The file's name is
//! the digest of the chunk's last block, in hexadecimal; KV events contain only the last 64 bits of that digest. While
//! a directory cannot be read, all its files are assumed to exist.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokio::time::sleep;

use crate::config::PoolConfig;
use crate::fleet::Fleet;
use crate::state::tell_time;

/// Maximum number of directory levels that are scanned.
const DEEPEST: usize = 8;
/// Number of hexadecimal digits of the last 64 bits of a digest, which are all that events contain.
const DIGITS: usize = 16;
/// Minimum pause between two scans, as a multiple of the duration of the previous scan.
const SHARE: u32 = 4;

/// Scans the directory of a pool periodically, and removes blocks from the pool in all indexes when their files no
/// longer exist.
pub(crate) async fn watch(fleet: Arc<Fleet>, pool: PoolConfig) {
    let Some(directory) = &pool.directory else { return };
    let mut has_failed = false;
    loop {
        let begun = Instant::now();
        let timed = fleet.keyspaces().into_iter().map(|keyspace| {
            let index = keyspace.index().clone();
            tell_time(&index);
            (keyspace, index.time())
        });
        let times: Vec<_> = timed.collect();
        let at = directory.clone();
        let found = tokio::task::spawn_blocking(move || blocks_in(&at)).await;
        match found.unwrap_or_else(|_| Err(io::Error::other("an internal error"))) {
            Ok(found) => {
                if std::mem::take(&mut has_failed) {
                    tracing::info!(pool = %pool.name, "the directory of the pool can be read again");
                }
                for (keyspace, until) in times {
                    let mut gone = 0;
                    keyspace.change(|index| gone = index.keep_in_pool(&pool.name, &found, until));
                    keyspace.gone_from_pools.fetch_add(gone as u64, Relaxed);
                    if gone > 0 {
                        let (model, pool) = (&*keyspace.model, &*pool.name);
                        tracing::info!(model, pool, gone, files = found.len(), "blocks are not in the pool any more");
                    }
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    let directory = directory.display();
                    tracing::warn!(pool = %pool.name, %directory, %error, "the directory of the pool cannot be read: \
                                   blocks that are deleted there still count");
                }
            }
        }
        sleep(pool.look_every.max(begun.elapsed() * SHARE)).await;
    }
}

/// Lists the blocks whose files are in a directory or below it. A block is given by the last 64 bits of the digest in
/// its file's name.
fn blocks_in(directory: &Path) -> io::Result<HashSet<u64>> {
    let mut found = HashSet::new();
    let mut left = vec![(directory.to_owned(), 0)];
    while let Some((at, level)) = left.pop() {
        let entries = match std::fs::read_dir(&at) {
            Ok(entries) => entries,
            // Directories come and go, but without one of those that are there nothing can be said.
            Err(error) if level > 0 && error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            match block_of(&entry.file_name()) {
                Some(block) => {
                    found.insert(block);
                }
                None if level < DEEPEST && entry.file_type()?.is_dir() => left.push((entry.path(), level + 1)),
                None => {}
            }
        }
    }
    Ok(found)
}

/// Parses a file name such as `0f3c….bin` into the last 64 bits of a block's digest; `None` if the name is not a
/// digest, as for temporary files.
fn block_of(name: &std::ffi::OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let digest = name.strip_suffix(".bin").unwrap_or(name);
    let is_digest = digest.len() >= DIGITS && digest.bytes().all(|digit| digit.is_ascii_hexdigit());
    let last = digest.get(digest.len().checked_sub(DIGITS)?..)?;
    is_digest.then(|| u64::from_str_radix(last, 16).ok())?
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;

    use super::*;

    #[test]
    fn files_are_named_by_digests() {
        let of = |name: &str| block_of(OsStr::new(name));
        assert_eq!(of(&format!("{:048x}00000000000000ff.bin", 7)), Some(0xff));
        assert_eq!(of("00000000000000Ff"), Some(0xff));
        for other in
            ["ff", "config.json", "", ".bin", "00000000000000ff.tmp", "00000000000000fé.bin", "zz000000000000ff"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn all_files_below_a_directory_are_found_or_nothing_is_said() {
        let root = std::env::temp_dir().join(format!("kvatlas-pool-{}", std::process::id()));
        let deep = root.join("model_1_r0").join("abc").join("de_g0");
        fs::create_dir_all(&deep).expect("a directory");
        for block in [1_u64, 2] {
            fs::write(deep.join(format!("{block:064x}.bin")), b"").expect("a file");
        }
        fs::write(root.join("config.json"), b"").expect("a file");
        assert_eq!(blocks_in(&root).expect("it can be read"), HashSet::from([1, 2]));
        fs::remove_dir_all(&root).expect("it was there");
        assert!(blocks_in(&root).is_err());
    }
}
