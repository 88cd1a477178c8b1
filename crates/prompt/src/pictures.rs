//! Pictures of a chat, and the names under which engines know them.
//!
//! vLLM calls a picture in its blocks by the `uuid` of the part that it stands in, if it has one, else by a hash of what it
//! decodes and of its settings, which nobody else can compute. So a name that is set here is one by which the blocks
//! behind a picture can be found.
//!
//! An engine does not look at a picture whose name it knows. A name must therefore never stand for two pictures: it is a
//! cryptographic hash of all of its bytes under a secret of the router's, which no client can compute, and the router lets
//! no client send one. What is behind an address can
//! change, so that is only named if whoever runs the router says so.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::media::is_data_url;
use crate::request::{Key, is_there, string};

/// The beginning of every name that is given here.
pub const PICTURE_PREFIX: &str = "kvatlas-";

/// Base64 characters of a picture in which its size is looked for: a JPEG may have a preview before it.
const HEAD: usize = 128 << 10;

/// A picture of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The name by which an engine knows it, if the body that it gets has that.
    pub id: Option<Box<str>>,
    /// Width and height in pixels, if the picture is in the body.
    pub size: Option<(u32, u32)>,
    /// The bytes of the body in whose place something else belongs, so that it has that name.
    edit: Option<(Range<usize>, Box<str>)>,
}

/// The pictures of a chat, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pictures(Vec<Picture>);

/// The pictures that get a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureScope {
    /// Pictures that are in the body.
    Data,
    /// Pictures that are given by their address as well.
    Addresses,
}

/// The rule by which pictures get their names.
#[derive(Clone)]
pub struct PictureNames {
    /// The pictures that get one.
    pub scope: PictureScope,
    /// The secret that the names are made with.
    pub secret: [u8; 32],
}

impl PictureNames {
    /// The name of a picture: a hash of all that is given of it.
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
    /// The value of the field, be it null.
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
    /// The pictures in the body of a chat. None if it has none, or says in which way they are read: that is a part of
    /// what an engine calls them.
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

    /// The pictures, in their order.
    #[must_use]
    pub fn all(&self) -> &[Picture] {
        &self.0
    }

    /// The body with the names in it; None if it has them. All else stays as it is, byte for byte. `body`: what the
    /// pictures were found in.
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

/// The width and height of a picture that is there as base64.
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

    /// A PNG of 3 by 2, as far as its size.
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
        // The name is of the picture, however it is written, and of no other.
        let escaped = part(&PNG.replace('/', "\\/"));
        let plain = format!(r#"{{"image_url": "{PNG}", "type": "input_image"}}"#);
        let other = part(&PNG.replace("CCAI", "CCAJ"));
        let (all, _) = of(&[escaped, plain, other].join(","), PictureScope::Data).expect("pictures");
        let ids: Vec<&str> = all.all().iter().filter_map(|it| it.id.as_deref()).collect();
        assert_eq!(ids[..2], [&*id, &*id]);
        assert_ne!(ids[2], &*id);
        // Whoever does not know the secret cannot compute it.
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
        // A picture that only its name is sent of.
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
