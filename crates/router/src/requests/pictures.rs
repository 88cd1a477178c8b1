//! Prompts with images: the number of tokens of each image (its length), learnt from engines' counts, and the hashes of
//! the blocks with images.
//!
//! For an image, an engine inserts a run of equal tokens into the prompt, and adds the image's id to the keys of the
//! blocks that contain some of these tokens. The number of tokens depends on the model's settings and on the size of
//! the image. It can be computed from the engine's token count for a prompt if the lengths of all other images in the
//! prompt are known. If an engine inserts other tokens for an image, no blocks after the image are found in the index,
//! but never those of another prompt.
//!
//! The header of an image file may state a wrong size. Among the lengths observed for images of one size, the one that
//! most recent prompts showed is used.

use std::ops::Range;
use std::sync::Arc;

use kvatlas_index::hash::content_hashes;
use kvatlas_prompt::{Picture, Pictures, Placeholders};
use kvatlas_wire::keys::{Key, content_hash};
use lru::LruCache;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

/// Maximum number of images' lengths that are stored; the least recently used ones are dropped.
const KEPT: usize = 1 << 17;
/// Maximum number of tokens of one image.
const MOST: u32 = 1 << 20;

/// Key of a stored length of an image: hash of a model and an image, or of a model and an image size.
type LengthKey = u128;

/// Learnt lengths of images, in tokens.
#[derive(Debug, Default)]
pub(crate) struct Lengths(Mutex<KnownLengths>);

#[derive(Debug)]
struct KnownLengths(LruCache<LengthKey, KnownLength>);

/// Learnt length of an image, in tokens, and its votes from observed prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownLength {
    length: u32,
    /// Votes for the stored length: number of prompts that confirmed it minus the number that showed another length.
    votes: u8,
    /// True if a prompt showed another length than the stored one, and too few prompts have confirmed the stored one
    /// since.
    is_disputed: bool,
}

/// Maximum number of votes for an image's length, so that a few prompts with another length suffice to replace it.
const MOST_VOTES: u8 = 4;
/// Minimum number of votes with which a disputed length of an image is used.
const USED: u8 = 2;
/// Number of votes at which an image's length is no longer disputed.
const AGREED: u8 = 3;

impl KnownLength {
    fn new(length: u32) -> Self {
        Self { length, votes: 1, is_disputed: false }
    }

    /// Returns the image's length if it has enough votes, else None.
    fn get(self) -> Option<u32> {
        (!self.is_disputed || self.votes >= USED).then_some(self.length)
    }

    /// Returns the stored length and its votes, after a prompt has shown the length `length` for the image.
    fn after(self, length: u32) -> Self {
        match (length == self.length, self.votes) {
            (true, votes) => {
                let votes = MOST_VOTES.min(votes + 1);
                Self { votes, is_disputed: self.is_disputed && votes < AGREED, ..self }
            }
            (false, 0 | 1) => Self { is_disputed: true, ..Self::new(length) },
            (false, votes) => Self { votes: votes - 1, is_disputed: true, ..self },
        }
    }
}

impl Default for KnownLengths {
    fn default() -> Self {
        // A cache with a limit of its own would take all its room at once.
        Self(LruCache::unbounded())
    }
}

/// Images of a chat whose lengths in tokens can be computed from an engine's token count for the chat.
#[derive(Debug)]
pub(crate) struct PictureCount {
    /// Number of prompt tokens outside of images.
    text: u32,
    pictures: Vec<Names>,
}

/// Keys under which the length of an image is stored: by the image and by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Names {
    picture: Option<LengthKey>,
    size: Option<LengthKey>,
}

/// Prompt in which images are replaced by their tokens, up to the first image of unknown length.
#[derive(Debug)]
pub(crate) struct ExpandedPrompt {
    pub(crate) tokens: Vec<u32>,
    /// Range of the tokens of each image in the prompt, and the image's id.
    runs: Vec<(Range<usize>, Box<str>)>,
    /// True if the tokens cover the whole prompt, as the lengths of all images are known.
    pub(crate) is_whole: bool,
    /// True if the length of each image was learnt from the same image, not only from another image of equal size.
    pub(crate) is_counted: bool,
}

