//! Values and times written as Python writes them, since chat templates are written for Jinja in Python.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::{Error, Zoned};
use minijinja::Value;
use minijinja::value::ValueKind;

use crate::allowance::take;

/// Maximum length of the text written for a Python value, in bytes; the rest of the text is dropped.
const LONGEST: usize = 8 << 20;

/// Returns the text of a template's value as Python's `str(value)` does.
pub(crate) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            repr_into(value, &mut out);
            out
        }
    }
}

/// Appends a template's value to `out` as Python's `repr(value)` writes it.
fn repr_into(value: &Value, out: &mut String) {
    if out.len() > LONGEST || take(0).is_err() {
        return;
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number_into(value, out),
        ValueKind::String => quote_into(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr_into(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr_into(&key, out);
                out.push_str(": ");
                repr_into(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Appends a string to `out` in quotes, chosen and escaped as by Python's `repr`.
fn quote_into(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => {
                out.push('\\');
                out.push(char);
            }
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(char));
            }
            _ => out.push(char),
        }
    }
    out.push(quote);
}

/// Appends an integer to `out`, or a float in the form of Python's `repr`: the fewest digits that are read back as the
/// same number.
fn number_into(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    let float = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    if !float.is_finite() {
        out.push_str(if float.is_nan() {
            "nan"
        } else if float > 0.0 {
            "inf"
        } else {
            "-inf"
        });
        return;
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    }
}

/// Options for writing JSON in the format of Python's `json.dumps`.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    /// Indentation per level of the JSON; `None` to write everything on one line.
    pub(crate) indent: Option<String>,
    /// Separator between items of JSON lists and objects.
    pub(crate) comma: String,
    /// Separator between a key of a JSON object and the key's value.
    pub(crate) colon: String,
    /// True if characters beyond ASCII are escaped in the JSON.
    pub(crate) ascii: bool,
    /// True if the keys of each JSON object are sorted.
    pub(crate) sort: bool,
}

impl Default for Json {
    fn default() -> Self {
        Self { indent: None, comma: ", ".into(), colon: ": ".into(), ascii: false, sort: false }
    }
}

impl Json {
    /// Text that Python's `json.dumps(value)` returns; `None` if part of the value cannot be JSON.
    pub(crate) fn dump(&self, value: &Value) -> Option<String> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Some(out)
    }

    fn write(&self, value: &Value, level: usize, out: &mut String) -> Option<()> {
        if out.len() > LONGEST || take(0).is_err() {
            return None;
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let start = out.len();
                number_into(value, out);
                let word = match &out[start..] {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    _ => return Some(()),
                };
                out.truncate(start);
                out.push_str(word);
            }
            ValueKind::String => self.quote(value.as_str()?, out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter().ok()?;
                out.push('[');
                let mut any = false;
                for item in items {
                    self.separate(any, level + 1, out);
                    any = true;
                    self.write(&item, level + 1, out)?;
                }
                self.close(any, level, out);
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter().ok()?.collect();
                if self.sort {
                    keys.sort();
                }
                out.push('{');
                for (at, key) in keys.iter().enumerate() {
                    self.separate(at > 0, level + 1, out);
                    match key.as_str() {
                        Some(key) => self.quote(key, out),
                        None => {
                            let mut text = String::new();
                            self.write(key, 0, &mut text)?;
                            self.quote(&text, out);
                        }
                    }
                    out.push_str(&self.colon);
                    self.write(&value.get_item(key).ok()?, level + 1, out)?;
                }
                self.close(!keys.is_empty(), level, out);
                out.push('}');
            }
            _ => return None,
        }
        Some(())
    }

    fn separate(&self, any: bool, level: usize, out: &mut String) {
        if any {
            out.push_str(&self.comma);
        }
        self.line(level, out);
    }

    fn close(&self, any: bool, level: usize, out: &mut String) {
        if any {
            self.line(level, out);
        }
    }

    fn line(&self, level: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(&**indent, level));
        }
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut plain = 0;
        for (at, char) in text.char_indices() {
            let escape = match char {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                '\u{0}'..='\u{1f}' => "",
                // DEL is ASCII, but not printable.
                _ if self.ascii && char > '~' => "",
                _ => continue,
            };
            out.push_str(&text[plain..at]);
            plain = at + char.len_utf8();
            if escape.is_empty() {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push_str(escape);
            }
        }
        out.push_str(&text[plain..]);
        out.push('"');
    }
}

/// Directives of `strftime` that Python leaves to the C library, and that jiff writes like the C locale, Python's
/// default.
const SHARED: &str = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%";

/// Formats a time like Python's `strftime` for a time without a time zone, as from `datetime.now()`: `%Z` and `%z` give
/// empty strings.
pub(crate) fn strftime(format: &str, now: &Zoned) -> Result<String, Error> {
    let config = Config::new().custom(PosixCustom::new());
    let mut own = String::with_capacity(format.len());
    let mut rest = format.chars().peekable();
    while let Some(char) = rest.next() {
        own.push(char);
        if char == '%' {
            own.pop();
            directive(&mut rest, now, &mut own);
        }
    }
    BrokenDownTime::from(now).to_string_with_config(&config, &own)
}

