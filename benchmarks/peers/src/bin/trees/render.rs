//! Requests as token ids and as text: both follow from the ids of the trace's blocks alone.
//!
//! A block is 512 tokens drawn from its id; a token's rank in the vocabulary follows Zipf's law, as in language, and
//! its text depends on its rank only. The vocabulary has common English words first, then words put together from
//! syllables, some capitalised, some numbers and marks, and a share that is not ASCII (Latin with accents, Cyrillic,
//! Chinese). The means of the text made are printed with the results.

use crate::rng::{Rng, mix};

/// Tokens of a trace block.
pub const BLOCK: usize = 512;
/// Token ids, like a current model's.
pub const VOCABULARY: usize = 128_256;

const COMMON: &str = "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what \
all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make like \
him into time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get come \
made may part over new sound take only little work know place year live me back give most very after thing our just name good sentence man think say";
const SYLLABLES: &str = "a e i o u an ar as at be ca ce ci co con com de di do du ed el en ent er es ex fa fi fo ful gen ge ha hi ho ic id in ing int ion \
is ist it ity ive ize ke la le li lo ly ma man me ment mi mo mu na ne ness ni no num ob on op or ous out over pa pe per ph pi po pre pro qu ra re ri ro \
sa se si sion so st str sub sup ta te ter ti tion to tr tra tu un und up ur us va ve ver vi vo wa we wi wo ya y th sh ch ck gh ss ll nd nt rd rt";
const ACCENTED: &str = "é è à ü ö ñ ç ê â î ô ß å ø ã";
const CYRILLIC: &str = "по на не что это как при для или ста ние пре ком ров ный ать";
const CHINESE: &str = "的 一 是 不 了 人 我 在 有 他 这 中 大 来 上 国 个 到 说 们 为 子 和 你 地 出 道 也 时 年";
const MARKS: &str = ". , ; : ( ) [ ] { } = + - * / \" ' ! ? # _ < > \n \n\n ). ), :: -> //";

pub struct Vocabulary {
    words: Vec<String>,
}

impl Vocabulary {
    pub fn new(seed: u64) -> Self {
        let lists: Vec<Vec<&str>> =
            [COMMON, SYLLABLES, ACCENTED, CYRILLIC, CHINESE].iter().map(|l| l.split_whitespace().collect()).collect();
        let marks: Vec<&str> = MARKS.split(' ').collect();
        let mut rng = Rng::new(seed);
        let pick = |rng: &mut Rng, of: usize| lists[of][rng.below(lists[of].len())];
        let words = (0..VOCABULARY)
            .map(|rank| {
                let kind = rng.unit();
                if rank < 40 && rank % 4 == 3 {
                    return marks[rng.below(marks.len())].to_owned();
                }
                if rank < 2 * lists[0].len() && rank % 2 == 0 {
                    return format!(" {}", lists[0][rank / 2]);
                }
                if kind < 0.06 {
                    return marks[rng.below(marks.len())].to_owned();
                }
                if kind < 0.10 {
                    return format!("{}", rng.below(1000));
                }
                let mut word = String::new();
                if rng.unit() < 0.55 {
                    word.push(' ');
                }
                if kind < 0.115 {
                    (0..1 + rng.below(2)).for_each(|_| word.push_str(pick(&mut rng, 4)));
                } else if kind < 0.13 {
                    (0..1 + rng.below(2)).for_each(|_| word.push_str(pick(&mut rng, 3)));
                } else {
                    let start = word.len();
                    for _ in 0..1 + rng.below(2) + usize::from(rank > 2_000) {
                        word.push_str(pick(&mut rng, 1));
                    }
                    if kind < 0.15 {
                        word.push_str(pick(&mut rng, 2));
                    }
                    if kind > 0.9 {
                        word[start..=start].make_ascii_uppercase();
                    }
                }
                word
            })
            .collect();
        Self { words }
    }

    /// The tokens of a request.
    pub fn tokens(&self, ids: &[u32]) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(ids.len() * BLOCK);
        for &id in ids {
            let mut rng = Rng::new(mix(u64::from(id) + 1));
            let scale = (VOCABULARY as f64).ln();
            // Zipf's law: the logarithm of the rank is uniform.
            tokens.extend((0..BLOCK).map(|_| (rng.unit() * scale).exp() as u32 - 1));
        }
        tokens
    }

    /// The same request as text.
    pub fn text(&self, ids: &[u32]) -> String {
        self.tokens(ids).into_iter().map(|t| self.words[t as usize].as_str()).collect()
    }

    /// A token id as the tree is given it: ranks spread over the vocabulary, as a tokenizer's merges would not be
    /// in order of frequency either.
    pub fn scatter(tokens: &mut [u32]) {
        for token in tokens {
            // 3 does not divide the vocabulary's size and neither does this odd number: a permutation.
            *token = ((u64::from(*token) * 48_271) % VOCABULARY as u64) as u32;
        }
    }
}
