//! Changes between two states.

use serde_json::{Map, Value};

/// The JSON Merge Patch (RFC 7396) that makes `old` into `new`; nothing if they are equal.
///
/// In such a patch null means that a field is gone, so states must be without nulls: [`drop_nulls`].
pub(crate) fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut changes = Map::new();
            for (name, value) in new {
                match old.get(name) {
                    Some(before) if before == value => {}
                    Some(before) => {
                        if let Some(change) = difference(before, value) {
                            changes.insert(name.clone(), change);
                        }
                    }
                    None => {
                        changes.insert(name.clone(), value.clone());
                    }
                }
            }
            let gone = old.keys().filter(|name| !new.contains_key(*name));
            changes.extend(gone.map(|name| (name.clone(), Value::Null)));
            (!changes.is_empty()).then_some(Value::Object(changes))
        }
        _ => (old != new).then(|| new.clone()),
    }
}

/// Takes fields away that are null, at every depth of objects.
pub(crate) fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// As RFC 7396 has it, section 2.
    pub(crate) fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let fields = target.as_object_mut().expect("just made");
        for (name, value) in patch {
            if value.is_null() {
                fields.remove(name);
            } else {
                apply(fields.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
    }

    #[test]
    fn patches_are_as_small_as_what_changed() {
        for (old, new, patch) in [
            (json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3}), Some(json!({"b": 3}))),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}}), Some(json!({"a": {"c": null}}))),
            (json!({"a": {"b": 1}}), json!({"a": {"b": 1}}), None),
            (json!({"a": [1, 2]}), json!({"a": [1, 3]}), Some(json!({"a": [1, 3]}))),
            (json!({"a": 1}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            (json!({"a": {"b": 1}}), json!({"a": {"c": 1}}), Some(json!({"a": {"b": null, "c": 1}}))),
        ] {
            assert_eq!(difference(&old, &new), patch, "{old} {new}");
        }
    }

    #[test]
    fn nulls_are_no_fields() {
        let mut state = json!({"a": null, "b": {"c": null, "d": [null]}});
        drop_nulls(&mut state);
        assert_eq!(state, json!({"b": {"d": [null]}}));
    }

    /// A state without nulls, as random as the word says.
    fn state(word: &mut u64, depth: u32) -> Value {
        *word ^= *word << 13;
        *word ^= *word >> 7;
        *word ^= *word << 17;
        match *word % 5 {
            0..=2 if depth > 0 => {
                let names = ["a", "b", "c", "d"].iter().filter(|name| (*word >> (8 + name.as_bytes()[0] % 4)) & 1 == 1);
                let names: Vec<_> = names.collect();
                names.into_iter().map(|name| ((*name).to_owned(), state(word, depth - 1))).collect()
            }
            3 => json!([*word % 3]),
            _ => json!(*word % 4),
        }
    }

    #[test]
    fn a_patch_makes_the_old_state_into_the_new_one() {
        let mut word = 88172645463325252;
        let mut same = 0;
        for _ in 0..5_000 {
            let (mut old, new) = (state(&mut word, 4), state(&mut word, 4));
            match difference(&old, &new) {
                None => same += 1,
                Some(patch) => apply(&mut old, &patch),
            }
            assert_eq!(old, new);
        }
        assert!(same < 2_000, "the states hardly differ");
    }
}
