//! Random batches, and what must hold of their payloads whole, cut, damaged and made of nonsense. `examples/fuzz_wire.rs`
//! does the same for as long as one likes.

use std::cell::RefCell;

use kvatlas_index::{BlockHash, BlockIndex, Config};
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{
    Batch, Cleared, Decoder, Error, Event, EventOf, Key, Name, Reader, Reason, Removed, RemovedOf, Stored, StoredOf,
    Tally,
};

/// Decodes as both do it: with names as they were sent, and as the index is given them, into the memory of all payloads
/// before. They must not differ in anything else.
fn decode(payload: &[u8]) -> Result<Batch, Error> {
    thread_local!(static DECODER: RefCell<Decoder> = RefCell::default());
    let sent = kvatlas_wire::decode(payload);
    DECODER.with_borrow_mut(|decoder| match (&sent, decoder.decode(payload)) {
        (Ok(sent), Ok(it)) => {
            assert_eq!((sent.timestamp.to_bits(), sent.rank), (it.timestamp.to_bits(), it.rank));
            assert_eq!(sent.refused, it.refused);
            assert_eq!(sent.events.iter().map(for_the_index).collect::<Vec<_>>(), it.events);
        }
        (Err(sent), Err(it)) => assert_eq!(*sent, it),
        (sent, it) => panic!("{sent:?} and {it:?}"),
    });
    sent
}

fn for_the_index(event: &Event) -> EventOf<BlockHash> {
    let names = |names: &[Name]| names.iter().map(Name::canonical).collect();
    match event.clone() {
        Event::Stored(it) => {
            let (block_hashes, parent) = (names(&it.block_hashes), it.parent.as_ref().map(Name::canonical));
            EventOf::from(StoredOf {
                block_hashes,
                parent,
                tokens: it.tokens,
                bigrams: it.bigrams,
                block_size: it.block_size,
                medium: it.medium,
                lora: it.lora,
                lora_id: it.lora_id,
                salt: it.salt,
                bare: it.bare,
                extra_keys: it.extra_keys,
                adapter_digest: it.adapter_digest,
                reused: it.reused,
                group: it.group,
                kind: it.kind,
                window: it.window,
                locality: it.locality,
                ownership: it.ownership,
                session_id: it.session_id,
                lookahead: it.lookahead,
            })
        }
        Event::Removed(it) => EventOf::from(RemovedOf {
            block_hashes: names(&it.block_hashes),
            medium: it.medium,
            group: it.group,
            locality: it.locality,
            ownership: it.ownership,
        }),
        Event::Cleared(it) => EventOf::Cleared(it),
    }
}

