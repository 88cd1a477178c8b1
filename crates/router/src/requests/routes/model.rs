//! Extraction of the model that a request names, for requests whose prompts are not parsed.

use std::fmt;

use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum length of a model's name in a body, in bytes.
const LONGEST_NAME: usize = 4096;

/// Place where a body names the model, unless the body's content type implies another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelAt {
    /// Field `model` of a JSON object.
    Json,
    /// Field `model` of a form (`multipart/form-data`).
    Form,
    Nowhere,
}

impl ModelAt {
    /// Returns the model named in a body of the content type `kind`; None if the body names none.
    pub(crate) fn of(self, kind: &str, body: &[u8]) -> Option<String> {
        match self.value(kind, body)? {
            ModelText::Json(value) if value.len() > LONGEST_NAME => None,
            ModelText::Json(value) => serde_json::from_str(value).ok(),
            ModelText::Form(value) => Some(value.to_owned()),
            ModelText::Url(value) => decoded(value),
        }
    }

    /// Makes a copy of a body with another name for the model; None if the body names no model.
    pub(crate) fn renamed(self, kind: &str, body: &[u8], name: &str) -> Option<Vec<u8>> {
        let (old, new) = match self.value(kind, body)? {
            ModelText::Json(value) => (value, serde_json::to_string(name).ok()?),
            ModelText::Form(value) => (value, name.to_owned()),
            ModelText::Url(value) => (value, utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()),
        };
        let start = (old.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        let (before, behind) = (body.get(..start)?, body.get(start + old.len()..)?);
        Some([before, new.as_bytes(), behind].concat())
    }

    /// Returns the model's name as written in a body; None if the body names none.
    fn value<'b>(self, kind: &str, body: &'b [u8]) -> Option<ModelText<'b>> {
        if self == Self::Nowhere {
            return None;
        }
        let (name, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "multipart/form-data" => {
                form_field(body, parameter(parameters, "boundary").as_deref(), "model").map(ModelText::Form)
            }
            "application/x-www-form-urlencoded" => query_field(std::str::from_utf8(body).ok()?).map(ModelText::Url),
            _ if self == Self::Form && body.starts_with(b"--") => form_field(body, None, "model").map(ModelText::Form),
            _ => json_field(body).map(ModelText::Json),
        }
    }
}

/// Name of a model as written in a body or URL, not yet decoded.
enum ModelText<'b> {
    /// Model's name as a JSON string with its quotes and escapes.
    Json(&'b str),
    /// Model's name as the text of a form's field.
    Form(&'b str),
    /// Model's name as a value in a URL's query, in which bytes may be written as `%XX`.
    Url(&'b str),
}

/// Returns the model named in the query of a URL; None if the query names none.
pub(crate) fn of_query(query: &str) -> Option<String> {
    decoded(query_field(query)?)
}

fn query_field(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("model="))
}

fn decoded(value: &str) -> Option<String> {
    let plain = percent_decode_str(&value.replace('+', " ")).decode_utf8().ok()?.into_owned();
    Some(plain).filter(|model| !model.is_empty())
}

/// Returns the field `model` of a JSON object; of a repeated field the last value, like engines.
fn json_field(body: &[u8]) -> Option<&str> {
    serde_json::from_slice::<ModelField<'_>>(body).ok()?.0.map(|value| value.get())
}

/// JSON parser that reads only the field `model` of an object.
struct ModelField<'b>(Option<&'b RawValue>);

impl<'de> Deserialize<'de> for ModelField<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(field_identifier, rename_all = "lowercase")]
        enum Key {
            Model,
            #[serde(other)]
            Other,
        }

        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = ModelField<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = None;
                while let Some(key) = map.next_key()? {
                    match key {
                        Key::Model => found = Some(map.next_value()?),
                        Key::Other => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(ModelField(found))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Returns a field of a form (RFC 7578). `boundary`: separator of the form's parts; None to read the separator from the
/// first line.
fn form_field<'b>(body: &'b [u8], boundary: Option<&str>, name: &str) -> Option<&'b str> {
    let mark = match boundary {
        Some(boundary) => format!("--{boundary}").into_bytes(),
        None => body.split(|byte| *byte == b'\n').next()?.trim_ascii_end().to_vec(),
    };
    if mark.len() <= 2 {
        return None;
    }
    let starts: Vec<usize> =
        memmem::find_iter(body, &mark).filter(|&at| at == 0 || body[at - 1] == b'\n').take(1024).collect();
    starts.iter().enumerate().find_map(|(at, start)| {
        let end = starts.get(at + 1).copied().unwrap_or(body.len());
        let part = body.get(start + mark.len()..end)?;
        let (behind, length) = match memmem::find(part, b"\r\n\r\n") {
            Some(behind) => (behind, 4),
            None => (memmem::find(part, b"\n\n")?, 2),
        };
        let head = std::str::from_utf8(&part[..behind]).ok()?;
        let is_it = head.lines().any(|line| {
            let Some((field, value)) = line.split_once(':') else { return false };
            field.trim().eq_ignore_ascii_case("content-disposition")
                && parameter(value, "name").as_deref() == Some(name)
        });
        let value = part[behind + length..].strip_suffix(b"\n")?;
        let value = value.strip_suffix(b"\r").unwrap_or(value);
        is_it.then(|| std::str::from_utf8(value).ok())?
    })
}

