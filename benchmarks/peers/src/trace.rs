//! The requests: the conversation trace when it is at hand, else a generated one of like statistics.
//!
//! A request is a list of trace block ids. An id stands for 512 tokens *and the prefix before them*: two
//! requests that share an id share everything up to it. All ids of a request are used, the last, partly
//! filled one too, so that a block of the trace is a block of the benchmark.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::rng::Rng;

/// Requests of a generated trace.
const GENERATED: usize = 12_000;
const NAME: &str = "conversation_trace.jsonl";

pub struct Trace {
    /// Block ids of each request, in order of arrival.
    pub requests: Vec<Vec<u32>>,
    /// The file or generator that the trace came from, for the report.
    pub source: String,
}

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u32>,
}

impl Trace {
    /// Reads a trace in Mooncake's JSONL format; requests without blocks are left out.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut requests = Vec::new();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|e| format!("{}: {e}", path.display()))?;
            if line.trim().is_empty() {
                continue;
            }
            let line: Line =
                serde_json::from_str(&line).map_err(|e| format!("{} line {}: {e}", path.display(), number + 1))?;
            if !line.hash_ids.is_empty() {
                requests.push(line.hash_ids);
            }
        }
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Ok(Self { requests, source: name })
    }

    /// The trace named, else the one found in `KVATLAS_TRACES` or beside the repository, else a generated one.
    pub fn find(named: Option<&Path>, seed: u64) -> Result<Self, String> {
        match named {
            Some(path) if path == Path::new("generated") => return Ok(Self::generate(GENERATED, seed)),
            Some(path) => return Self::read(path),
            None => {}
        }
        match candidates().into_iter().find(|p| p.is_file()) {
            Some(path) => Self::read(&path),
            None => Ok(Self::generate(GENERATED, seed)),
        }
    }

    /// Conversations that all start with one system prompt: two in five requests continue one of the
    /// recent conversations, the others open one. Tuned to the conversation trace: about 24 blocks a
    /// request, somewhat over a third of them seen before.
    pub fn generate(count: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut next_id = 1u32;
        let mut open: Vec<Vec<u32>> = Vec::new();
        let mut requests = Vec::with_capacity(count);
        let grow = |ids: &mut Vec<u32>, blocks: f64, next_id: &mut u32| {
            for _ in 0..(blocks as usize).clamp(1, 230) {
                ids.push(*next_id);
                *next_id += 1;
            }
        };
        for _ in 0..count {
            let mut ids = if !open.is_empty() && rng.unit() < 0.39 {
                // Recent ones are likelier: the square of a uniform number leans to zero.
                let age = (rng.unit().powi(2) * open.len() as f64) as usize;
                let mut ids = open.remove(open.len() - 1 - age);
                // The last block was partly filled: the next turn fills it with something else.
                if ids.len() > 1 {
                    ids.pop();
                }
                let blocks = (1.3 + 1.1 * rng.normal()).exp();
                grow(&mut ids, blocks, &mut next_id);
                ids
            } else {
                let mut ids = vec![0];
                let blocks = (2.3 + 1.1 * rng.normal()).exp();
                grow(&mut ids, blocks, &mut next_id);
                ids
            };
            ids.truncate(247);
            requests.push(ids.clone());
            open.push(ids);
            if open.len() > 2_000 {
                open.remove(0);
            }
        }
        Self { requests, source: format!("generated (seed {seed})") }
    }

    /// Mean blocks a request, share of blocks seen before with an unbounded cache, distinct blocks.
    pub fn statistics(&self) -> (f64, f64, usize) {
        let mut seen = std::collections::HashSet::new();
        let (mut blocks, mut hits) = (0usize, 0usize);
        for ids in &self.requests {
            blocks += ids.len();
            hits += ids.iter().take_while(|id| seen.contains(*id)).count();
            seen.extend(ids.iter().copied());
        }
        let mean = blocks as f64 / self.requests.len().max(1) as f64;
        (mean, hits as f64 / blocks.max(1) as f64, seen.len())
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(folder) = std::env::var_os("KVATLAS_TRACES") {
        found.push(Path::new(&folder).join(NAME));
    }
    let here = std::env::current_dir().unwrap_or_default();
    for start in [here.as_path(), Path::new(env!("CARGO_MANIFEST_DIR"))] {
        for dir in start.ancestors() {
            found.push(dir.join("shared").join("traces").join(NAME));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Trace;

    #[test]
    fn a_generated_trace_is_like_the_real_one_and_repeats() {
        let trace = Trace::generate(12_000, 7);
        let (mean, hits, _) = trace.statistics();
        assert!((18.0..30.0).contains(&mean), "{mean} blocks a request");
        assert!((0.28..0.50).contains(&hits), "{hits} seen before");
        assert_eq!(trace.requests, Trace::generate(12_000, 7).requests);
    }

    #[test]
    fn an_id_names_its_whole_prefix() {
        let mut parents = std::collections::HashMap::new();
        for ids in Trace::generate(3_000, 1).requests {
            let mut parent = None;
            for id in ids {
                assert_eq!(*parents.entry(id).or_insert(parent), parent);
                parent = Some(id);
            }
        }
    }
}
