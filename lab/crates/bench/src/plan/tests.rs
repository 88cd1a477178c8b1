use std::path::PathBuf;

use super::*;
use crate::error::Error;
use crate::testing::{Mix, plan};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("kvatlas-plan-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_plan_comes_back_as_it_was() {
    let first = Scratch::new("first");
    let second = Scratch::new("second");
    let made = plan(1, Mix::default());
    made.save(&first.0).unwrap();
    let loaded = Plan::load(&first.0).unwrap();
    assert_eq!((loaded.columns(), loaded.facts()), (made.columns(), made.facts()));
    assert_eq!(loaded.digest(), made.digest());
    loaded.save(&second.0).unwrap();
    assert_eq!(std::fs::read(&first.0).unwrap(), std::fs::read(&second.0).unwrap());
    assert_eq!(plan(1, Mix::default()).digest(), made.digest());
    assert_ne!(plan(2, Mix::default()).digest(), made.digest());
    let facts = made.facts();
    assert!(facts.clears > 0 && facts.removes > 0 && facts.stores > 0 && facts.lookups > 0);
    assert_eq!(facts.ops, facts.lookups + facts.events());
}

#[test]
fn damaged_files_are_refused() {
    let file = Scratch::new("damaged");
    plan(1, Mix { requests: 20, ..Mix::default() }).save(&file.0).unwrap();
    let whole = std::fs::read(&file.0).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&file.0, bytes).unwrap();
        match Plan::load(&file.0) {
            Err(Error::File { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    for at in (0..whole.len()).filter(|at| at < &80 || at % 61 == 0) {
        let mut altered = whole.clone();
        altered[at] ^= 0x10;
        refused(&altered);
    }
    for length in (0..whole.len()).step_by(41) {
        refused(&whole[..length]);
    }
    refused(&[&whole[..], b"more"].concat());
    let mut huge = whole.clone();
    huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refused(&huge).contains("not a complete plan"));
    let mut newer = whole;
    newer[8] = 9;
    assert!(refused(&newer).contains("version 9"));
    assert!(
        refused(b"something else, and long enough to be looked at by its head and its checksum too")
            .contains("not a plan")
    );
    assert!(matches!(Plan::load(&file.0.with_extension("absent")), Err(Error::Io { .. })));
    assert!(matches!(plan(1, Mix::default()).save(&file.0.join("under a file")), Err(Error::Io { .. })));
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let good = || plan(1, Mix { requests: 20, ..Mix::default() }).columns().clone();
    let store = good().kinds.iter().position(|&kind| kind == 1).unwrap();
    let clear = Columns {
        worker_count: 1,
        block_size: 1,
        meta: "{}".to_owned(),
        times: vec![0],
        kinds: vec![4],
        workers: vec![0],
        starts: vec![0],
        lengths: vec![0],
        parents: vec![0],
        ..Columns::default()
    };
    assert!(Plan::new(clear.clone()).is_ok());
    let refused = |columns: Columns, words: &[&str]| match Plan::new(columns) {
        Err(Error::Plan(what)) => assert!(words.iter().all(|word| what.contains(word)), "{what}"),
        other => panic!("{other:?}"),
    };
    let edited = |edit: &dyn Fn(&mut Columns)| {
        let mut columns = good();
        edit(&mut columns);
        columns
    };
    refused(edited(&|c| c.kinds.truncate(3)), &["kinds", "got 3"]);
    refused(edited(&|c| c.parents.push(0)), &["parents"]);
    refused(edited(&|c| c.names.push(0)), &["names must be as long as contents"]);
    refused(edited(&|c| c.times[5] = u64::MAX), &["operation 6", "times must never fall"]);
    refused(edited(&|c| c.kinds[7] = 5), &["operation 7", "kinds", "got 5"]);
    refused(edited(&|c| c.workers[7] = 5), &["operation 7", "workers", "got 5"]);
    refused(edited(&|c| c.starts[store] = u64::MAX), &[&format!("operation {store}"), "starts and lengths"]);
    refused(edited(&|c| c.lengths[store] = 0), &["lengths must be at least 1"]);
    refused(edited(&|c| c.parents[store] = 9), &["parents must be 0"]);
    refused(edited(&|c| c.block_size = 0), &["block_size"]);
    refused(edited(&|c| c.meta = "[1]".to_owned()), &["meta"]);
    refused(edited(&|c| c.meta = "{".to_owned()), &["meta"]);
    refused(Columns { lengths: vec![1], ..clear }, &["no blocks"]);
}
