//! Estimates of the number of tokens in images, sounds and other media: running means by model and kind of medium,
//! learnt from engines' token counts.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_prompt::{MEDIA_TOKENS, Media, MediaKind};
use parking_lot::Mutex;

use crate::requests::pictures::{Lengths, PictureCount};

/// Upper limit of the estimated number of tokens of one medium. The limit suffices for a video of some minutes.
const MOST: f64 = 65_536.0;
/// Minimum weight of a new sample in a running mean, so that old samples lose their influence.
const SLOWEST: f64 = 0.1;
/// Maximum number of models for which the token counts of media are learnt.
const MODELS: usize = 1024;

/// Mean number of tokens of each kind of medium, and the number of samples for each mean.
type Means = ([f64; MediaKind::ALL.len()], [f64; MediaKind::ALL.len()]);

/// Learnt estimates of the number of tokens in images, sounds and other media.
#[derive(Debug, Default)]
pub(crate) struct MediaTokens {
    by_model: Mutex<HashMap<String, Means>>,
    /// Learnt token counts of single images.
    pub(crate) lengths: Lengths,
}

/// Images, sounds and other media of a request, with the request's model.
#[derive(Debug, Clone)]
pub(crate) struct ModelMedia {
    pub(crate) model: String,
    pub(crate) media: Media,
    /// Images whose token counts can be computed from the engine's count for the prompt; None for no such images.
    pub(crate) counting: Option<Arc<PictureCount>>,
}

impl MediaTokens {
    /// Estimates the number of tokens in a prompt from its text and media.
    pub(crate) fn estimate(&self, model: &str, media: &Media) -> u32 {
        let each = self.by_model.lock().get(model).map_or(MEDIA_TOKENS, |(means, _)| *means);
        media.tokens(&each) as u32
    }

    /// Updates the running means by an engine's count of a prompt's tokens. `of`: media of the prompt; `counted`:
    /// number of prompt tokens reported by the engine.
    pub(crate) fn learn(&self, of: &ModelMedia, counted: u32) {
        let ModelMedia { model, media, counting } = of;
        counting.iter().for_each(|counting| self.lengths.learn(counting, counted));
        let mut by_model = self.by_model.lock();
        if by_model.len() >= MODELS && !by_model.contains_key(model) {
            by_model.clear();
        }
        let (means, samples) = by_model.entry(model.clone()).or_insert((MEDIA_TOKENS, [0.0; MEDIA_TOKENS.len()]));
        let expected = media.items_tokens(means);
        let found = (f64::from(counted) - media.tokens(means) + expected).max(0.0);
        if expected <= 0.0 {
            return;
        }
        // Of several kinds each is as far off as their sum.
        let factor = found / expected;
        for ((mean, samples), _) in means.iter_mut().zip(samples).zip(&media.items).filter(|(_, count)| **count > 0) {
            *samples += 1.0;
            let sample = (*mean * factor).clamp(1.0, MOST);
            *mean += (sample - *mean) * (1.0 / *samples).max(SLOWEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_learnt_by_model_and_kind() {
        let learnt = MediaTokens::default();
        let of = |items, text| ModelMedia { model: "m".into(), media: Media { text, items }, counting: None };
        let image = of([1, 0, 0, 0, 0], 400);
        assert_eq!(learnt.estimate("m", &image.media), 1124);
        for _ in 0..20 {
            learnt.learn(&image, 300);
        }
        assert_eq!(learnt.estimate("m", &image.media), 300);
        assert_eq!(learnt.estimate("m", &of([2, 0, 0, 0, 0], 400).media), 500);
        assert_eq!(learnt.estimate("other", &image.media), 1124);
        assert_eq!(learnt.estimate("m", &of([0, 1, 0, 0, 0], 0).media), 512);
        // However much an engine counts, it is bounded.
        learnt.learn(&of([0, 0, 1, 0, 0], 0), u32::MAX);
        assert_eq!(learnt.estimate("m", &of([0, 0, 1, 0, 0], 0).media), 65_536);
        // Less than the text can have is nothing.
        learnt.learn(&of([0, 1, 0, 0, 0], 4000), 10);
        assert_eq!(learnt.estimate("m", &of([0, 1, 0, 0, 0], 0).media), 1);
    }
}
