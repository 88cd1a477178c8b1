//! The rungs of the ladder against the reference, on random streams of the kinds that each promises to get right.

mod actor;
mod block_index;
mod check;
mod grouped;
mod inverted;
mod nested;
mod open;
mod pool;
mod positional;
mod radix;
mod streams;
