//! Where a request names its model, apart from prompts that are read as a whole.

use std::borrow::Cow;

use memchr::memmem;
use serde::Deserialize;

/// Where a body names the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelAt {
    /// In the field `model` of a JSON object.
    Json,
    /// In the field `model` of a form (`multipart/form-data`).
    Form,
    Nowhere,
}

impl ModelAt {
    /// The model that a body names, if it names one.
    pub(crate) fn of(self, body: &[u8]) -> Option<Cow<'_, str>> {
        #[derive(Deserialize)]
        struct Asked<'a> {
            #[serde(borrow, default)]
            model: Option<Cow<'a, str>>,
        }
        match self {
            Self::Json => serde_json::from_slice::<Asked<'_>>(body).ok()?.model,
            Self::Form => form_field(body, "model").map(Cow::Borrowed),
            Self::Nowhere => None,
        }
    }
}

/// A short field of a form, which is between the blank line of its part and the next line's end (RFC 7578).
fn form_field<'b>(body: &'b [u8], name: &str) -> Option<&'b str> {
    let part = memmem::find(body, format!("form-data; name=\"{name}\"\r\n").as_bytes())?;
    let rest = &body[part..];
    let value = &rest[memmem::find(rest, b"\r\n\r\n")? + 4..];
    std::str::from_utf8(&value[..memmem::find(value, b"\r\n")?]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_in_bodies() {
        let form = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF\r\n--x\r\n\
            Content-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
        assert_eq!(ModelAt::Form.of(form).as_deref(), Some("whisper"));
        assert_eq!(ModelAt::Form.of(b"--x").as_deref(), None);
        assert_eq!(ModelAt::Json.of(br#"{"query": "x", "model": "m"}"#).as_deref(), Some("m"));
        for none in [&br#"{"model": null}"#[..], b"{}", b"[", br#"{"model": 5}"#] {
            assert_eq!(ModelAt::Json.of(none), None);
        }
        assert_eq!(ModelAt::Nowhere.of(br#"{"model": "m"}"#), None);
    }
}
