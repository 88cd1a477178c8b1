//! Types of settings shared by all crates. Settings are declared and validated in Python, and read as JSON in Rust.
//!
//! * [`Secret`]: a bearer key.
//! * [`seconds`]: durations, as numbers of seconds.
//! * [`defaults`], [`merge`]: default settings, which Python declares and `tools/generate_defaults.py` writes to files, and
//!   the merging of other settings into them.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use subtle::ConstantTimeEq as _;

/// Parses a generated file of default settings, for programs and tests in Rust.
///
/// # Panics
///
/// Panics if the file does not match `T`. The file is compiled into the program and read by tests, so a mismatch is
/// found before release.
#[must_use]
#[expect(clippy::panic, reason = "the file is part of the program, and tests read it")]
pub fn defaults<T: DeserializeOwned>(file: &str) -> T {
    serde_json::from_str(file).unwrap_or_else(|error| panic!("defaults.json: {error}"))
}

/// Merges the settings `from` into `into`: objects are merged key by key, and any other value replaces the old one.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(old) => merge(old, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// Maximum size of a file that contains a key, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Maximum length of a key, in bytes. Keys are sent in an HTTP header, whose size servers limit.
pub const MAX_KEY: usize = 8 << 10;

/// Permission bits of a key file that give access beyond reading and writing by the owner and reading by the group.
#[cfg(unix)]
const EXPOSED: u32 = 0o027;

/// Bearer key, which is sent in the `Authorization` header of HTTP requests. Debug output does not show it.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Secret(String);

impl TryFrom<String> for Secret {
    type Error = String;

    fn try_from(key: String) -> Result<Self, String> {
        if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wanted = "visible ASCII characters without white space";
            return Err(format!("it must be one key of {wanted}, {MAX_KEY} bytes at most"));
        }
        Ok(Self(key))
    }
}

impl Secret {
    /// Reads a key from a file, without surrounding white space.
    ///
    /// # Errors
    /// A description of the fault, which does not contain the key.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |why: &dyn fmt::Display| format!("cannot read the key in {}: {why}", path.display());
        let about = std::fs::metadata(path).map_err(|error| failed(&error))?;
        if about.len() > MAX_FILE {
            return Err(failed(&"the file is too large for one"));
        }
        warn_if_exposed(path, &about);
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        Self::try_from(text.trim().to_owned()).map_err(|why| failed(&why))
    }

    /// Returns the text of the key, to be sent in a request.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// True if `shown` equals the key. The duration of the comparison does not depend on the position of the first
    /// difference, so that the key cannot be guessed by measuring time.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }

    /// True if a text contains the key, except as a part of a longer word.
    ///
    /// Candidate positions are found by the first and last byte of the key. The duration of comparing the other bytes
    /// does not depend on the key.
    #[must_use]
    pub fn is_in(&self, text: &[u8]) -> bool {
        let key = self.0.as_bytes();
        let (Some(first), Some(last)) = (key.first(), key.last()) else { return false };
        let is_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let (starts, ends) = (is_word(Some(first)), is_word(Some(last)));
        let is_apart = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| text.get(before));
            let goes_on = (starts && is_word(before)) || (ends && is_word(text.get(at + key.len())));
            !goes_on
        };
        memchr::memchr_iter(*first, text).any(|at| {
            let part = text.get(at..at + key.len());
            part.is_some_and(|part| part.last() == Some(last) && is_apart(at) && self.is(part))
        })
    }
}

/// Logs a warning if a file can be read by users other than its owner and group, or written by users other than its
/// owner.
pub fn warn_if_others_read(path: &Path) {
    if let Ok(about) = std::fs::metadata(path) {
        warn_if_exposed(path, &about);
    }
}

#[cfg(unix)]
fn warn_if_exposed(path: &Path, about: &std::fs::Metadata) {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = about.permissions().mode() & 0o777;
    if mode & EXPOSED != 0 {
        let path = path.display();
        tracing::warn!(
            "the key in {path} is open to other users of this machine (mode {mode:04o}): chmod 600 {path}, or 640 for a \
             group"
        );
    }
}

#[cfg(not(unix))]
fn warn_if_exposed(_path: &Path, _about: &std::fs::Metadata) {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Serialization of durations as numbers of seconds, for use with `#[serde(with = "kvatlas_settings::seconds")]`.
pub mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};

    /// Reads a duration from a number of seconds.
    ///
    /// # Errors
    /// If the value is not a number, is negative, or is too large for a [`Duration`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("a duration is a number of seconds from 0 on, got {seconds}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_are_merged_and_all_else_is_replaced() {
        let mut settings = json!({ "a": { "b": 1, "c": [1, 2] }, "d": null });
        merge(&mut settings, json!({ "a": { "c": [3], "e": 4 }, "d": { "f": 5 } }));
        assert_eq!(settings, json!({ "a": { "b": 1, "c": [3], "e": 4 }, "d": { "f": 5 } }));
    }

    #[test]
    fn is_not_shown() {
        let secret: Secret = serde_json::from_str("\"s3cret\"").expect("a string");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "*** Some(\n    ***,\n)");
        for wrong in
            [String::new(), "a\r\nX: 1".into(), "a\0b".into(), "a b".into(), "é".into(), "k".repeat(MAX_KEY + 1)]
        {
            let error = serde_json::from_value::<Secret>(wrong.clone().into()).expect_err("no key").to_string();
            assert!(error.contains("one key of visible") && (wrong.is_empty() || !error.contains(&wrong)), "{error}");
        }
        assert!(serde_json::from_value::<Secret>("k".repeat(MAX_KEY).into()).is_ok());
        assert!(secret.is(b"s3cret") && !secret.is(b"s3cre") && !secret.is(b"S3cret") && !secret.is(b""));
    }

    #[test]
    fn texts_that_contain_one() {
        for key in ["adm1n", "YWRtMW4=", "a,b", "a;b", "a:b", "\"q\"", "=a=", "/a+b/", "-----"] {
            let secret = Secret(key.to_owned());
            for (before, behind) in
                [("", ""), ("Bearer ", ""), ("k=", "; x=y"), ("user:", ""), ("'", "'"), ("?key=", "&a=b"), ("(", ")")]
            {
                let text = format!("{before}{key}{behind}");
                assert!(secret.is_in(text.as_bytes()), "{text}");
            }
            assert!(!secret.is_in(&key.as_bytes()[1..]) && !secret.is_in(b"") && !secret.is_in(b"Bearer x"), "{key}");
        }
        let secret = Secret("adm1n".to_owned());
        assert!(!secret.is_in(b"adm1nx") && !secret.is_in(b"xadm1n") && secret.is_in(b"adm1nx adm1n"));
    }

    #[test]
    fn files_that_hold_none() {
        let path = std::env::temp_dir().join(format!("kvatlas-settings-{}", std::process::id()));
        assert!(Secret::read(&path).is_err_and(|why| why.contains("cannot read")));
        for (text, good) in [(" s3cret\n", true), ("", false), ("\n", false), ("two s3crets", false), ("s3crét", false)]
        {
            std::fs::write(&path, text).expect("written");
            let read = Secret::read(&path);
            assert_eq!(read.is_ok(), good, "{text:?}");
            assert!(!format!("{read:?}").contains("s3cr"));
        }
        std::fs::remove_file(&path).expect("it is there");
    }
}
