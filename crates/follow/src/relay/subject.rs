//! Names of streams in the log: `kvatlas.GROUP.MODEL.WORKER.RANK`.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Prefix of each stream's subject.
const BEFORE: &str = "kvatlas.";

/// Prefix before a stream's subject for questions to its relay, which the log does not keep.
pub(crate) const ASK: &str = "ask-";

/// Characters with a meaning in subjects.
const RESERVED: &AsciiSet = &CONTROLS.add(b'.').add(b'*').add(b'>').add(b' ').add(b'%').add(b'$');

/// Identity of a stream in the log: a rank of a worker, with its model and routing group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) routing_group: String,
    pub(crate) model: String,
    pub(crate) worker: String,
    pub(crate) rank: u32,
}

impl Subject {
    /// Subjects of all streams.
    pub(crate) const ALL: &str = "kvatlas.>";

    pub(crate) fn parse(subject: &str) -> Option<Self> {
        let mut parts = subject.strip_prefix(BEFORE)?.split('.');
        let mut part = || percent_decode_str(parts.next()?).decode_utf8().ok().map(|part| part.into_owned());
        let (routing_group, model, worker) = (part()?, part()?, part()?);
        let rank = part()?.parse().ok()?;
        part().is_none().then_some(Self { routing_group, model, worker, rank })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part| utf8_percent_encode(part, RESERVED);
        let Self { routing_group, model, worker, rank } = self;
        write!(f, "{BEFORE}{}.{}.{}.{rank}", part(routing_group), part(model), part(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_out_as_they_went_in() {
        for (model, worker) in [("m", "w"), ("org/Model-3.1 *", "http://10.0.0.1:8000"), ("%41", "é > ü")] {
            let (model, worker) = (model.to_owned(), worker.to_owned());
            let subject = Subject { routing_group: "default".to_owned(), model, worker, rank: 3 };
            let text = subject.to_string();
            assert_eq!(text.split('.').count(), 5, "{text}");
            assert!(!text.contains([' ', '*', '>']), "{text}");
            assert_eq!(Subject::parse(&text), Some(subject));
        }
        for other in ["kvatlas.g.m.w", "kvatlas.g.m.w.x", "kvatlas.g.m.w.1.2", "other.g.m.w.1"] {
            assert_eq!(Subject::parse(other), None, "{other}");
        }
    }
}
