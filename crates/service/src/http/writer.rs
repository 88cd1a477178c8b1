//! JSON as it is written: queries are answered too often for a general serialiser.

/// JSON as it is written.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn raw(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// JSON that is written already.
    pub(crate) fn bytes(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    pub(crate) fn number(&mut self, number: impl itoa::Integer) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// A string with its quotes.
    pub(crate) fn string(&mut self, text: &str) {
        if text.bytes().all(|byte| matches!(byte, 0x20 | 0x21 | 0x23..=0x5b | 0x5d..=0x7e)) {
            self.0.push(b'"');
            self.raw(text);
            self.0.push(b'"');
        } else {
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut self.0, text);
        }
    }

    /// A worker: a number if it looks like one.
    pub(crate) fn id(&mut self, name: &str) {
        if is_number(name) { self.raw(name) } else { self.string(name) }
    }

    /// Items with commas between.
    pub(crate) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        for (at, value) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            item(self, value);
        }
    }

    /// A number as a key, with its colon.
    pub(crate) fn key(&mut self, number: u32) {
        self.0.push(b'"');
        self.number(number);
        self.raw("\":");
    }
}

/// Whether a name is a 64-bit integer as it would be written.
pub(crate) fn is_number(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    digits && (bytes[0] != b'0' || bytes.len() == 1) && (bytes.len() < 20 || name.parse::<u64>().is_ok())
}

/// A worker's name as JSON: a number if it looks like one.
pub(crate) fn id_value(name: &str) -> serde_json::Value {
    match name.parse::<u64>() {
        Ok(number) if is_number(name) => number.into(),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_numbers() {
        for (name, number) in [
            ("0", true),
            ("7", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("99999999999999999999", false),
            ("007", false),
            ("00", false),
            ("-1", false),
            ("", false),
            ("7a", false),
            ("+7", false),
            ("123456789012345678901", false),
        ] {
            assert_eq!(is_number(name), number, "{name}");
            assert_eq!(id_value(name).is_u64(), number, "{name}");
        }
    }

    #[test]
    fn strings_are_escaped() {
        for text in ["a", "a b!", "a\"b", "a\\b", "déjà", "\n\u{1}", "", "</script>", "\u{7f}"] {
            let mut out = Writer::with_capacity(0);
            out.string(text);
            assert_eq!(serde_json::from_slice::<String>(&out.done()).expect("JSON"), text);
        }
    }
}
