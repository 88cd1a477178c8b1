//! Index of sites: applies their digests, and returns bounds on the blocks of a prompt that each site holds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hashbrown::HashMap;

use crate::Error;
use crate::message::{Digest, word};
use crate::status::{Counts, PROBE_EVERY, Proof, SiteStatus, State, Trust};
use crate::table::{MAX_SITES, Sets, Table};

/// Sparse index of the blocks held by many sites (fleets with their own indexes), built from their digests. Times are
/// durations since a moment of the caller's choice.
pub struct Sites {
    grain: u32,
    stale_after: Duration,
    table: Table,
    sets: Sets,
    sites: Vec<Option<Site>>,
    numbers: HashMap<Box<str>, u32>,
    counts: SiteCounters,
}

struct Site {
    name: Box<str>,
    life: u64,
    seq: u64,
    word: u64,
    marks: u64,
    /// True if a digest of the site was missed. The site's marks (prefix hashes) then do not count until a whole digest
    /// arrives.
    broken: bool,
    heard: Duration,
    trust: Trust,
    /// Number of lookups since the last probe in which the doubted site would have been the best if its claims counted.
    doubts: AtomicU32,
    /// Total size of the site's digests so far, in bytes.
    bytes: u64,
}

#[derive(Default)]
struct SiteCounters {
    applied: u64,
    whole: u64,
    repeated: u64,
    refused: u64,
    wanted: u64,
    forgotten: u64,
    doubted: u64,
    compared: u64,
    short: u64,
    beyond: u64,
    answers: AtomicU64,
    left_out: AtomicU64,
    probes: AtomicU64,
}

/// Effect of a received digest on the index of sites: applied, or ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestEffect {
    /// The digest was applied to the index of sites.
    Now,
    /// The digest had already been applied earlier, and was ignored.
    Before,
}

/// Group of sites with equal bounds on the number of a prompt's leading blocks that they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Level {
    /// Minimum number of the prompt's leading blocks that each site of this group holds.
    pub at_least: u32,
    /// Maximum number of the prompt's leading blocks that each site of this group holds.
    pub at_most: u32,
    /// Numbers of the sites in this group; [`Sites::name`] returns their names.
    pub sites: Vec<u32>,
}

/// Bounds on the number of a prompt's leading blocks that each site holds. Sites in neither list hold 0 to
/// [`rest_at_most`](Self::rest_at_most) blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Sites that held leading blocks for certain when their last digest was made, by decreasing bounds.
    pub levels: Vec<Level>,
    /// Maximum number of the prompt's leading blocks that any site outside the two lists holds.
    pub rest_at_most: u32,
    /// Numbers of sites that may hold any number of blocks: they sent no digest for too long, missed one, or are
    /// doubted for earlier false claims.
    pub unknown: Vec<u32>,
    /// Doubted site that should be asked again for the blocks it really holds, with the minimum number of blocks that
    /// it claims; `None` if no probe is due.
    pub probe: Option<(u32, u32)>,
}

impl Sites {
    /// Creates an empty index for digests with this grain, the number of blocks between their prefix hashes.
    /// `stale_after`: time without a digest after which a site may hold any blocks; `key`: a random number that
    /// protects the hash table.
    ///
    /// # Errors
    ///
    /// [`Error::Grain`] if the grain is 0.
    pub fn new(grain: u32, stale_after: Duration, key: u64) -> Result<Self, Error> {
        if grain == 0 {
            return Err(Error::Grain);
        }
        Ok(Self {
            grain,
            stale_after,
            table: Table::new(key),
            sets: Sets::default(),
            sites: Vec::new(),
            numbers: HashMap::new(),
            counts: SiteCounters::default(),
        })
    }

    /// Number of blocks between the prefix hashes of a digest.
    #[must_use]
    pub fn grain(&self) -> u32 {
        self.grain
    }

    /// Applies a received digest to the index of sites. `bytes`: size of the encoded digest.
    ///
    /// # Errors
    ///
    /// [`Error::OtherGrain`]; [`Error::WholeWanted`] if an earlier digest is missing, after which the site may hold any
    /// blocks until a whole digest arrives; [`Error::TooMany`].
    pub fn apply(&mut self, digest: &Digest, bytes: usize, now: Duration) -> Result<DigestEffect, Error> {
        let applied = self.try_apply(digest, bytes, now);
        match &applied {
            Ok(DigestEffect::Now) => {
                self.counts.applied += 1;
                self.counts.whole += u64::from(digest.whole);
            }
            Ok(DigestEffect::Before) => self.counts.repeated += 1,
            Err(Error::WholeWanted { .. }) => self.counts.wanted += 1,
            Err(_) => self.counts.refused += 1,
        }
        applied
    }

