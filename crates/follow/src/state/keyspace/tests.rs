//! Tests of the trust in streams while queries read the index of a keyspace (model and routing group).

use super::*;

fn set(keyspace: &Keyspace, untrusted: &[u32]) {
    for (rank, stream) in keyspace.streams_of("w") {
        keyspace.set_trusted(&stream, &keyspace.index(), !untrusted.contains(&rank));
    }
}

/// Returns the untrusted ranks that each call inside `Keyspace::steady` was given, if the set of untrusted ranks
/// changes from `before` to the elements of `meanwhile` during the calls.
fn told(before: &[u32], meanwhile: &[&[u32]]) -> Vec<Vec<u32>> {
    let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
    for rank in 0..9 {
        assert!(keyspace.add(&Stream::for_test("w", rank)).is_ok());
    }
    set(&keyspace, before);
    let mut told = Vec::new();
    keyspace.steady(|untrusted| {
        told.push((0..9).filter(|rank| untrusted.contains("w", *rank)).collect());
        if told.len() == 1 {
            meanwhile.iter().for_each(|ranks| set(&keyspace, ranks));
        }
    });
    told
}

#[test]
fn who_loses_trust_while_somebody_looks_is_not_trusted_in_the_answer() {
    assert_eq!(told(&[1], &[]), [[1]]);
    assert_eq!(told(&[1], &[&[1, 2]]), [vec![1], vec![1, 2]]);
    // Cleared, read anew, trusted again: what was found may be of the time between.
    assert_eq!(told(&[], &[&[2], &[]]), vec![Vec::<u32>::new(); 2]);
    // Who gains it is left out of this answer still.
    assert_eq!(told(&[1, 2], &[&[2]]), [[1, 2]]);
}

#[test]
fn an_answer_comes_in_the_end() {
    let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
    let mut calls = 0;
    keyspace.steady(|_| {
        calls += 1;
        if (calls as usize) < TRIES {
            assert!(keyspace.add(&Stream::for_test("w", calls)).is_ok());
        }
    });
    assert_eq!(calls as usize, TRIES);
}

#[test]
fn the_last_look_is_as_sure_as_any() {
    let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
    assert!(keyspace.add(&Stream::for_test("w", 0)).is_ok());
    set(&keyspace, &[]);
    let mut calls = 0;
    let found = keyspace.steady(|untrusted| {
        calls += 1;
        let (keyspace, cleared) = (keyspace.clone(), Arc::new(AtomicU64::new(0)));
        let seen = cleared.clone();
        let change = std::thread::spawn(move || {
            set(&keyspace, &[0]);
            cleared.store(1, Release);
            set(&keyspace, &[]);
        });
        if calls < TRIES {
            change.join().expect("it changes the list");
        } else {
            // Nothing may change during the last look: it waits.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        (untrusted.contains("w", 0), seen.load(Acquire) == 1)
    });
    assert_eq!(calls, TRIES);
    assert_eq!(found, (false, false), "trusted, and nothing was cleared");
}

#[test]
fn who_comes_while_somebody_looks_is_not_trusted_in_the_answer() {
    let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
    let mut told = Vec::new();
    keyspace.steady(|untrusted| {
        told.push(untrusted.contains("new", 0));
        if told.len() == 1 {
            assert!(keyspace.add(&Stream::for_test("new", 0)).is_ok());
        }
    });
    assert_eq!(told, [false, true]);
}

#[test]
fn a_rank_that_is_claimed_has_the_trust_of_its_stream() {
    let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
    let streams = [Stream::for_test("w", 0), Stream::for_test("w", 1)];
    for stream in &streams {
        assert!(keyspace.add(stream).is_ok());
    }
    set(&keyspace, &[1]);
    assert_eq!((keyspace.claim(&streams[1], 5), keyspace.claim(&streams[0], 5)), (5, 0));
    let untrusted = |rank| keyspace.steady(|untrusted| untrusted.contains("w", rank));
    assert_eq!([0, 1, 5].map(untrusted), [false, true, true]);
    assert!(keyspace.add(&Stream::for_test("w", 5)).is_err());
}

#[test]
fn a_change_of_trust_touches_one_stream() {
    let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
    for worker in 0..100 {
        assert!(keyspace.add(&Stream::for_test(&worker.to_string(), 0)).is_ok());
    }
    let members = keyspace.members.load_full();
    for (at, stream) in members.all().iter().enumerate() {
        for trusted in [true, false, true] {
            keyspace.set_trusted(stream, &keyspace.index(), trusted);
        }
        assert_eq!(keyspace.steady(|untrusted| untrusted.streams().count()), 99 - at);
    }
    assert!(Arc::ptr_eq(&members, &keyspace.members.load()), "nothing is made anew for it");
}
