//! A JSON writer: a general serialiser would be too slow for the rate of queries.

use kvatlas_follow::report::is_number;

/// A buffer of JSON text.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn raw(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Appends finished JSON.
    pub(crate) fn bytes(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    pub(crate) fn number(&mut self, number: impl itoa::Integer) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends a string with its quotes.
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

    /// Appends a worker's name: as a number if it looks like one.
    pub(crate) fn id(&mut self, name: &str) {
        if is_number(name) { self.raw(name) } else { self.string(name) }
    }

    /// Appends items separated by commas.
    pub(crate) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        for (at, value) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            item(self, value);
        }
    }

    /// Appends a number as a key, with its colon.
    pub(crate) fn key(&mut self, number: u32) {
        self.0.push(b'"');
        self.number(number);
        self.raw("\":");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        for text in ["a", "a b!", "a\"b", "a\\b", "déjà", "\n\u{1}", "", "</script>", "\u{7f}"] {
            let mut out = Writer::with_capacity(0);
            out.string(text);
            assert_eq!(serde_json::from_slice::<String>(&out.finish()).expect("JSON"), text);
        }
    }
}