impl Names {
    fn of(model: &str, picture: &Picture) -> Self {
        let hash = |kind: u8, rest: &[u8]| xxh3_128(&[model.as_bytes(), &[0, kind], rest].concat());
        Self {
            picture: picture.id.as_ref().map(|id| hash(0, id.as_bytes())),
            size: picture.size.map(|(width, height)| hash(1, &[width.to_le_bytes(), height.to_le_bytes()].concat())),
        }
    }
}

impl KnownLengths {
    fn get(&mut self, of: LengthKey) -> Option<u32> {
        self.0.get(&of)?.get()
    }

    fn put(&mut self, of: LengthKey, length: KnownLength) {
        self.0.put(of, length);
        if self.0.len() > KEPT {
            self.0.pop_lru();
        }
    }

    /// Returns the length of an image in tokens, with true if the length was learnt from the same image and not only
    /// from another one of equal size; None if unknown.
    fn length(&mut self, names: Names) -> Option<(u32, bool)> {
        let mut get = |of: Option<LengthKey>| self.get(of?);
        get(names.picture).map(|length| (length, true)).or_else(|| Some((get(names.size)?, false)))
    }

    /// Stores the lengths of the images in one prompt. A prompt casts one vote for the length of each image size, and
    /// none for images whose length was known already.
    fn learn(&mut self, pictures: impl Iterator<Item = (Names, u32)>) {
        let mut heard = Vec::new();
        for (names, length) in pictures {
            let is_new = names.picture.is_none_or(|of| self.get(of) != Some(length));
            if let Some(of) = names.picture {
                self.put(of, KnownLength::new(length));
            }
            if let Some(of) = names.size.filter(|of| is_new && !heard.contains(of)) {
                heard.push(of);
                let known = self.0.get(&of).map_or_else(|| KnownLength::new(length), |known| known.after(length));
                self.put(of, known);
            }
        }
    }
}

impl Lengths {
    /// Replaces the placeholders of images in a prompt by tokens, as many as each image's length. Returns the prompt,
    /// and the data with which lengths are learnt from the engine's count. None if the numbers of images and
    /// placeholders differ.
    pub(crate) fn expand(
        &self,
        model: &str,
        placeholders: &Placeholders,
        pictures: &Pictures,
    ) -> Option<(ExpandedPrompt, PictureCount)> {
        let Placeholders { tokens, places } = placeholders;
        let pictures = pictures.all();
        if pictures.len() != places.len() {
            return None;
        }
        let names: Vec<Names> = pictures.iter().map(|picture| Names::of(model, picture)).collect();
        let lengths: Vec<Option<(u32, bool)>> = {
            let mut kept = self.0.lock();
            names.iter().map(|names| kept.length(*names)).collect()
        };
        let mut made = ExpandedPrompt { tokens: Vec::new(), runs: Vec::new(), is_whole: false, is_counted: true };
        let mut at = 0;
        for ((place, picture), length) in places.iter().zip(pictures).zip(lengths) {
            made.tokens.extend_from_slice(&tokens[at..*place]);
            let (Some(id), Some((length, is_counted))) = (&picture.id, length) else {
                at = tokens.len();
                break;
            };
            let start = made.tokens.len();
            made.tokens.extend(std::iter::repeat_n(tokens[*place], length as usize));
            made.runs.push((start..made.tokens.len(), id.clone()));
            made.is_counted &= is_counted;
            at = place + 1;
        }
        made.is_whole = made.runs.len() == places.len();
        made.tokens.extend_from_slice(&tokens[at..]);
        let text = u32::try_from(tokens.len() - places.len()).unwrap_or(u32::MAX);
        Some((made, PictureCount { text, pictures: names }))
    }

