//! Parts shared by several policies: a prompt cut into pieces, each identified by a hash of the prompt up to the
//! piece's end.

pub(crate) mod books;
pub(crate) mod sent_blocks;

use kvatlas_index::hash::{next_prefix_hash, prefix_hashes};
use xxhash_rust::xxh3::xxh3_64;

use kvatlas_routing::Request;

/// Assumed bytes per token of text that was not tokenised: about right for English.
pub(crate) const BYTES_PER_TOKEN: usize = 4;
/// Length of a piece of an untokenised prompt, in bytes of text: 16 tokens.
const TEXT_PIECE: usize = 16 * BYTES_PER_TOKEN;
/// Maximum number of pieces of one prompt: a million tokens in blocks of 16. Later pieces are ignored.
const MOST: usize = 1 << 16;

/// The leading full blocks of a prompt, or the leading pieces of its text if it was not tokenised.
///
/// Other routers keep trees of characters or tokens; in this crate prompts are compared by whole blocks.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The hash of each piece, which includes all pieces before it.
    pub(crate) chain: Vec<u64>,
    /// Number of tokens of a piece.
    pub(crate) size: f64,
    /// Number of tokens of the prompt.
    pub(crate) tokens: f64,
}

impl Pieces {
    /// Cuts the prompt of a request into pieces: into blocks if it has content hashes, else into pieces of its text.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let hashes = request.content_hashes;
        if !hashes.is_empty() && request.block_size > 0 {
            let chain = prefix_hashes(&hashes[..hashes.len().min(MOST)]);
            let size = f64::from(request.block_size);
            let tokens = f64::from(request.tokens).max(chain.len() as f64 * size);
            return Self { chain, size, tokens };
        }
        let text = request.text.unwrap_or("").as_bytes();
        let mut chain = Vec::with_capacity((text.len() / TEXT_PIECE).min(MOST));
        // Another seed than for blocks: a piece of text never equals a block.
        let mut name = xxh3_64(b"text");
        for piece in text.chunks_exact(TEXT_PIECE).take(MOST) {
            name = next_prefix_hash(name, xxh3_64(piece));
            chain.push(name);
        }
        let tokens = if text.is_empty() { f64::from(request.tokens) } else { (text.len() / BYTES_PER_TOKEN) as f64 };
        Self { chain, size: (TEXT_PIECE / BYTES_PER_TOKEN) as f64, tokens }
    }

    /// Share of the prompt covered by the first `depth` pieces, 0 to 1.
    pub(crate) fn share(&self, depth: usize) -> f64 {
        if depth == 0 { 0.0 } else { depth as f64 * self.size / self.tokens.max(self.size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_before_text_and_the_rest_counts_in_the_share() {
        let request =
            Request { tokens: 40, block_size: 16, content_hashes: &[1, 2], text: Some("x"), ..Request::default() };
        let pieces = Pieces::of(&request);
        assert_eq!(pieces.chain.len(), 2);
        // One block of 16 of 40 tokens.
        assert!((pieces.share(1) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn text_is_cut_where_nothing_is_tokenised() {
        let text = "a".repeat(200);
        let request = Request { tokens: 50, block_size: 16, text: Some(&text), ..Request::default() };
        let pieces = Pieces::of(&request);
        // 200 bytes: three pieces of 64, 50 tokens.
        assert_eq!((pieces.chain.len(), pieces.tokens), (3, 50.0));
        // Equal text at another place has another hash.
        assert_ne!(pieces.chain[0], pieces.chain[1]);
        assert_eq!(Pieces::of(&Request::default()).share(0), 0.0);
    }
}
