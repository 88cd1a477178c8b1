//! Payloads that are large and unusual: reading them takes time for each of their bytes once, not again and again. There
//! is no clock in these tests; with a second look at all bytes for each value they would not end.

use kvatlas_wire::{Event, Reason, decode};

fn count(items: u32) -> [u8; 5] {
    let [a, b, c, d] = items.to_be_bytes();
    [0xdd, a, b, c, d]
}

/// A batch with one store in the positional form: a block of all the tokens.
fn store(tokens: u32, packed: &[u8]) -> Vec<u8> {
    let mut payload = b"\x92\x01\x91\x95\xabBlockStored\x91\x07\xc0".to_vec();
    payload.extend(count(tokens));
    payload.extend_from_slice(packed);
    payload.push(0xce);
    payload.extend(tokens.to_be_bytes());
    payload
}

fn tokens(payload: &[u8]) -> Vec<u32> {
    let mut batch = decode(payload).expect("a batch");
    assert_eq!(batch.refused, []);
    match batch.events.pop() {
        Some(Event::Stored(stored)) => stored.tokens,
        other => panic!("{other:?}"),
    }
}

#[test]
fn integers_wider_than_they_need_to_be() {
    let packed: Vec<u8> = (0..2_000_000_u64).flat_map(|id| [0xcf].into_iter().chain(id.to_be_bytes())).collect();
    assert!(tokens(&store(2_000_000, &packed)).into_iter().eq(0..2_000_000));
}

#[test]
fn wide_and_narrow_integers_in_turn() {
    let mut packed = Vec::new();
    for id in 0..2_000_000_u32 {
        if id % 2 == 0 {
            packed.push(0xd3);
            packed.extend(u64::from(id).to_be_bytes());
        } else {
            packed.push(0xce);
            packed.extend(id.to_be_bytes());
        }
    }
    assert!(tokens(&store(2_000_000, &packed)).into_iter().eq(0..2_000_000));
}

#[test]
fn nothing_but_nonsense() {
    let mut payload = b"\x92\x01".to_vec();
    payload.extend(count(4_000_000));
    payload.resize(payload.len() + 4_000_000, 0xc0);
    let batch = decode(&payload).expect("a batch");
    assert!(batch.refused.len() < 100);
    assert!(batch.refused.iter().all(|it| it.reason == Reason::NotAnEvent));
    assert_eq!(batch.refused.iter().map(|it| it.events).sum::<u64>(), 4_000_000);
}
