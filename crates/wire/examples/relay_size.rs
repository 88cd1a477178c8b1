//! Size of a relay's messages against the batches of an engine: one message for each batch.
//!
//! Reads batches from standard input, each after its length (32 bits, little-endian), as `benchmarks/relay/size.py`
//! writes them. `relay_size BLOCK_SIZE`

#![allow(clippy::print_stdout, reason = "a program")]

use std::io::Read as _;

use kvatlas_index::{BlockIndex, Config};
use kvatlas_wire::compact::{Frame, MessageWriter};
use kvatlas_wire::{Decoder, Reader, Tally};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let block_size: u32 = std::env::args().nth(1).ok_or("how many tokens has a block?")?.parse()?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let index = BlockIndex::new(Config { block_size, ..Config::default() })?;
    let (mut reader, mut decoder, mut tally) =
        (Reader::new(block_size).recording(), Decoder::default(), Tally::default());
    let writer = MessageWriter { life: 1_795_000_000_000 << 20, block_size, key: 0 };
    let (mut rest, mut id, mut plain, mut changed, mut messages) = (&input[..], 0, 0, 0, 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        rest = after;
        plain += payload.len();
        reader.apply(decoder.decode(payload)?, &index, "w", 0, &mut tally);
        let changes = reader.recorder().map(|recorder| recorder.take()).unwrap_or_default();
        if changes.is_empty() {
            continue;
        }
        let mut message = writer.begin(id, 1.795e9, changes.len());
        MessageWriter::put(&mut message, Frame::Batch { rank: 0, changes: &changes });
        (id, changed, messages) = (id + 1, changed + changes.len(), messages + message.len());
    }
    println!(
        "{{\"batches\": {id}, \"stored\": {}, \"removed\": {}, \"engine\": {plain}, \"changes\": {changed}, \
         \"messages\": {messages}}}",
        tally.stored_blocks, tally.removed_blocks
    );
    Ok(())
}
