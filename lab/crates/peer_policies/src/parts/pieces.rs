//! A prompt cut into pieces, each named by everything up to its end.

use kvatlas_index::hash::{next_prefix_hash, prefix_hashes};
use xxhash_rust::xxh3::xxh3_64;

use kvatlas_routing::Request;

/// Bytes of text that stand for a token, where there are no tokens: about right for English.
pub(crate) const BYTES_PER_TOKEN: usize = 4;
/// Bytes of a piece of text: 16 tokens.
const TEXT_PIECE: usize = 16 * BYTES_PER_TOKEN;
/// Pieces of one prompt, at most: a million tokens in blocks of 16. What is behind them is not looked at.
const MOST: usize = 1 << 16;

/// The leading full blocks of a prompt, or, where it was not tokenised, leading pieces of its text.
///
/// Routers that keep a tree of what they sent keep it of characters or tokens. Here its edges are as fine as blocks.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The name of each piece with all before it.
    pub(crate) chain: Vec<u64>,
    /// Tokens of a piece.
    pub(crate) size: f64,
    /// Tokens of the prompt.
    pub(crate) tokens: f64,
}

impl Pieces {
    /// Cuts the prompt of a request: by its hashes if it has any, else by its text.
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
        // Another beginning than that of blocks: a piece of text is never taken for a block.
        let mut name = xxh3_64(b"text");
        for piece in text.chunks_exact(TEXT_PIECE).take(MOST) {
            name = next_prefix_hash(name, xxh3_64(piece));
            chain.push(name);
        }
        let tokens = if text.is_empty() { f64::from(request.tokens) } else { (text.len() / BYTES_PER_TOKEN) as f64 };
        Self { chain, size: (TEXT_PIECE / BYTES_PER_TOKEN) as f64, tokens }
    }

    /// The share of the prompt that the first `depth` pieces are.
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
        // Equal text at another place has another name.
        assert_ne!(pieces.chain[0], pieces.chain[1]);
        assert_eq!(Pieces::of(&Request::default()).share(0), 0.0);
    }
}
