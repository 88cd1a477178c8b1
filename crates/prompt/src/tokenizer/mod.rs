//! A tokenizer of the Hugging Face kind, as quick as can be had exactly.
//!
//! Two libraries read `tokenizer.json`. The common one, `tokenizers`, reads all; it is what engines use and so what is
//! right. `fastokens` reads most byte-pair encodings and is tens of times as quick, with a memory of words by thread. A
//! tokenizer is opened with both, held against each other on [`probes`], and the quick one is kept if they agree.
//! For the rest, [`segments`] remembers the tokens of what stands between special tokens.

mod cuts;
mod probes;
mod segments;

use std::path::Path;

use crate::error::Error;
use cuts::Cuts;
use segments::Segments;

/// Text to token ids.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    engine: Engine,
}

enum Engine {
    Quick(Box<fastokens::Tokenizer>),
    Common(Box<Common>),
}

/// The common library, with what it has tokenized remembered.
struct Common {
    library: tokenizers::Tokenizer,
    /// Where text can be cut; nowhere if the tokenizer looks across.
    cuts: Option<Cuts>,
    segments: Segments,
    /// What stands before and after every text where special tokens are added; none if it is not so simple.
    around: Option<(Vec<u32>, Vec<u32>)>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Quick(_) => "Quick",
            Self::Common(_) => "Common",
        })
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
        let why = if library == Library::Common {
            "it was asked for".to_owned()
        } else {
            match quick(file, &common) {
                Ok(quick) => return Ok((Self { engine: Engine::Quick(Box::new(quick)) }, None)),
                Err(why) => why,
            }
        };
        let cuts = Cuts::of(&common);
        let around = probes::around(&common);
        let common = Common { library: common, cuts, segments: Segments::new(cache_bytes), around };
        let note = format!("{}: the common tokenizer library is used: {why}", file.display());
        Ok((Self { engine: Engine::Common(Box::new(common)) }, Some(note)))
    }

    /// The token ids of a text; none if the library fails for it, which it has no reason to.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match &self.engine {
            Engine::Quick(quick) => quick.encode_with_special_tokens(text, add_special_tokens).ok(),
            Engine::Common(common) => common.encode(text, add_special_tokens),
        }
    }
}

impl Common {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        let (before, after): (&[u32], &[u32]) = match (&self.around, add_special_tokens) {
            (_, false) => (&[], &[]),
            (Some((before, after)), true) => (before, after),
            (None, true) => return plain(&self.library, text, true),
        };
        let Some(cuts) = &self.cuts else { return plain(&self.library, text, add_special_tokens) };
        let mut ids = Vec::with_capacity(text.len() / 3 + before.len() + after.len());
        ids.extend_from_slice(before);
        for segment in cuts.segments(text) {
            if !self.segments.extend(segment, &mut ids) {
                let made = plain(&self.library, segment, false)?;
                ids.extend_from_slice(&made);
                self.segments.insert(segment, &made);
            }
        }
        ids.extend_from_slice(after);
        Some(ids)
    }
}

/// The ids of the common library.
fn plain(library: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
    library.encode_fast(text, add_special_tokens).ok().map(|encoding| encoding.get_ids().to_vec())
}

/// The quick library, if it reads the file and agrees with the common one; else why not.
fn quick(file: &Path, common: &tokenizers::Tokenizer) -> Result<fastokens::Tokenizer, String> {
    let added = common.get_added_tokens_decoder();
    if common.get_normalizer().is_some() && added.values().any(|token| token.normalized) {
        return Err("it has added tokens that are found in normalized text".to_owned());
    }
    let mut quick = fastokens::Tokenizer::from_file(file).map_err(|error| error.to_string())?;
    quick.set_truncation(None);
    quick.set_padding(None);
    probes::agree(common, &quick)?;
    Ok(quick)
}

#[cfg(test)]
mod tests;