/// Writes the part of a time that a directive of `strftime` names, using the library jiff where it agrees with Python.
/// `rest`: the format after a percent sign.
fn directive(rest: &mut Peekable<Chars<'_>>, now: &Zoned, out: &mut String) {
    let mut flags = String::new();
    while let Some(flag) = rest.next_if(|char| matches!(char, '-' | '_' | '^' | '#' | ':' | '0'..='9')) {
        flags.push(flag);
    }
    let other_digits = rest.next_if(|char| matches!(char, 'E' | 'O'));
    match rest.next_if(|char| SHARED.contains(*char) || matches!(char, 'z' | 'Z' | 'f')) {
        Some('z' | 'Z') => {}
        Some('f') if flags.is_empty() && other_digits.is_none() => {
            out.push_str(&format!("{:06}", now.subsec_nanosecond() / 1_000));
        }
        // The C locale has no alternative digits or eras.
        Some(shared) if shared != 'f' && !flags.contains(':') => {
            out.push('%');
            out.push_str(&flags);
            out.push(shared);
        }
        // Unknown directives are copied.
        unknown => {
            out.push_str("%%");
            out.push_str(&flags);
            out.extend(other_digits);
            out.extend(unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn json_is_as_python_writes_it() {
        for json in [
            r#"{"a": [1, 2.5, -0.0, 1e+16, 1e-05, 123456789.125], "b": {}, "c": [], "d": null, "e": true}"#,
            r#""ä\"\\\n\u0001 😀 \b\f""#,
            r#"{"z": 1, "a": 0.0001}"#,
            "18446744073709551615",
        ] {
            assert_eq!(Json::default().dump(&parsed(json)).unwrap(), json);
        }
        let ascii = Json { ascii: true, ..Json::default() };
        assert_eq!(ascii.dump(&parsed(r#""ä😀~""#)).unwrap(), r#""\u00e4\ud83d\ude00~""#);
        assert_eq!(ascii.dump(&parsed("\"\u{7f}\"")).unwrap(), r#""\u007f""#);
        assert_eq!(Json::default().dump(&parsed("\"\u{7f}\"")).unwrap(), "\"\u{7f}\"");
        let lines = Json { indent: Some("  ".into()), comma: ",".into(), sort: true, ..Json::default() };
        let expected = "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}";
        assert_eq!(lines.dump(&parsed(r#"{"b": {}, "a": [1, 2]}"#)).unwrap(), expected);
    }

    #[test]
    fn text_is_as_python_prints_it() {
        for (json, expected) in [
            ("null", "None"),
            ("true", "True"),
            ("1.0", "1.0"),
            ("1e22", "1e+22"),
            (r#"{"a": ["b", "it's", null], "c": {"d": 1.5}}"#, r#"{'a': ['b', "it's", None], 'c': {'d': 1.5}}"#),
            (r#"["a\n\"'"]"#, r#"['a\n"\'']"#),
            (r#""plain 'text'""#, "plain 'text'"),
        ] {
            assert_eq!(text(&parsed(json)), expected);
        }
    }

    /// Checks times against texts made with Python 3.12, with `dt.datetime(2026, 3, 5, 7, 8, 9, 120)`.
    #[test]
    fn times_are_as_python_writes_them() {
        let now: jiff::civil::DateTime = "2026-03-05T07:08:09.000120".parse().unwrap();
        let now = now.in_tz("America/New_York").or_else(|_| now.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        for (format, expected) in [
            ("%d %b %Y", "05 Mar 2026"),
            ("%c", "Thu Mar  5 07:08:09 2026"),
            ("%x|%X|%r", "03/05/26|07:08:09|07:08:09 AM"),
            ("%Z|%z|%-Z|%:z|%H:%M %Z", "||||07:08 "),
            ("%f", "000120"),
            ("%a %A %b %B %h %C %D %e %F %g %G", "Thu Thursday Mar March Mar 20 03/05/26  5 2026-03-05 26 2026"),
            ("%H %I %j %k %l %m %M %p %P %R %S %T", "07 07 064  7  7 03 08 AM am 07:08 09 07:08:09"),
            ("%u %U %V %w %W %y %n %t %%", "4 09 10 4 09 26 \n \t %"),
            ("%-d %_d %^a %#p %05d %-I", "5  5 THU am 00005 7"),
            ("%Ey %Ex %Od", "26 03/05/26 05"),
            ("%E %Q %i %L %N %q %J %K %o %v %-f %3f", "%E %Q %i %L %N %q %J %K %o %v %-f %3f"),
            ("100% %", "100% %"),
            ("%%Z %%c", "%Z %c"),
            ("", ""),
            ("日本 %Y年", "日本 2026年"),
        ] {
            assert_eq!(strftime(format, &now).unwrap(), expected, "{format}");
        }
    }
}