/// Returns a parameter of a header's value: `name="value"` or `name=value`, after a semicolon or at the beginning.
fn parameter(text: &str, name: &str) -> Option<String> {
    text.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        key.trim().eq_ignore_ascii_case(name).then(|| bare.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "multipart/form-data; boundary=x";

    #[test]
    fn models_in_forms() {
        let form = |disposition: &str, end: &str| {
            let audio = "Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\nRIFF--x\r\n";
            format!("--x\r\n{audio}--x\r\n{disposition}\r\n\r\nwhisper\r\n--x{end}").into_bytes()
        };
        for (disposition, end) in [
            ("Content-Disposition: form-data; name=\"model\"", "--\r\n"),
            ("content-disposition:form-data;name=model", "--"),
            ("Content-Type: text/plain\r\nCONTENT-DISPOSITION: Form-Data; Name=\"model\"", "--\r\n"),
            ("Content-Disposition: form-data; name=\"model\"; x=\"y\"\r\nContent-Length: 7", "\r\n\r\n--x--"),
        ] {
            for kind in [FORM, "Multipart/Form-Data; charset=utf-8; Boundary=\"x\"", "multipart/form-data", ""] {
                let body = form(disposition, end);
                assert_eq!(ModelAt::Form.of(kind, &body).as_deref(), Some("whisper"), "{disposition} {kind}");
            }
        }
        assert_eq!(ModelAt::Form.of(FORM, &form("X: name=\"model\"", "--")), None);
        assert_eq!(ModelAt::Form.of(FORM, b"--x"), None);
        assert_eq!(ModelAt::Form.of("multipart/form-data", b""), None);
        assert_eq!(
            ModelAt::Json.of(FORM, &form("Content-Disposition: form-data; name=\"model\"", "--")).as_deref(),
            Some("whisper")
        );
    }

    #[test]
    fn other_names() {
        let renamed = |at: ModelAt, kind: &str, body: &str| {
            at.renamed(kind, body.as_bytes(), "a/\"b").map(|made| String::from_utf8(made).expect("text"))
        };
        let json = renamed(ModelAt::Json, "application/json", "{\"x\": 1.50, \"model\" :\"m\\u0020\",\n\"y\":[]}");
        assert_eq!(json.as_deref(), Some("{\"x\": 1.50, \"model\" :\"a/\\\"b\",\n\"y\":[]}"));
        let url = renamed(ModelAt::Json, "application/x-www-form-urlencoded", "a=b&model=org%2Fm&c=d");
        assert_eq!(url.as_deref(), Some("a=b&model=a%2F%22b&c=d"));
        let form = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--\r\n";
        let made = renamed(ModelAt::Form, FORM, form);
        assert_eq!(made, Some(form.replace("\r\nm\r\n", "\r\na/\"b\r\n")));
        assert_eq!(renamed(ModelAt::Json, "", "{}"), None);
        assert_eq!(renamed(ModelAt::Nowhere, "", "{\"model\": \"m\"}"), None);
    }

    #[test]
    fn models_elsewhere() {
        for at in [ModelAt::Json, ModelAt::Form] {
            assert_eq!(at.of("application/json", br#"{"query": "x", "model": "m"}"#).as_deref(), Some("m"));
            assert_eq!(at.of("application/x-www-form-urlencoded", b"a=b&model=org%2Fm").as_deref(), Some("org/m"));
        }
        assert_eq!(ModelAt::Json.of("", br#"{"model": "a", "model": "b\u0020"}"#).as_deref(), Some("b "));
        for none in [&br#"{"model": null}"#[..], b"{}", b"[", br#"{"model": 5}"#, b"\xff"] {
            assert_eq!(ModelAt::Json.of("application/json", none), None);
        }
        assert_eq!(ModelAt::Nowhere.of("application/json", br#"{"model": "m"}"#), None);
        assert_eq!(of_query("a=1&model=org%2Fm+1").as_deref(), Some("org/m 1"));
        assert_eq!(of_query("xmodel=m&model="), None);
    }
}
