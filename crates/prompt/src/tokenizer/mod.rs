//! A tokenizer of the Hugging Face kind, as quick as can be had exactly.
//!
//! Two libraries read `tokenizer.json`. The common one, `tokenizers`, reads all; it is what engines use and so what is
//! right. `fastokens` reads most byte-pair encodings and is tens of times as quick, with a memory of words by thread. A
//! tokenizer is opened with both, held against each other on [`probes`], and the quick one is kept if they agree.
//! Beside either, [`segments`] remembers the tokens of what stands between special tokens: of a conversation that goes
//! on, only what is new is tokenized.

mod cuts;
mod probes;
mod segments;

use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use cuts::Cuts;
use segments::Segments;

/// Shorter texts take the quick library less time than what it takes to remember them.
const QUICK_TEXT: usize = 4096;
/// The same of what stands between two special tokens.
const QUICK_PIECE: usize = 256;

/// Text to token ids. What was tokenized is remembered.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    engine: Engine,
    /// Where text can be cut; nowhere if the tokenizer looks across.
    cuts: Option<Cuts>,
    segments: Segments,
    /// What stands before and after every text where special tokens are added; none if it is not so simple.
    around: Option<(Vec<u32>, Vec<u32>)>,
}

enum Engine {
    Quick(Box<fastokens::Tokenizer>),
    Common(Box<tokenizers::Tokenizer>),
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Quick(_) => "Quick",
            Self::Common(_) => "Common",
        })
    }
}

/// A text's tokens, and where it was cut for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokenized {
    pub(crate) ids: Arc<Vec<u32>>,
    /// Places in the text at which a special token begins, and how many tokens there are before each.
    cuts: Vec<(usize, usize)>,
}

impl Tokenized {
    fn whole(ids: Vec<u32>) -> Self {
        Self { ids: ids.into(), cuts: Vec::new() }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u32>() + self.cuts.capacity() * size_of::<(usize, usize)>()
    }
}

/// Which of the two libraries is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Library {
    /// The quick one where it agrees, else the common one.
    #[default]
    Best,
    /// The common one.
    Common,
}

impl Tokenizer {
    /// Read a `tokenizer.json`. What is remembered takes at most `cache_bytes`. Also says why it is not the quick one.
    pub(crate) fn open(file: &Path, library: Library, cache_bytes: usize) -> Result<(Self, Option<String>), Error> {
        let bad = |message: String| Error::File { path: file.to_owned(), message };
        let mut common = tokenizers::Tokenizer::from_file(file)
            .map_err(|error| bad(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
        // Engines cut and fill up prompts themselves, if at all.
        common.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        common.with_padding(None);
        let cuts = Cuts::of(&common);
        let around = probes::around(&common);
        let quick = if library == Library::Common { Err("it was asked for".to_owned()) } else { quick(file, &common) };
        let (engine, note) = match quick {
            Ok(quick) => (Engine::Quick(Box::new(quick)), None),
            Err(why) => {
                let note = format!("{}: the common tokenizer library is used: {why}", file.display());
                (Engine::Common(Box::new(common)), Some(note))
            }
        };
        Ok((Self { engine, cuts, segments: Segments::new(cache_bytes), around }, note))
    }

    /// The token ids of a text; none if the library fails for it, which it has no reason to.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Tokenized> {
        let (before, after): (&[u32], &[u32]) = match (&self.around, add_special_tokens) {
            (_, false) => (&[], &[]),
            (Some((before, after)), true) => (before, after),
            (None, true) => return Some(Tokenized::whole(self.engine.encode(text, true)?)),
        };
        let mut made = match self.places(text) {
            Some(places) => self.encode_on(before, &[], text, places)?,
            None => {
                let tokens = self.engine.encode(text, false)?;
                if before.is_empty() && after.is_empty() {
                    return Some(Tokenized::whole(tokens));
                }
                Tokenized::whole([before, &tokens].concat())
            }
        };
        if !after.is_empty() {
            Arc::make_mut(&mut made.ids).extend_from_slice(after);
        }
        Some(made)
    }

    /// The same of a text without special tokens around it, of which so many bytes are the beginning of another one
    /// whose tokens are known.
    pub(crate) fn encode_next(&self, text: &str, common: usize, known: &Tokenized) -> Option<Tokenized> {
        let Some(places) = self.places(text) else { return self.encode(text, false) };
        // What begins at a cut has to be the same special token in both.
        let count = known.cuts.partition_point(|(at, _)| at + places.longest <= common);
        let cuts = &known.cuts[..count];
        let tokens = cuts.last().map_or(0, |(_, tokens)| *tokens);
        self.encode_on(&known.ids[..tokens], cuts, text, places)
    }

    /// Where a text is cut, if it is worth it.
    fn places(&self, text: &str) -> Option<&Cuts> {
        let is_quick = matches!(self.engine, Engine::Quick(_));
        self.cuts.as_ref().filter(|_| !is_quick || text.len() >= QUICK_TEXT)
    }

    /// The tokens of a text, of which those before the last of these cuts are known.
    fn encode_on(&self, before: &[u32], cuts: &[(usize, usize)], text: &str, places: &Cuts) -> Option<Tokenized> {
        let is_quick = matches!(self.engine, Engine::Quick(_));
        let from = cuts.last().map_or(0, |(at, _)| *at);
        let mut ids = Vec::with_capacity(before.len() + (text.len() - from) / 3);
        ids.extend_from_slice(before);
        let mut cuts = cuts.to_vec();
        let mut at = from;
        for segment in places.segments(&text[from..]) {
            if at > from {
                cuts.push((at, ids.len()));
            }
            at += segment.len();
            if is_quick && segment.len() < QUICK_PIECE {
                ids.extend(self.engine.encode(segment, false)?);
            } else if !self.segments.extend(segment, &mut ids) {
                let made = self.engine.encode(segment, false)?;
                ids.extend_from_slice(&made);
                self.segments.insert(segment, &made);
            }
        }
        Some(Tokenized { ids: ids.into(), cuts })
    }
}

impl Engine {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match self {
            Self::Quick(quick) => quick.encode_with_special_tokens(text, add_special_tokens).ok(),
            Self::Common(common) => plain(common, text, add_special_tokens),
        }
    }
}

/// The ids of the common library.
fn plain(library: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
    library.encode_fast(text, add_special_tokens).ok().map(|encoding| encoding.get_ids().to_vec())
}

/// The quick library, if it reads the file and agrees with the common one; else why not.
fn quick(file: &Path, common: &tokenizers::Tokenizer) -> Result<fastokens::Tokenizer, String> {
    let added = common.get_added_tokens_decoder();
    if normalizes(common) && added.values().any(|token| token.normalized) {
        return Err("it has added tokens that match normalized text".to_owned());
    }
    let mut quick = fastokens::Tokenizer::from_file(file).map_err(|error| error.to_string())?;
    quick.set_truncation(None);
    quick.set_padding(None);
    probes::agree(common, &quick)?;
    Ok(quick)
}

/// Whether text is changed before it is tokenized: some tokenizers have a list of normalizers with nothing in it.
fn normalizes(common: &tokenizers::Tokenizer) -> bool {
    common.get_normalizer().is_some_and(|normalizer| {
        let json = serde_json::to_value(normalizer).unwrap_or_default();
        json["normalizers"].as_array().is_none_or(|all| !all.is_empty())
    })
}

#[cfg(test)]
mod tests;
