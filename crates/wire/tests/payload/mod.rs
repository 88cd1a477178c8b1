//! Payloads written down as JSON and packed by another encoder than ours.

#![allow(dead_code, reason = "not every test needs all of this")]

use rmpv::Value;

/// The MessagePack of a JSON value. A string `bin:…` becomes the bytes that its hexadecimal digits say.
pub(crate) fn pack(json: &serde_json::Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &value(json)).expect("a Vec takes everything");
    bytes
}

/// A batch of these events, of time 1.5 and rank 0.
pub(crate) fn batch(events: &serde_json::Value) -> Vec<u8> {
    pack(&serde_json::json!([1.5, events, 0]))
}

/// Bytes from hexadecimal digits and blanks.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Bool(flag) => Value::Boolean(*flag),
        serde_json::Value::Number(number) => {
            let integer = number.as_u64().map(Value::from).or_else(|| number.as_i64().map(Value::from));
            integer.unwrap_or_else(|| Value::F64(number.as_f64().expect("a number")))
        }
        serde_json::Value::String(text) => match text.strip_prefix("bin:") {
            Some(digits) => Value::Binary(hex(digits)),
            None => Value::from(text.as_str()),
        },
        serde_json::Value::Array(items) => Value::Array(items.iter().map(value).collect()),
        serde_json::Value::Object(entries) => {
            Value::Map(entries.iter().map(|(key, item)| (Value::from(key.as_str()), value(item))).collect())
        }
    }
}
