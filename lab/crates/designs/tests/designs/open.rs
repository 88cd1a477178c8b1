//! Tests of the registry of index designs: every name creates the design that it describes.

use kvatlas_designs::{Deviation, Options, RUNGS, Scores, open};

use crate::check::{EXACT, Promise, check_feed, check_under_load, store};
use crate::streams::{Family, Names, stream, streams_named};

fn small(strict: bool) -> Options {
    Options { event_threads: 2, jump_size: 4, shards: 2, group_size: 3, strict }
}

#[test]
fn every_rung_gets_well_behaved_streams_right() {
    let promise = Promise { tidy: false, ..EXACT };
    for rung in RUNGS {
        let make = || open(rung.name, &small(false)).unwrap();
        check_feed(make, promise, streams_named(Family::WELL_BEHAVED, Names::Prefix, 0..6));
        check_under_load(&*make(), &stream(Family::WELL_BEHAVED, Names::Prefix, 1, 300), 2, false);
    }
}

/// Family of the streams on which a design without the given known errors is exact.
fn family(deviations: &[Deviation]) -> Family {
    let right = |deviation| !deviations.contains(&deviation);
    Family {
        conflation: right(Deviation::Conflation),
        holes: right(Deviation::Holes),
        orphans: right(Deviation::Orphans),
        replaced: right(Deviation::Renames),
        aliases: right(Deviation::Aliases),
        ..Family::ANYTHING
    }
}

#[test]
fn every_rung_gets_right_what_is_not_among_its_deviations() {
    let promise = Promise { tidy: false, ..EXACT };
    for rung in RUNGS {
        let right = family(rung.deviations);
        check_feed(|| open(rung.name, &small(false)).unwrap(), promise, streams_named(right, Names::Alike, 0..6));
        let name = format!("{}-strict", rung.name);
        let Some(deviations) = rung.strict else {
            for error in [open(rung.name, &small(true)), open(&name, &small(false))] {
                assert_eq!(error.err().unwrap().code(), "never_strict", "{name}");
            }
            continue;
        };
        let right = family(deviations);
        check_feed(|| open(&name, &small(false)).unwrap(), promise, streams_named(right, Names::Alike, 0..6));
        check_feed(|| open(rung.name, &small(true)).unwrap(), promise, streams_named(right, Names::Own, 0..6));
    }
}

#[test]
fn answers_give_the_greatest_depth() {
    for rung in RUNGS {
        let feed = open(rung.name, &Options::default()).unwrap();
        feed.send(store(3, None, &[(1, 1)]));
        feed.flush();
        assert_eq!(feed.answer(&[1], &mut Scores::new()), 1, "{}", rung.name);
        assert_eq!(feed.answer(&[2], &mut Scores::new()), 0, "{}", rung.name);
    }
}

#[test]
fn what_cannot_be_opened_is_refused_in_words() {
    let refused = |name: &str, options: Options| {
        let error = open(name, &options).err().unwrap();
        (error.code(), error.to_string())
    };
    let (code, words) = refused("ladder", Options::default());
    assert_eq!(code, "unknown_rung");
    assert!(words.contains("\"ladder\"") && words.contains("dict-actor"), "{words}");
    assert_eq!(refused("dict-strict-strict", Options::default()).0, "unknown_rung");
    for (options, option) in [
        (Options { event_threads: 0, ..Options::default() }, "event_threads"),
        (Options { event_threads: 1025, ..Options::default() }, "event_threads"),
        (Options { jump_size: 0, ..Options::default() }, "jump_size"),
        (Options { shards: 0, ..Options::default() }, "shards"),
        (Options { group_size: 0, ..Options::default() }, "group_size"),
    ] {
        let (code, words) = refused("block-index", options);
        assert_eq!(code, "out_of_range");
        assert!(words.starts_with(option), "{words}");
    }
}
