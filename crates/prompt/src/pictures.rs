//! Pictures in a chat, and the names by which engines identify them.
//!
//! vLLM identifies a picture in its blocks by the `uuid` of its content part, or else by a hash of the decoded picture
//! and of vLLM's settings, which cannot be computed outside the engine. With a `uuid` set by the router, the blocks
//! after a picture can be looked up.
//!
//! An engine does not decode a picture whose name it knows. A name must therefore never stand for two pictures: it is a
//! cryptographic hash of all bytes of the picture and a secret of the router, which no client can compute, and the
//! router forwards no such name from a client. The content behind a URL can change, so a picture given by its URL is
//! named only if the operator allows it.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::media::is_data_url;
use crate::request::{Key, is_there, string};

/// Prefix of every picture name made by the router. A picture name is the id that an engine gets for an image.
pub const PICTURE_PREFIX: &str = "kvatlas-";

/// Number of leading base64 characters of a picture in which its size is searched: a JPEG may begin with a preview.
const HEAD: usize = 128 << 10;

/// A picture in a chat, which may get a name by which engines identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Name by which an engine identifies the picture once the edited body is sent; `None` if the picture gets no name.
    pub id: Option<Box<str>>,
    /// Width and height in pixels; `None` if unknown, or if the request's body has only the picture's URL.
    pub size: Option<(u32, u32)>,
    /// Change of the request's body that names the picture: the range of bytes to replace, and the replacement; `None`
    /// for no change.
    edit: Option<(Range<usize>, Box<str>)>,
}

/// Pictures of a chat, in the order in which they occur.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pictures(Vec<Picture>);

/// Choice of the pictures to which the router gives a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureScope {
    /// Only pictures whose data is in the request's body.
    Data,
    /// Pictures whose data is in the request's body, and pictures given by their URL.
    Addresses,
}

/// Settings for naming pictures: the pictures to name, and the secret for the names.
#[derive(Clone)]
pub struct PictureNames {
    /// Choice of the pictures to which the router gives a name.
    pub scope: PictureScope,
    /// Secret of the router that is hashed into every picture name.
    pub secret: [u8; 32],
}

impl PictureNames {
    /// Computes a picture's name: a keyed hash of its URL, which contains the data of an inline picture.
    fn name(&self, url: &str) -> Box<str> {
        format!("{PICTURE_PREFIX}{}", blake3::keyed_hash(&self.secret, url.as_bytes()).to_hex()).into()
    }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    #[serde(borrow)]
    mm_processor_kwargs: Option<&'a RawValue>,
    #[serde(borrow)]
    media_io_kwargs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Key<'a>>,
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
    /// JSON of the field `uuid` of a picture, which may be null.
    #[serde(borrow, default, deserialize_with = "as_it_stands")]
    uuid: Option<&'a RawValue>,
}

fn as_it_stands<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Address<'a> {
    #[serde(borrow)]
    url: Option<&'a RawValue>,
}

impl Pictures {
    /// Finds the pictures in the body of a chat request. `None` if the body has none, or sets how media are processed,
    /// which the engine hashes into its own identity of a picture.
    #[must_use]
    pub fn of(body: &[u8], named: &PictureNames) -> Option<Self> {
        let given: Body<'_> = serde_json::from_slice(body).ok()?;
        if is_there(given.mm_processor_kwargs) || is_there(given.media_io_kwargs) {
            return None;
        }
        let mut found = Vec::new();
        for content in given.messages.iter().filter_map(|message| message.content) {
            if !content.get().starts_with('[') {
                continue;
            }
            for raw in serde_json::from_str::<Vec<&RawValue>>(content.get()).ok()? {
                if !raw.get().starts_with('{') {
                    continue;
                }
                let part: Part<'_> = serde_json::from_str(raw.get()).ok()?;
                let kind = part.kind.as_ref().map(|Key(kind)| &**kind);
                if matches!(kind, Some("image_url" | "input_image")) || kind.is_none() && is_there(part.image_url) {
                    found.push(picture(body, raw.get(), &part, named));
                } else if kind.is_some_and(|kind| kind.contains("image")) {
                    found.push(Picture { id: None, size: None, edit: None });
                }
            }
        }
        Some(Self(found)).filter(|pictures| !pictures.0.is_empty())
    }

