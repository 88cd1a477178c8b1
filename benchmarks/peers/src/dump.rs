//! The stream of a workload as JSON lines, for measurements in other languages.
//!
//! `{"find": [contents]}`, `{"store": engine, "parent": name or null, "names": [...], "contents": [...]}`,
//! `{"remove": engine, "names": [...]}`, in the order in which a router would see them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use crate::workload::{PlainEvent, Workload};

pub fn dump(w: &Workload, path: &Path) -> Result<(), String> {
    let mut spelled = PlainEvent::default();
    let mut contents = Vec::new();
    let mut write = || -> std::io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        for number in 0..w.first_lap {
            w.query(number, &mut contents);
            writeln!(out, "{}", json!({ "find": contents }))?;
            for event in w.events_of(number) {
                w.spell(event, &mut spelled);
                let line = if spelled.store {
                    json!({ "store": spelled.engine, "parent": spelled.parent, "names": spelled.names, "contents": spelled.contents })
                } else {
                    json!({ "remove": spelled.engine, "names": spelled.names })
                };
                writeln!(out, "{line}")?;
            }
        }
        out.flush()
    };
    write().map_err(|e| format!("{}: {e}", path.display()))
}
