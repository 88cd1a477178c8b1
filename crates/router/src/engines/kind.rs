//! Recognition of an engine as vLLM or SGLang, with its version, by its answers.

use kvatlas_prompt::Dialect;

use crate::config::Handover;
use crate::engines::json_fields::{pick, read};

/// Kind of an engine, vLLM or SGLang, with the properties that follow from the kind and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) handover: Handover,
    /// Dialect of the engine: the way in which its kind and version render chats as prompts.
    pub(crate) dialect: Dialect,
    /// True if the engine identifies images by the `uuid` in a request.
    pub(crate) takes_image_ids: bool,
    /// True if a request can name blocks for the engine to load, and another engine from which blocks are pulled
    /// (copied).
    pub(crate) pulls: bool,
    /// Port at which an SGLang prefill engine arranges transfers with decode engines (the bootstrap port); None if
    /// unknown.
    pub(crate) bootstrap_port: Option<u16>,
    /// Context length in tokens, as reported by SGLang; None if not reported.
    pub(crate) max_len: Option<u32>,
    /// True if SGLang truncates prompts that are too long (`--allow-auto-truncate`).
    pub(crate) cuts_prompts: bool,
}

impl Kind {
    /// Paths at which SGLang reports its settings and version. vLLM has only the first path, in its development mode,
    /// with other contents.
    pub(crate) const PATHS: [&str; 2] = ["/server_info", "/get_server_info"];

    /// Path at which vLLM reports its version.
    pub(crate) const VERSION_PATH: &str = "/version";

    /// Makes the kind of an engine that is not SGLang, from the engine's answer at [`Self::VERSION_PATH`].
    pub(crate) fn vllm(answer: &[u8]) -> Self {
        let version = pick(answer, ["version"]).and_then(|[version]| read::<String>(version));
        let dialect = Dialect::of(kvatlas_prompt::Engine::Vllm, version.as_deref());
        let takes_image_ids = version.as_deref().is_some_and(takes_image_ids);
        let pulls = version.as_deref().is_some_and(pulls);
        let handover = Handover::Vllm;
        Self { handover, dialect, takes_image_ids, pulls, bootstrap_port: None, max_len: None, cuts_prompts: false }
    }

    /// Parses an engine's answer at one of [`Self::PATHS`]; None if the answer is not SGLang's.
    pub(crate) fn sglang(answer: &[u8]) -> Option<Self> {
        const SIGNS: [&str; 3] = ["disaggregation_mode", "kv_events", "kv_events_config"];
        const OTHERS: [&str; 4] = ["disaggregation_bootstrap_port", "version", "context_length", "allow_auto_truncate"];
        pick(answer, SIGNS)?.iter().any(Option::is_some).then_some(())?;
        let [port, version, max_len, cuts] = pick(answer, OTHERS)?;
        let dialect = Dialect::of(kvatlas_prompt::Engine::Sglang, read::<String>(version).as_deref());
        let bootstrap_port = read::<u16>(port).filter(|port| *port > 0);
        let max_len = read::<u64>(max_len).filter(|len| *len > 0);
        let max_len = max_len.map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        let cuts_prompts = read(cuts) == Some(true);
        let handover = Handover::Sglang;
        Some(Self { handover, dialect, takes_image_ids: false, pulls: false, bootstrap_port, max_len, cuts_prompts })
    }
}

/// True if the version `version` of vLLM identifies images by the `uuid` in a request: 0.11 and later.
pub(crate) fn takes_image_ids(version: &str) -> bool {
    is_since(version, (0, 11))
}

/// True if engines of the version `version` of vLLM can pull blocks from each other: 0.28 and later.
pub(crate) fn pulls(version: &str) -> bool {
    is_since(version, (0, 28))
}

/// True if a version string denotes the release `first` or a later one.
fn is_since(version: &str, first: (u32, u32)) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map_while(|number| number.parse::<u32>().ok());
    let release = (numbers.next(), numbers.next());
    release.1.is_some() && release >= (Some(first.0), Some(first.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say() {
        let kind = |bootstrap_port| {
            let (handover, dialect) = (Handover::Sglang, Dialect::Sglang);
            let (takes_image_ids, pulls, max_len, cuts_prompts) = (false, false, None, false);
            Some(Kind { handover, dialect, takes_image_ids, pulls, bootstrap_port, max_len, cuts_prompts })
        };
        let prefill = br#"{"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}"#;
        assert_eq!(Kind::sglang(prefill), kind(Some(8998)));
        assert_eq!(Kind::sglang(br#"{"kv_events": null, "disaggregation_bootstrap_port": 0}"#), kind(None));
        assert_eq!(Kind::sglang(br#"{"vllm_config": "{}"}"#), None);
        let cuts = br#"{"kv_events": null, "context_length": 4096, "allow_auto_truncate": true}"#;
        let cuts = Kind::sglang(cuts).expect("one of its");
        assert_eq!((cuts.max_len, cuts.cuts_prompts), (Some(4096), true));
        assert_eq!(Kind::sglang(b"not found"), None);
        assert_eq!(Kind::vllm(br#"{"version": "0.30.2"}"#).dialect, Dialect::Vllm30);
        assert_eq!(Kind::vllm(b"not found").dialect, Dialect::default());
        for (said, expected) in [("0.28.0", true), ("0.27.1", false), ("v1.0", true), ("dev", false)] {
            assert_eq!(Kind::vllm(format!(r#"{{"version": "{said}"}}"#).as_bytes()).pulls, expected, "{said}");
        }
        for (said, expected) in [
            (r#"{"version": "0.33.0"}"#, true),
            (r#"{"version": "v0.11.0.post2"}"#, true),
            (r#"{"version": "1.0"}"#, true),
            (r#"{"version": "0.10.2"}"#, false),
            (r#"{"version": "1"}"#, false),
            (r#"{"version": "dev"}"#, false),
            ("{}", false),
        ] {
            assert_eq!(Kind::vllm(said.as_bytes()).takes_image_ids, expected, "{said}");
        }
    }
}
