//! The workloads.

/// The shape of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub name: &'static str,
    pub engines: u32,
    /// Engines that run each request.
    pub copies: u32,
    /// Blocks of an engine in a trace block of 512 tokens.
    pub per_id: u8,
    /// Blocks an engine can hold.
    pub capacity: u32,
    /// True if every engine names its blocks in its own way.
    pub own_names: bool,
    /// Number of the trace's first requests that are used, to bound the time or to end with caches that are just full.
    pub limit: usize,
    pub about: &'static str,
}

const ALL: usize = usize::MAX;

pub const SPECS: [Spec; 6] = [
    Spec {
        name: "W1",
        engines: 32,
        copies: 1,
        per_id: 1,
        capacity: 16_384,
        own_names: false,
        limit: ALL,
        about: "32 engines x 16,384 blocks of 512 (nothing is evicted)",
    },
    Spec {
        name: "W2",
        engines: 32,
        copies: 1,
        per_id: 32,
        capacity: 16_384,
        own_names: false,
        limit: ALL,
        about: "32 engines x 16,384 blocks of 16",
    },
    Spec {
        name: "W3",
        engines: 32,
        copies: 1,
        per_id: 32,
        capacity: 65_536,
        own_names: false,
        limit: 4_000,
        about: "32 engines x 65,536 blocks of 16, the first 4,000 requests",
    },
    Spec {
        name: "W4",
        engines: 1_000,
        copies: 32,
        per_id: 1,
        capacity: 4_096,
        own_names: false,
        limit: ALL,
        about: "1,000 engines x 4,096 blocks of 512, each prompt on 32",
    },
    Spec {
        name: "W4r",
        engines: 1_000,
        copies: 32,
        per_id: 1,
        capacity: 4_096,
        own_names: true,
        limit: ALL,
        about: "W4, every engine with block hashes of its own",
    },
    Spec {
        name: "W5",
        engines: 10_000,
        copies: 100,
        per_id: 1,
        capacity: 640,
        own_names: false,
        limit: 6_000,
        about: "10,000 engines x 640 blocks of 512, each prompt on 100, the first 6,000 requests",
    },
];