    /// Learns the lengths of images from an engine's token count. `of`: images of the prompt; `counted`: number of
    /// prompt tokens reported by the engine.
    pub(crate) fn learn(&self, of: &PictureCount, counted: u32) {
        let mut kept = self.0.lock();
        let Some(all) = counted.checked_sub(of.text) else { return };
        // Counted for the very pictures first: if they do not add up, their engine has other settings now.
        let known: Vec<Option<u32>> = of.pictures.iter().map(|names| Some(kept.length(*names)?.0)).collect();
        let sum: u32 = known.iter().flatten().fold(0, |sum, length| sum.saturating_add(*length));
        let open: Vec<Names> =
            of.pictures.iter().zip(&known).filter(|(_, length)| length.is_none()).map(|(names, _)| *names).collect();
        let learn_all = |kept: &mut KnownLengths, names: &[Names], sum: u32| {
            let is_one =
                names.iter().all(|other| *other == names[0] || other.size.is_some() && other.size == names[0].size);
            let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let length = sum
                .checked_div(count)
                .filter(|length| is_one && sum.is_multiple_of(count) && (1..=MOST).contains(length));
            if let Some(length) = length {
                kept.learn(names.iter().map(|names| (*names, length)));
            }
            length.is_some()
        };
        if open.is_empty() {
            if sum != all && !learn_all(&mut kept, &of.pictures, all) {
                // Which of them it is is not known, and what is known of their sizes is not theirs alone.
                for of in of.pictures.iter().filter_map(|names| names.picture) {
                    kept.0.pop(&of);
                }
            } else if sum == all {
                // What was only known by a size is now known of the picture.
                kept.learn(of.pictures.iter().zip(&known).filter_map(|(names, length)| Some((*names, (*length)?))));
            }
        } else if let Some(rest) = all.checked_sub(sum) {
            learn_all(&mut kept, &open, rest);
        }
    }
}

impl ExpandedPrompt {
    /// Computes the content hashes of the prompt's full blocks, with the ids of images in the keys of their blocks.
    pub(crate) fn content_hashes(&self, block_size: u32, lora: Option<&str>, salt: Option<&str>) -> Arc<[u64]> {
        let size = block_size as usize;
        let mut hashes = content_hashes(&self.tokens, size, lora, salt);
        let mut first = 0;
        let keys: Vec<(Range<usize>, Key)> =
            self.runs.iter().map(|(run, id)| (run.clone(), Key::Item { identifier: id.clone(), offset: 0 })).collect();
        for ((block, tokens), hash) in self.tokens.chunks_exact(size.max(1)).enumerate().zip(&mut hashes) {
            let (start, end) = (block * size, (block + 1) * size);
            first += keys[first..].iter().take_while(|(run, _)| run.end <= start).count();
            let mut here = keys[first..].iter().take_while(|(run, _)| run.start < end).peekable();
            if here.peek().is_some() {
                *hash = content_hash(tokens, here.map(|(_, key)| key), lora, salt);
            }
        }
        hashes.into()
    }

    /// Returns the lengths, in tokens, of the prompt's images whose length is known.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().map(|(run, _)| run.len())
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_prompt::{PictureNames, PictureScope};

    use super::*;