/// Random numbers and what batches are made of.
pub(crate) struct Random(kvatlas_testing::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(kvatlas_testing::Random(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// Numbers of all widths.
    fn wide(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        self.next().checked_shr(64 - bits).unwrap_or(0)
    }

    fn text(&mut self) -> Box<str> {
        let letters = ["a", "b", "tenant-", "é", "x", "0"];
        let length = if self.chance(20) { 300 } else { 1 + self.below(4) };
        (0..length).map(|_| letters[self.below(letters.len())]).collect::<String>().into()
    }

    fn name(&mut self) -> Name {
        match self.below(4) {
            0 => Name::from(self.wide().cast_signed()),
            1 => Name::from(self.next().to_be_bytes().repeat(1 + self.below(4)).as_slice()),
            _ => Name::from(self.wide()),
        }
    }
}

const BLOCK: u32 = 4;

/// A batch that a dialect can say all of.
pub(crate) fn batch(random: &mut Random, dialect: Dialect) -> Batch {
    let events = (0..random.below(20)).map(|_| event(random, dialect)).collect();
    let rank = (!random.chance(8)).then(|| random.wide() as u32);
    Batch { timestamp: random.wide() as f64 / 8.0, rank, events, refused: Vec::new() }
}

fn event(random: &mut Random, dialect: Dialect) -> Event {
    let vllm = matches!(dialect, Dialect::Vllm | Dialect::VllmArrays);
    match random.below(8) {
        0 => Event::Cleared(Cleared),
        1..=3 => Event::Removed(Removed {
            block_hashes: (0..random.below(20)).map(|_| random.name()).collect(),
            medium: Some(medium(random).into()),
            group: (vllm && random.chance(2)).then(|| random.below(3) as u32),
            locality: (dialect == Dialect::Vllm && random.chance(6)).then(|| "REMOTE".into()),
            ownership: (dialect == Dialect::Vllm && random.chance(6)).then(|| random.text()),
        }),
        _ => stored(random, dialect).into(),
    }
}

fn medium(random: &mut Random) -> &'static str {
    ["GPU", "GPU", "GPU", "CPU", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL", "LocalCPUBackend", "?"][random.below(10)]
}

fn stored(random: &mut Random, dialect: Dialect) -> Stored {
    let vllm = matches!(dialect, Dialect::Vllm | Dialect::VllmArrays);
    let map = dialect == Dialect::Vllm;
    let most = if random.chance(10) { 40 } else { 5 };
    let blocks = random.below(most);
    let tokens = if random.chance(10) { random.below(30) } else { blocks * BLOCK as usize };
    let width = 1 + random.below(32) as u32;
    let ids =
        |random: &mut Random| -> Vec<u32> { (0..tokens).map(|_| (random.next() as u32) >> (32 - width)).collect() };
    let lora = random.chance(3).then(|| random.text());
    let parent = random.chance(2).then(|| random.name());
    let shown = !vllm || (parent.is_none() && blocks > 0);
    let mut stored = Stored {
        block_hashes: (0..blocks).map(|_| random.name()).collect(),
        parent,
        tokens: ids(random),
        bigrams: (tokens > 0 && random.chance(6)).then(|| ids(random)),
        block_size: if random.chance(10) { random.wide() as u32 } else { BLOCK },
        medium: Some(medium(random).into()),
        lora_id: random.chance(4).then(|| random.wide().cast_signed()),
        salt: (shown && random.chance(3)).then(|| random.text()),
        extra_keys: if vllm { extra_keys(random, blocks) } else { Vec::new() },
        adapter_digest: None,
        reused: map && random.chance(6),
        group: (vllm && random.chance(2)).then(|| random.below(3) as u32),
        kind: (vllm && random.chance(2)).then(|| ["full_attention", "mamba", "new"][random.below(3)].into()),
        window: (vllm && random.chance(6)).then(|| random.wide()),
        locality: (map && random.chance(6)).then(|| "LOCAL".into()),
        ownership: (map && random.chance(6)).then(|| random.text()),
        session_id: (dialect != Dialect::VllmArrays && random.chance(3)).then(|| random.text()),
        lookahead: (map && random.chance(6)).then(|| (0..blocks).map(|_| vec![random.next() as u32]).collect()),
        lora,
        bare: false,
    };
    // Their map comes only when there is something in it.
    let in_map = [&stored.salt, &stored.session_id, &stored.lora];
    stored.bare = dialect == Dialect::SglangArrays && in_map.iter().all(|it| it.is_none());
    stored
}

fn extra_keys(random: &mut Random, blocks: usize) -> Vec<(u32, Key)> {
    let mut keys = Vec::new();
    for block in 0..blocks as u32 {
        while random.chance(4) {
            keys.push((block, Key::Item { identifier: random.text(), offset: random.wide().cast_signed() }));
        }
        match random.below(16) {
            0 => keys.push((block, Key::Embeds(random.next().to_be_bytes()[..].into()))),
            1 => keys.push((block, Key::Other([0x94, 1, 2, 3, 0xc0][..].into()))),
            // A string in the first block would be its salt.
            2 if block > 0 => keys.push((block, Key::Text("no LoRA name and no salt".into()))),
            _ => {}
        }
    }
    keys
}

/// Checks what must hold of one random batch. An error says what did not.
pub(crate) fn check(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let dialect = Dialect::ALL[random.below(4)];
    let batch = batch(&mut random, dialect);
    let payload = encode(&batch, dialect);
    if decode(&payload).as_ref() != Ok(&batch) {
        return Err(format!("{dialect:?}: {batch:?} became {:?}", decode(&payload)));
    }
    let ends = ends(&batch, dialect);
    cut(&mut random, &payload, &batch, &ends)?;
    replaced(&mut random, &payload, &batch, &ends)?;
    for _ in 0..8 {
        damaged(&mut random, &payload, &batch, &ends, dialect)?;
    }
    let nonsense: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
    use_all(&nonsense, dialect);
    let begun = [b"\x93\x01\xdd".as_slice(), &nonsense].concat();
    use_all(&begun, dialect);
    Ok(())
}

/// Returns where the first event begins and each ends.
fn ends(batch: &Batch, dialect: Dialect) -> Vec<usize> {
    let length = |events: &[Event]| {
        let alone = Batch { events: events.to_vec(), rank: None, ..Batch::default() };
        encode(&alone, dialect).len()
    };
    let header = if batch.events.len() > 15 { 13 } else { 11 };
    let mut ends = vec![header];
    for event in &batch.events {
        let last = ends[ends.len() - 1];
        ends.push(last + length(std::slice::from_ref(event)) - length(&[]));
    }
    ends
}

/// A cut payload has the events before the cut, and counts those after it.
fn cut(random: &mut Random, payload: &[u8], batch: &Batch, ends: &[usize]) -> Result<(), String> {
    let at = random.below(payload.len());
    let Ok(got) = decode(&payload[..at]) else {
        return if at < ends[0] { Ok(()) } else { Err(format!("cut at {at}: an error")) };
    };
    let whole = ends.iter().filter(|&&end| end <= at).count() - 1;
    let lost: u64 = got.refused.iter().map(|it| it.events).sum();
    if got.events[..] != batch.events[..whole] || got.refused.iter().any(|it| it.reason != Reason::Truncated) {
        return Err(format!("cut at {at}: kept {} of {whole} events: {:?}", got.events.len(), got.refused));
    }
    let most = (batch.events.len() - whole).max(1) as u64;
    if lost == 0 || lost > most { Err(format!("cut at {at}: {lost} events lost of {most}")) } else { Ok(()) }
}

/// A value that is no event in the place of one costs that one.
fn replaced(random: &mut Random, payload: &[u8], batch: &Batch, ends: &[usize]) -> Result<(), String> {
    const WRONG: [(&[u8], Reason); 9] = [
        (b"\xc0", Reason::NotAnEvent),
        (b"\x90", Reason::NotAnEvent),
        (b"\x80", Reason::NotAnEvent),
        (b"\x92\x91\x91\x91\x90\x01", Reason::NotAnEvent),
        (b"\xc7\x02\x05ab", Reason::NotAnEvent),
        (b"\x81\xa4type\xa4What", Reason::UnknownEvent),
        (b"\x92\xacBlockRemoved\x01", Reason::InvalidField),
        (b"\x81\xa4type\xacBlockRemoved", Reason::MissingField),
        (b"\x95\xabBlockStored\x91\x01\xc0\x91\xa1x\x04", Reason::InvalidToken),
    ];
    if batch.events.is_empty() {
        return Ok(());
    }
    let at = random.below(batch.events.len());
    let (wrong, reason) = WRONG[random.below(WRONG.len())];
    let bytes = [&payload[..ends[at]], wrong, &payload[ends[at + 1]..]].concat();
    let Ok(got) = decode(&bytes) else { return Err(format!("{wrong:?} in the place of event {at}: an error")) };
    let rest = [&batch.events[..at], &batch.events[at + 1..]].concat();
    let told: Vec<_> = got.refused.iter().map(|it| (it.at, it.reason, it.events)).collect();
    if got.events != rest || told != [(at, reason, 1)] || got.rank != batch.rank {
        return Err(format!("{wrong:?} in the place of event {at}: {:?}", got.refused));
    }
    Ok(())
}

/// Damage from some byte on leaves the events before it as they are.
fn damaged(random: &mut Random, payload: &[u8], batch: &Batch, ends: &[usize], dialect: Dialect) -> Result<(), String> {
    let mut bytes = payload.to_vec();
    let at = random.below(bytes.len());
    match random.below(5) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = [0xc1, 0xdd, 0xdf, 0xc6, 0xc9, 0xff, 0x00, 0x90][random.below(8)],
        2 => bytes.insert(at, random.next() as u8),
        3 => drop(bytes.remove(at)),
        _ => {
            let from = random.below(bytes.len());
            let piece = bytes[from..bytes.len().min(from + 1 + random.below(40))].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    use_all(&bytes, dialect);
    if at < ends[0] {
        return Ok(());
    }
    let Ok(got) = decode(&bytes) else { return Err(format!("damaged at {at}: an error")) };
    let whole = ends.iter().filter(|&&end| end <= at).count() - 1;
    if got.events.len() < whole || got.events[..whole] != batch.events[..whole] {
        return Err(format!("damaged at {at}: lost events before it: {:?}", got.refused));
    }
    let counted = got.events.len() as u64 + got.refused.iter().map(|it| it.events).sum::<u64>();
    if counted > batch.events.len() as u64 + 1 || got.refused.len() > 64 {
        return Err(format!("damaged at {at}: {counted} events of {}", batch.events.len()));
    }
    Ok(())
}

/// Whatever the bytes, they go through everything without a panic.
fn use_all(bytes: &[u8], dialect: Dialect) {
    let Ok(batch) = decode(bytes) else { return };
    let _ = encode(&batch, dialect);
    let Ok(index) = BlockIndex::new(Config { block_size: BLOCK, ..Config::default() }) else { return };
    let (mut reader, mut tally) = (Reader::new(BLOCK), Tally::default());
    reader.apply(&batch, &index, "w", 0, &mut tally);
    reader.apply(&batch, &index, "w", 0, &mut tally);
    let all = batch.events.len() as u64 + batch.refused.iter().map(|it| it.events).sum::<u64>();
    assert_eq!(tally.events + tally.refused_total(), 2 * all);
}

#[test]
fn random_batches_whole_and_damaged() {
    for seed in 0..kvatlas_testing::seeds(4_000) {
        if let Err(what) = check(seed) {
            panic!("seed {seed}: {what}");
        }
    }
}