    fn try_apply(&mut self, digest: &Digest, bytes: usize, now: Duration) -> Result<DigestEffect, Error> {
        if digest.grain != self.grain {
            return Err(Error::OtherGrain { got: digest.grain, expected: self.grain });
        }
        let at = match self.numbers.get(&*digest.site) {
            Some(&at) => at as usize,
            None if digest.whole => self.new_site(&digest.site)?,
            None => return Err(Error::WholeWanted { why: "the site is not known" }),
        };
        let Some(site) = self.sites[at].as_mut() else { return Err(Error::WholeWanted { why: "it was forgotten" }) };
        site.bytes += bytes as u64;
        if digest.life == site.life && !site.broken {
            if digest.seq < site.seq || (digest.seq == site.seq && digest.word == site.word) {
                site.heard = now;
                return Ok(DigestEffect::Before);
            }
            if !digest.whole && digest.seq != site.seq + 1 {
                site.broken = true;
                return Err(Error::WholeWanted { why: "a digest is missing before it" });
            }
        } else if !digest.whole {
            // Its claims are those of another life.
            site.broken = true;
            return Err(Error::WholeWanted { why: "the site has restarted, or a digest was missing" });
        }
        if digest.whole {
            self.clear(at);
        }
        self.change(at, &digest.removed, &digest.added);
        let Some(site) = self.sites[at].as_mut() else { return Ok(DigestEffect::Before) };
        (site.life, site.seq, site.heard) = (digest.life, digest.seq, now);
        site.broken = site.word != digest.word;
        if site.broken {
            return Err(Error::WholeWanted { why: "the marks do not come to the digest's word" });
        }
        Ok(DigestEffect::Now)
    }

    fn new_site(&mut self, name: &str) -> Result<usize, Error> {
        let at = self.sites.iter().position(Option::is_none).unwrap_or(self.sites.len());
        if at >= MAX_SITES {
            return Err(Error::TooMany { most: MAX_SITES });
        }
        if at == self.sites.len() {
            self.sites.push(None);
        }
        self.numbers.insert(name.into(), at as u32);
        self.sites[at] = Some(Site {
            name: name.into(),
            life: 0,
            seq: 0,
            word: 0,
            marks: 0,
            broken: true,
            heard: Duration::ZERO,
            trust: Trust::default(),
            doubts: AtomicU32::new(0),
            bytes: 0,
        });
        Ok(at)
    }

    fn change(&mut self, at: usize, removed: &[u64], added: &[u64]) {
        let Self { table, sets, sites, .. } = self;
        let Some(site) = sites[at].as_mut() else { return };
        for &mark in removed {
            table.change(mark, |set| {
                let set = set?;
                if sets.has(set, at) {
                    site.marks -= 1;
                    site.word = site.word.wrapping_sub(word(mark));
                }
                sets.without(set, at)
            });
        }
        for &mark in added {
            table.change(mark, |set| {
                if !set.is_some_and(|set| sets.has(set, at)) {
                    site.marks += 1;
                    site.word = site.word.wrapping_add(word(mark));
                }
                Some(sets.with(set, at))
            });
        }
    }

    /// Removes all marks (prefix hashes) of a site, by a scan of the whole hash table.
    fn clear(&mut self, at: usize) {
        if self.sites[at].as_ref().is_some_and(|site| site.marks > 0) {
            let has = |(_, set): &(u64, u32)| self.sets.has(*set, at);
            let marks: Vec<u64> = self.table.iter().filter(has).map(|(mark, _)| mark).collect();
            self.change(at, &marks, &[]);
        }
    }

    /// Removes a site and its marks (prefix hashes). Returns false if the site is unknown.
    pub fn forget(&mut self, site: &str) -> bool {
        let Some(at) = self.numbers.get(site).map(|&at| at as usize) else { return false };
        self.clear(at);
        self.sites[at] = None;
        self.numbers.remove(site);
        self.counts.forgotten += 1;
        true
    }

    /// Name of the site with this number; empty if there is no such site.
    #[must_use]
    pub fn name(&self, site: u32) -> &str {
        self.sites.get(site as usize).and_then(Option::as_ref).map_or("", |site| &site.name)
    }

    /// Looks up a prompt of `blocks` blocks, given by its [marks](crate::marks_of_prompt) (prefix hashes): returns
    /// bounds on the number of leading blocks that each site holds.
    #[must_use]
    pub fn find(&self, marks: &[u64], blocks: u32, now: Duration) -> Answer {
        self.counts.answers.fetch_add(1, Relaxed);
        let mut answer = Answer { rest_at_most: blocks.min(self.grain - 1), ..Answer::default() };
        // A site that has a mark has those before it.
        let sets: Vec<u32> = marks.iter().map_while(|&mark| self.table.get(mark)).collect();
        let mut seen = vec![0_u64; self.sites.len().div_ceil(64)];
        let mut doubted = Vec::new();
        for (at, site) in self.sites.iter().zip(0_u32..) {
            match at.as_ref().map(|site| self.state(site, now)) {
                None | Some(State::Known) => continue,
                Some(State::Unknown) => {}
                Some(State::Doubted) => doubted.push(site),
            }
            answer.unknown.push(site);
            seen[site as usize / 64] |= 1 << (site % 64);
        }
        let mut best = 0;
        for (before, &set) in sets.iter().enumerate().rev() {
            let at_least = (before as u32 + 1) * self.grain;
            let mut level = Level { at_least, at_most: blocks.min(at_least + self.grain - 1), sites: Vec::new() };
            self.sets.each(set, |site| {
                let (word, bit) = (site / 64, 1 << (site % 64));
                if seen[word] & bit == 0 {
                    seen[word] |= bit;
                    level.sites.push(site as u32);
                }
            });
            if !level.sites.is_empty() {
                best = best.max(at_least);
                answer.levels.push(level);
            }
        }
        self.probe(&sets, best, &doubted, &mut answer);
        answer
    }