    fn chat(ids: &[&str]) -> (Placeholders, Pictures) {
        let parts: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"type": "image_url", "image_url": null, "uuid": "{id}"}}"#)).collect();
        let body = format!(r#"{{"messages": [{{"content": [{}]}}]}}"#, parts.join(","));
        let pictures = Pictures::of(body.as_bytes(), &PictureNames { scope: PictureScope::Data, secret: [7; 32] })
            .expect("pictures");
        // One picture at every sixth token.
        let tokens: Vec<u32> = (0..ids.len() as u32 * 6 + 5).map(|at| if at % 6 == 5 { 99 } else { at }).collect();
        let places = (0..ids.len()).map(|at| at * 6 + 5).collect();
        (Placeholders { tokens, places }, pictures)
    }

    fn expand(lengths: &Lengths, ids: &[&str]) -> (ExpandedPrompt, PictureCount) {
        let (placeholders, pictures) = chat(ids);
        lengths.expand("m", &placeholders, &pictures).expect("as many pictures as places")
    }

    #[test]
    fn lengths_follow_from_what_engines_count() {
        let lengths = Lengths::default();
        let (one, counting) = expand(&lengths, &["a"]);
        assert_eq!((one.tokens.len(), one.is_whole), (5, false));
        lengths.learn(&counting, 10 + 7);
        let (one, _) = expand(&lengths, &["a"]);
        assert_eq!((one.tokens.len(), one.is_whole, one.is_counted), (17, true, true));
        assert_eq!(one.tokens[5..12], [99; 7]);
        // The next one follows from the sum; what is open twice does not, unless it is the same picture.
        let (two, counting) = expand(&lengths, &["a", "b"]);
        assert_eq!((two.tokens.len(), two.is_whole), (5 + 7 + 5, false));
        lengths.learn(&counting, 15 + 7 + 4);
        assert_eq!(expand(&lengths, &["b", "a"]).0.tokens.len(), 15 + 11);
        lengths.learn(&expand(&lengths, &["c", "d"]).1, 15 + 8);
        assert!(!expand(&lengths, &["c", "d"]).0.is_whole);
        lengths.learn(&expand(&lengths, &["c", "a", "c"]).1, 20 + 7 + 6);
        assert_eq!(expand(&lengths, &["c"]).0.tokens.len(), 10 + 3);
        // What does not add up any more is learnt anew, or forgotten.
        lengths.learn(&expand(&lengths, &["a"]).1, 10 + 9);
        assert_eq!(expand(&lengths, &["a"]).0.tokens.len(), 10 + 9);
        lengths.learn(&expand(&lengths, &["a", "b"]).1, 15 + 3);
        assert!(!expand(&lengths, &["a"]).0.is_whole && !expand(&lengths, &["b"]).0.is_whole);
        lengths.learn(&expand(&lengths, &["a"]).1, 3);
    }

    #[test]
    fn blocks_have_the_keys_of_the_pictures_in_them() {
        let lengths = Lengths::default();
        lengths.learn(&expand(&lengths, &["a"]).1, 10 + 6);
        lengths.learn(&expand(&lengths, &["b"]).1, 10 + 1);
        let (made, _) = expand(&lengths, &["a", "b"]);
        // 5 of text, 6 of a, 5 of text, 1 of b, 5 of text.
        let keys = |ids: &[&str]| -> Vec<Key> {
            ids.iter().map(|id| Key::Item { identifier: (*id).into(), offset: 0 }).collect()
        };
        let wanted: [&[&str]; 5] = [&[], &["a"], &["a"], &[], &["b"]];
        let expected: Vec<u64> = made
            .tokens
            .chunks_exact(4)
            .zip(wanted)
            .map(|(tokens, ids)| content_hash(tokens, &keys(ids), Some("l"), Some("s")))
            .collect();
        assert_eq!(made.content_hashes(4, Some("l"), Some("s"))[..], expected);
        let whole = content_hash(&made.tokens[..20], &keys(&["a", "b"]), None, None);
        assert_eq!(made.content_hashes(20, None, None)[..], [whole]);
        assert!(made.content_hashes(0, None, None).is_empty());
    }

    /// Records, for a test, a prompt with images of one size that have `length` tokens each.
    fn sized(lengths: &Lengths, pictures: &[u128], length: u32) {
        let names = pictures.iter().map(|it| Names { picture: Some(*it), size: Some(1) });
        let counting = PictureCount { text: 10, pictures: names.collect() };
        lengths.learn(&counting, 10 + length * pictures.len() as u32);
    }

    fn of_size(lengths: &Lengths) -> Option<u32> {
        lengths.0.lock().get(1)
    }

    #[test]
    fn a_picture_that_lies_about_its_size_is_outweighed() {
        let lengths = Lengths::default();
        sized(&lengths, &[10], 900);
        assert_eq!(of_size(&lengths), Some(900), "the first one is believed");
        sized(&lengths, &[11], 54);
        assert_eq!(of_size(&lengths), None);
        sized(&lengths, &[12], 54);
        assert_eq!(of_size(&lengths), Some(54));
        sized(&lengths, &[13], 54);
        sized(&lengths, &[14], 54);
        // One that lies changes nothing now, however often it comes, nor do several at once.
        for _ in 0..20 {
            sized(&lengths, &[10], 900);
        }
        sized(&lengths, &[20, 21, 22, 23], 900);
        assert_eq!(of_size(&lengths), Some(54));
        sized(&lengths, &[15], 54);
        sized(&lengths, &[16], 54);
        // What has changed is learnt.
        for picture in 30..36 {
            sized(&lengths, &[picture], 60);
        }
        assert_eq!(of_size(&lengths), Some(60));
        // Two pictures whose lengths do not add up say nothing of others.
        let names = [(40, 1), (41, 2)].map(|(it, size)| Names { picture: Some(it), size: Some(size) });
        sized(&lengths, &[36], 60);
        lengths.0.lock().put(2, KnownLength::new(5));
        lengths.learn(&PictureCount { text: 10, pictures: names.to_vec() }, 10 + 7);
        assert_eq!(of_size(&lengths), Some(60));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = KnownLengths::default();
        for of in 0..5 * KEPT as u128 {
            kept.put(of, KnownLength::new(1));
            assert_eq!(kept.get(7), if of < 7 { None } else { Some(1) });
        }
        assert_eq!(kept.0.len(), KEPT);
        assert_eq!(kept.get(8), None);
    }
}
