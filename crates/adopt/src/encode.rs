//! Input of engines' hashes: the bytes of a parent's digest, a block's tokens and what else belongs to them.
//!
//! Two encodings of vLLM's (parent, tokens, extra): Python's pickle, protocol 5, as the C pickler writes it, and
//! canonical CBOR. Where pickle depends on which Python objects are one (strings that are shared between the extra keys),
//! this writes what comes of different objects. If an engine's are not, its names are not met, and nothing is claimed.

/// The extra keys of a prompt's first block: its salt.
const SALT: &str = "cache_salt";

/// Opcodes of pickle.
mod op {
    pub(super) const PROTO: [u8; 2] = [0x80, 5];
    pub(super) const FRAME: u8 = 0x95;
    pub(super) const SHORT_BINBYTES: u8 = b'C';
    pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const MEMOIZE: u8 = 0x94;
    pub(super) const MARK: u8 = b'(';
    pub(super) const TUPLE: u8 = b't';
    pub(super) const EMPTY_TUPLE: u8 = b')';
    pub(super) const TUPLES: [u8; 3] = [0x85, 0x86, 0x87];
    pub(super) const BININT: u8 = b'J';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const BININT2: u8 = b'M';
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const NONE: u8 = b'N';
    pub(super) const STOP: u8 = b'.';
}

/// The pickle of a string.
pub(crate) fn pickled_text(text: &str) -> Vec<u8> {
    let mut out = pickle_head();
    pickle_text(text, &mut out);
    pickle_end(&mut out);
    out
}

/// The pickle of a block.
pub(crate) fn pickle_block(parent: &[u8], tokens: &[u32], salt: Option<&str>, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&pickle_head());
    out.extend_from_slice(&[op::SHORT_BINBYTES, parent.len() as u8]);
    out.extend_from_slice(parent);
    out.push(op::MEMOIZE);
    if tokens.len() > 3 {
        out.push(op::MARK);
    }
    for &token in tokens {
        match token {
            0..=0xff => out.extend_from_slice(&[op::BININT1, token as u8]),
            0x100..=0xffff => {
                out.push(op::BININT2);
                out.extend_from_slice(&(token as u16).to_le_bytes());
            }
            0x1_0000..=0x7fff_ffff => {
                out.push(op::BININT);
                out.extend_from_slice(&token.to_le_bytes());
            }
            _ => {
                out.extend_from_slice(&[op::LONG1, 5]);
                out.extend_from_slice(&token.to_le_bytes());
                out.push(0);
            }
        }
    }
    match tokens.len() {
        0 => out.push(op::EMPTY_TUPLE),
        few @ 1..=3 => out.extend_from_slice(&[op::TUPLES[few - 1], op::MEMOIZE]),
        _ => out.extend_from_slice(&[op::TUPLE, op::MEMOIZE]),
    }
    match salt {
        None => out.push(op::NONE),
        Some(salt) => {
            pickle_text(SALT, out);
            pickle_text(salt, out);
            out.extend_from_slice(&[op::TUPLES[1], op::MEMOIZE, op::TUPLES[0], op::MEMOIZE]);
        }
    }
    out.extend_from_slice(&[op::TUPLES[2], op::MEMOIZE]);
    pickle_end(out);
}

/// Head of a pickle: its protocol, and a frame whose length is filled in later.
fn pickle_head() -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&op::PROTO);
    out.push(op::FRAME);
    out.extend_from_slice(&[0; 8]);
    out
}

fn pickle_text(text: &str, out: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(len) => out.extend_from_slice(&[op::SHORT_BINUNICODE, len]),
        Err(_) => {
            out.push(op::BINUNICODE);
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
    out.push(op::MEMOIZE);
}

fn pickle_end(out: &mut Vec<u8>) {
    out.push(op::STOP);
    let frame = (out.len() - 11) as u64;
    out[3..11].copy_from_slice(&frame.to_le_bytes());
}

/// Major types of CBOR.
mod major {
    pub(super) const NUMBER: u8 = 0x00;
    pub(super) const BYTES: u8 = 0x40;
    pub(super) const TEXT: u8 = 0x60;
    pub(super) const ARRAY: u8 = 0x80;
    pub(super) const NULL: u8 = 0xf6;
}

/// The CBOR of a string.
pub(crate) fn cbor_text(text: &str, out: &mut Vec<u8>) {
    cbor_head(major::TEXT, text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// The CBOR of a block.
pub(crate) fn cbor_block(parent: &[u8], tokens: &[u32], salt: Option<&str>, out: &mut Vec<u8>) {
    out.clear();
    cbor_head(major::ARRAY, 3, out);
    cbor_head(major::BYTES, parent.len() as u64, out);
    out.extend_from_slice(parent);
    cbor_head(major::ARRAY, tokens.len() as u64, out);
    for &token in tokens {
        cbor_head(major::NUMBER, u64::from(token), out);
    }
    match salt {
        None => out.push(major::NULL),
        Some(salt) => {
            cbor_head(major::ARRAY, 1, out);
            cbor_head(major::ARRAY, 2, out);
            cbor_text(SALT, out);
            cbor_text(salt, out);
        }
    }
}

/// Writes a major type with a length or number in the fewest bytes.
fn cbor_head(major: u8, value: u64, out: &mut Vec<u8>) {
    match value {
        0..24 => out.push(major | value as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, value as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn as_python_writes_it() {
        assert_eq!(hex(&pickled_text("vllm-none-hash")), "80059512000000000000008c0e766c6c6d2d6e6f6e652d68617368942e");
        let mut out = Vec::new();
        pickle_block(&[0; 4], &[1, 2, 300, 70_000], None, &mut out);
        assert_eq!(hex(&out), "8005951a0000000000000043040000000094284b014b024d2c014a7011010074944e87942e");
        pickle_block(&[0; 4], &[0x8000_0000], Some("t"), &mut out);
        assert_eq!(
            hex(&out),
            "800595280000000000000043040000000094\
            8a0500000080008594\
            8c0a63616368655f73616c74948c01749486948594\
            87942e"
                .replace(char::is_whitespace, "")
        );
        cbor_block(&[0; 4], &[1, 2, 300], None, &mut out);
        assert_eq!(hex(&out), "83440000000083010219012cf6");
    }
}