    /// Counts claims of doubted sites that would have been the best answer, and at intervals suggests a probe of a
    /// site, a query for the blocks that it really holds.
    fn probe(&self, sets: &[u32], best: u32, doubted: &[u32], answer: &mut Answer) {
        for &number in doubted {
            let Some(depth) = sets.iter().rposition(|&set| self.sets.has(set, number as usize)) else { continue };
            let claimed = (depth as u32 + 1) * self.grain;
            let Some(site) = self.sites[number as usize].as_ref().filter(|_| claimed > best) else { continue };
            self.counts.left_out.fetch_add(1, Relaxed);
            if (site.doubts.fetch_add(1, Relaxed) + 1).is_multiple_of(PROBE_EVERY) && answer.probe.is_none() {
                self.counts.probes.fetch_add(1, Relaxed);
                answer.probe = Some((number, claimed));
            }
        }
    }

    /// Records that a site really held `was` leading blocks of a prompt, after a lookup that gave the bounds `at_least`
    /// and `at_most`. `proof`: source of this knowledge, the site's exact index or an engine's report. Returns false if
    /// the site is unknown.
    pub fn compare(&mut self, site: &str, at_least: u32, at_most: u32, was: u32, proof: Proof) -> bool {
        let Some(site) = self.numbers.get(site).and_then(|&at| self.sites[at as usize].as_mut()) else { return false };
        // An engine may have computed what it held: that it took less from its cache proves less than an answer, and that
        // it took more proves as much.
        self.counts.compared += 1;
        self.counts.short += u64::from(was < at_least);
        self.counts.beyond += u64::from(was > at_most);
        let claimed = match proof {
            Proof::Answer => at_least,
            // It always computes the last block of a prompt, and caches in units of its own.
            Proof::Engine => at_least.saturating_sub(self.grain),
        };
        self.counts.doubted += u64::from(site.trust.compare(claimed, was, self.grain));
        true
    }

    fn state(&self, site: &Site, now: Duration) -> State {
        if site.broken || now.saturating_sub(site.heard) > self.stale_after {
            State::Unknown
        } else if site.trust.is_doubted() {
            State::Doubted
        } else {
            State::Known
        }
    }

    /// Returns the status of all sites, sorted by name.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<SiteStatus> {
        let status = |site: &Site| SiteStatus {
            site: site.name.to_string(),
            state: self.state(site, now),
            age: now.saturating_sub(site.heard),
            life: site.life,
            seq: site.seq,
            marks: site.marks,
            bytes: site.bytes,
            trust: site.trust.share(self.grain),
            compared: site.trust.compared,
            short: site.trust.short,
        };
        let mut list: Vec<_> = self.sites.iter().flatten().map(status).collect();
        list.sort_unstable_by(|a, b| a.site.cmp(&b.site));
        list
    }

    /// Counts of digests and lookups since the index of sites was created, and its present sizes.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let SiteCounters {
            applied, whole, repeated, refused, wanted, forgotten, doubted, compared, short, beyond, ..
        } = self.counts;
        let sites = self.sites.capacity() * size_of::<Option<Site>>() + self.numbers.capacity() * 24;
        Counts {
            sites: self.numbers.len() as u64,
            marks: self.table.len() as u64,
            sets: self.sets.len() as u64,
            bytes: (self.table.bytes() + self.sets.bytes() + sites) as u64,
            applied,
            whole,
            repeated,
            refused,
            whole_wanted: wanted,
            forgotten,
            doubted,
            compared,
            short,
            beyond,
            answers: self.counts.answers.load(Relaxed),
            left_out: self.counts.left_out.load(Relaxed),
            probes: self.counts.probes.load(Relaxed),
        }
    }

    /// True if the table of marks (prefix hashes) and the data of the sites agree; for tests.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let mut of_sites = vec![(0_u64, 0_u64); self.sites.len()];
        for (mark, set) in self.table.iter() {
            self.sets.each(set, |site| {
                let (marks, sum) = &mut of_sites[site];
                (*marks, *sum) = (*marks + 1, sum.wrapping_add(word(mark)));
            });
        }
        let agrees = |(site, counted): (&Option<Site>, &(u64, u64))| {
            site.as_ref().map_or((0, 0), |site| (site.marks, site.word)) == *counted
        };
        self.sites.iter().zip(&of_sites).all(agrees)
    }
}

impl std::fmt::Debug for Sites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sites").field("grain", &self.grain).field("sites", &self.numbers.len()).finish_non_exhaustive()
    }
}
