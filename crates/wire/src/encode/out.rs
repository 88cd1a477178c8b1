//! MessagePack written.

use crate::name::Name;

/// MessagePack as it is written, each value in its shortest form.
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
}

impl Out {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        match value {
            0..=0x7f => self.byte(value as u8),
            0x80..=0xff => self.raw(&[0xcc, value as u8]),
            0x100..=0xffff => {
                self.byte(0xcd);
                self.raw(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.byte(0xce);
                self.raw(&(value as u32).to_be_bytes());
            }
            _ => {
                self.byte(0xcf);
                self.raw(&value.to_be_bytes());
            }
        }
    }

    pub(crate) fn integer(&mut self, value: i64) {
        match value {
            0.. => self.unsigned(value.cast_unsigned()),
            -0x20..=-1 => self.raw(&(value as i8).to_be_bytes()),
            -0x80..=-0x21 => {
                self.byte(0xd0);
                self.raw(&(value as i8).to_be_bytes());
            }
            -0x8000..=-0x81 => {
                self.byte(0xd1);
                self.raw(&(value as i16).to_be_bytes());
            }
            -0x8000_0000..=-0x8001 => {
                self.byte(0xd2);
                self.raw(&(value as i32).to_be_bytes());
            }
            _ => {
                self.byte(0xd3);
                self.raw(&value.to_be_bytes());
            }
        }
    }

    /// A header with a length: what one nibble can say, and the codes for 8 (0 if there is none), 16 and 32 bits.
    fn header(&mut self, length: usize, nibble: Option<(u8, usize)>, [byte, short, long]: [u8; 3]) {
        match length {
            _ if nibble.is_some_and(|(_, most)| length <= most) => {
                self.byte(nibble.map_or(0, |(code, _)| code) | length as u8);
            }
            0..=0xff if byte != 0 => self.raw(&[byte, length as u8]),
            0..=0xffff => {
                self.byte(short);
                self.raw(&(length as u16).to_be_bytes());
            }
            _ => {
                self.byte(long);
                self.raw(&(length as u32).to_be_bytes());
            }
        }
    }

    pub(crate) fn array(&mut self, items: usize) {
        self.header(items, Some((0x90, 15)), [0, 0xdc, 0xdd]);
    }

    pub(crate) fn map(&mut self, entries: usize) {
        self.header(entries, Some((0x80, 15)), [0, 0xde, 0xdf]);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.header(text.len(), Some((0xa0, 31)), [0xd9, 0xda, 0xdb]);
        self.raw(text.as_bytes());
    }

    pub(crate) fn bin(&mut self, bytes: &[u8]) {
        self.header(bytes.len(), None, [0xc4, 0xc5, 0xc6]);
        self.raw(bytes);
    }

    pub(crate) fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.unsigned(token.into());
        }
    }

    pub(crate) fn name(&mut self, name: &Name) {
        match name {
            Name::Unsigned(name) => self.unsigned(*name),
            Name::Signed(name) => self.integer(*name),
            Name::Bytes(name) => self.bin(name),
        }
    }

    pub(crate) fn names(&mut self, names: &[Name]) {
        self.array(names.len());
        names.iter().for_each(|name| self.name(name));
    }

    pub(crate) fn optional_name(&mut self, name: Option<&Name>) {
        match name {
            Some(name) => self.name(name),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn optional_integer(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.integer(value),
            None => self.byte(0xc0),
        }
    }

    pub(crate) fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    pub(crate) fn some<T>(&mut self, key: &str, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        if let Some(value) = value {
            self.entry(key, |out| write(out, value));
        }
    }
}