    /// Pictures of the chat, in the order in which they occur.
    #[must_use]
    pub fn all(&self) -> &[Picture] {
        &self.0
    }

    /// Copy of a request's body with the pictures' names inserted; `None` if no change is needed. `body`: the bytes in
    /// which the pictures were found.
    #[must_use]
    pub fn written(&self, body: &[u8]) -> Option<Vec<u8>> {
        let edits = || self.0.iter().filter_map(|picture| picture.edit.as_ref());
        let more: usize = edits().map(|(_, text)| text.len()).sum();
        let mut made = Vec::with_capacity(if more > 0 { body.len() + more } else { 0 });
        let mut at = 0;
        for (range, text) in edits() {
            made.extend_from_slice(body.get(at..range.start)?);
            made.extend_from_slice(text.as_bytes());
            at = range.end;
        }
        if made.is_empty() {
            return None;
        }
        made.extend_from_slice(&body[at..]);
        Some(made)
    }
}

fn picture(body: &[u8], raw: &str, part: &Part<'_>, named: &PictureNames) -> Picture {
    let url = part.image_url.and_then(|image| match image.get().as_bytes().first() {
        Some(b'"') => string(image.get()),
        Some(b'{') => string(serde_json::from_str::<Address<'_>>(image.get()).ok()?.url?.get()),
        _ => None,
    });
    let is_data = url.as_deref().is_some_and(is_data_url);
    let size = url.as_deref().filter(|_| is_data).and_then(size);
    let given = part.uuid.filter(|uuid| is_there(Some(uuid)));
    let own = given.and_then(|uuid| string(uuid.get()));
    if let Some(own) = own {
        return Picture { id: (!own.is_empty()).then(|| own.into()), size, edit: None };
    }
    let id = url.filter(|_| is_data || named.scope == PictureScope::Addresses).map(|url| named.name(&url));
    let place = |inner: &str| {
        let start = inner.as_ptr() as usize - body.as_ptr() as usize;
        start..start + inner.len()
    };
    let edit = match (part.uuid, &id) {
        (Some(uuid), Some(id)) => Some((place(uuid.get()), format!("\"{id}\"").into())),
        (None, Some(id)) => {
            let after = place(raw).start + 1;
            Some((after..after, format!("\"uuid\":\"{id}\",").into()))
        }
        (_, None) => None,
    };
    Picture { id, size, edit }
}

/// Width and height, in pixels, of a picture given as base64; `None` if unknown.
fn size(url: &str) -> Option<(u32, u32)> {
    let (head, data) = url.split_once(',')?;
    if !head.ends_with(";base64") {
        return None;
    }
    let head = data.as_bytes().get(..HEAD).unwrap_or(data.as_bytes());
    let head = if head.contains(&b'\n') {
        Cow::Owned(head.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect())
    } else {
        Cow::Borrowed(head)
    };
    let bytes = STANDARD.decode(&head[..head.len() / 4 * 4]).ok()?;
    let size = imagesize::blob_size(&bytes).ok()?;
    Some((u32::try_from(size.width).ok()?, u32::try_from(size.height).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG image of 3 by 2 pixels, cut after the header that contains its size.
    const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAAElFTkSuQmCC";

    fn names(scope: PictureScope) -> PictureNames {
        PictureNames { scope, secret: [7; 32] }
    }

    fn name(url: &str) -> Box<str> {
        names(PictureScope::Data).name(url)
    }

    fn of(parts: &str, named: PictureScope) -> Option<(Pictures, String)> {
        let body = format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": [{parts}]}}], "n": 1.50}}"#);
        let pictures = Pictures::of(body.as_bytes(), &names(named))?;
        let written = pictures.written(body.as_bytes()).map_or(body, |it| String::from_utf8(it).expect("utf-8"));
        Some((pictures, written))
    }

    #[test]
    fn pictures_in_the_body_get_a_name_of_their_bytes() {
        let part = |url: &str| format!(r#" {{ "type": "image_url", "image_url": {{"url": "{url}"}}}}"#);
        let (one, written) = of(&part(PNG), PictureScope::Data).expect("a picture");
        let id = one.all()[0].id.clone().expect("a name");
        assert!(id.starts_with(PICTURE_PREFIX) && id.len() == PICTURE_PREFIX.len() + 64);
        assert_eq!(one.all()[0].size, Some((3, 2)));
        let expected = part(PNG).replacen('{', &format!(r#"{{"uuid":"{id}","#), 1);
        let whole =
            format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": [{expected}]}}], "n": 1.50}}"#);
        assert_eq!(written, whole);
        // The name depends on the picture, not on how its part is written.
        let escaped = part(&PNG.replace('/', "\\/"));
        let plain = format!(r#"{{"image_url": "{PNG}", "type": "input_image"}}"#);
        let other = part(&PNG.replace("CCAI", "CCAJ"));
        let (all, _) = of(&[escaped, plain, other].join(","), PictureScope::Data).expect("pictures");
        let ids: Vec<&str> = all.all().iter().filter_map(|it| it.id.as_deref()).collect();
        assert_eq!(ids[..2], [&*id, &*id]);
        assert_ne!(ids[2], &*id);
        // Another secret gives another name.
        let other = PictureNames { scope: PictureScope::Data, secret: [8; 32] };
        assert!(other.name(PNG) != id && !id.ends_with(&*blake3::hash(PNG.as_bytes()).to_hex()));
    }

    #[test]
    fn clients_names_are_kept() {
        let part = |uuid: &str| format!(r#"{{"uuid": {uuid}, "type": "image_url", "image_url": {{"url": "{PNG}"}}}}"#);
        let (own, written) = of(&part(r#""mine""#), PictureScope::Data).expect("a picture");
        assert_eq!(own.all()[0].id.as_deref(), Some("mine"));
        assert!(written.contains(r#""uuid": "mine""#) && !written.contains(PICTURE_PREFIX));
        let id = name(PNG);
        for given in ["null", "7"] {
            let (made, written) = of(&part(given), PictureScope::Data).expect("a picture");
            assert_eq!(made.all()[0].id.as_deref(), Some(&*id), "{given}");
            assert!(written.contains(&format!(r#""uuid": "{id}""#)), "{written}");
            assert_eq!(written.matches("uuid").count(), 1);
        }
        // A picture given by its name only.
        let (only, written) =
            of(r#"{"type": "image_url", "image_url": null, "uuid": "a"}"#, PictureScope::Data).expect("one");
        assert_eq!(only.all()[0].id.as_deref(), Some("a"));
        assert!(written.contains(r#""image_url": null, "uuid": "a""#));
    }

    #[test]
    fn addresses_have_names_only_where_that_is_asked_for() {
        let part = r#"{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}"#;
        let (without, written) = of(part, PictureScope::Data).expect("a picture");
        assert_eq!(without.all()[0].id, None);
        assert!(!written.contains("uuid"));
        let (named, written) = of(part, PictureScope::Addresses).expect("a picture");
        assert_eq!(named.all()[0].id.as_deref(), Some(&*name("https://a.b/c.png")));
        assert!(written.contains(r#"{"uuid":"kvatlas-"#));
        assert_eq!(named.all()[0].size, None);
    }

    #[test]
    fn what_says_how_pictures_are_read_is_left_alone() {
        let body = |more: &str| format!(r#"{{"messages": [{{"content": [{{"image_url": "{PNG}"}}]}}]{more}}}"#);
        for more in [r#", "mm_processor_kwargs": {"a": 1}"#, r#", "media_io_kwargs": {"image": {}}"#] {
            assert_eq!(Pictures::of(body(more).as_bytes(), &names(PictureScope::Data)), None);
        }
        for more in ["", r#", "mm_processor_kwargs": null"#] {
            assert!(Pictures::of(body(more).as_bytes(), &names(PictureScope::Data)).is_some());
        }
        assert_eq!(
            Pictures::of(
                br#"{"messages": [{"content": "a"}, {"content": [{"type": "text"}]}]}"#,
                &names(PictureScope::Data)
            ),
            None
        );
    }
}
