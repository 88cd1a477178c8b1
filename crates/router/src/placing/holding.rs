//! Looks up which engines hold a prompt in the index of this process.

use std::sync::Arc;

use kvatlas_follow::lookup::RankDepths;
use kvatlas_follow::state::Keyspace;

use crate::engines::Engine;
use crate::engines::fleet::row;
use crate::requests::facts::DialectBlocks;

/// Finds how much of a prompt each rank holds: of the prompt that its engine makes of the request.
pub(super) fn look_up(
    keyspace: &Keyspace,
    hashes: &[u64],
    others: &[DialectBlocks],
    engines: &[Arc<Engine>],
    held: &mut Vec<RankDepths>,
) {
    if others.is_empty() {
        return keyspace.look_up(hashes, |worker, rank| row(engines, worker, rank), held);
    }
    let is_of = |worker: &str, is_wanted: &dyn Fn(&Engine) -> bool| {
        let at = engines.binary_search_by(|engine| (*engine.name).cmp(worker));
        at.is_ok_and(|at| is_wanted(&engines[at]))
    };
    let has_main = |engine: &Engine| !others.iter().any(|other| other.dialect == engine.dialect());
    let of_main = |worker: &str, rank| is_of(worker, &has_main).then(|| row(engines, worker, rank))?;
    keyspace.look_up(hashes, of_main, held);
    let mut found = Vec::new();
    for other in others {
        let has_it = |engine: &Engine| engine.dialect() == other.dialect;
        let of_other = |worker: &str, rank| is_of(worker, &has_it).then(|| row(engines, worker, rank))?;
        keyspace.look_up(&other.hashes, of_other, &mut found);
        held.append(&mut found);
    }
}
