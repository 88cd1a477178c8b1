//! Settings of a prefix table (limits and times), from arguments or from AIBrix's environment variables, and errors for
//! invalid settings.

use std::time::Duration;

/// Name of the environment variable for [`Config::max_contexts`], the maximum number of contexts.
pub const MAX_CONTEXTS: &str = "AIBRIX_SYNC_MAX_CONTEXTS";
/// Name of the environment variable for [`Config::max_prefixes_per_context`], the maximum number of prefixes.
pub const MAX_PREFIXES: &str = "AIBRIX_SYNC_MAX_PREFIXES_PER_CONTEXT";
/// Name of the environment variable for [`Config::eviction_interval`], in seconds.
pub const INTERVAL: &str = "AIBRIX_SYNC_EVICTION_INTERVAL_SECONDS";
/// Name of the environment variable for [`Config::eviction_duration`], in minutes.
pub const DURATION: &str = "AIBRIX_SYNC_EVICTION_DURATION_MINUTES";
/// Name of the environment variable for [`Config::block_size`], in bytes.
pub const BLOCK_SIZE: &str = "AIBRIX_PREFIX_CACHE_BLOCK_SIZE";

/// Largest valid value of a setting that is a count, such as a number of prefixes.
const MOST: u64 = 1 << 31;
/// Largest valid value of a setting that is a time, in seconds: a year.
const MOST_SECONDS: u64 = 366 * 24 * 60 * 60;

/// Settings of a prefix table: limits, times, and the seed and block size of its prefix hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Maximum number of contexts (one for each model and LoRA adapter), at least 1. Beyond it, the least recently used
    /// context is evicted.
    pub max_contexts: usize,
    /// Maximum number of prefixes in a context, at least 1. Beyond it, the least recently used prefixes are evicted, of
    /// equally old ones the deepest first.
    pub max_prefixes_per_context: usize,
    /// Interval at which the background thread evicts expired prefixes.
    pub eviction_interval: Duration,
    /// Time after which a prefix expires if it is not stored, added or matched; the same holds for a context.
    pub eviction_duration: Duration,
    /// Number of bytes of tokens in a block, at least 1; a token has 4 bytes.
    pub block_size: usize,
    /// Seed of the prefix hashes; `None` for a random seed.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_contexts: 1000,
            max_prefixes_per_context: 10_000,
            eviction_interval: Duration::from_secs(60),
            eviction_duration: Duration::from_secs(20 * 60),
            block_size: 16,
            seed: None,
        }
    }
}

impl Config {
    /// Default settings, overridden by environment variables.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] with the name of a variable that is not a whole number from 1 on.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Default settings, overridden by variables from any source, such as the environment ([`Self::from_env`]). `get`:
    /// returns a variable's value.
    pub(crate) fn from_variables(get: impl Fn(&'static str) -> Option<String>) -> Result<Self, Error> {
        let mut config = Self::default();
        let number = |name, most| match get(name) {
            None => Ok(None),
            Some(text) => match text.trim().parse() {
                Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
                _ => Err(Error::Setting { name, most, got: format!("{text:?}") }),
            },
        };
        let set = |place: &mut usize, found: Option<u64>| {
            if let Some(found) = found {
                *place = found as usize;
            }
        };
        set(&mut config.max_contexts, number(MAX_CONTEXTS, MOST)?);
        set(&mut config.max_prefixes_per_context, number(MAX_PREFIXES, MOST)?);
        set(&mut config.block_size, number(BLOCK_SIZE, MOST)?);
        if let Some(seconds) = number(INTERVAL, MOST_SECONDS)? {
            config.eviction_interval = Duration::from_secs(seconds);
        }
        if let Some(minutes) = number(DURATION, MOST_SECONDS / 60)? {
            config.eviction_duration = Duration::from_secs(minutes * 60);
        }
        Ok(config)
    }

    /// Checks the settings of a prefix table. The error names an invalid one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let number = |name, value: usize| {
            let good = (1..=MOST).contains(&(value as u64));
            if good { Ok(()) } else { Err(Error::Setting { name, most: MOST, got: value.to_string() }) }
        };
        number("max_contexts", self.max_contexts)?;
        number("max_prefixes_per_context", self.max_prefixes_per_context)?;
        number("block_size", self.block_size)?;
        for (name, time) in
            [("eviction_interval", self.eviction_interval), ("eviction_duration", self.eviction_duration)]
        {
            if time.is_zero() || time.as_secs() > MOST_SECONDS {
                return Err(Error::Setting {
                    name,
                    most: MOST_SECONDS,
                    got: format!("{} seconds", time.as_secs_f64()),
                });
            }
        }
        Ok(())
    }
}

/// Reason why a call on the prefix table was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the prefix table has an invalid value.
    #[error("{name} must be a whole number from 1 to {most}, got {got}")]
    Setting {
        /// Name of the invalid setting: an argument or an environment variable.
        name: &'static str,
        /// Largest valid value of the setting.
        most: u64,
        /// Value that was given for the setting.
        got: String,
    },
    /// A store event has a different number of block hashes than of blocks with tokens.
    #[error(
        "{block_hashes} block hashes but tokens of {blocks} blocks: an event needs the tokens of each block it names"
    )]
    LengthMismatch {
        /// Number of block hashes in the store event.
        block_hashes: usize,
        /// Number of blocks with tokens in the store event.
        blocks: usize,
    },
    /// The tokens of an engine's block are not a whole number of the table's blocks.
    #[error(
        "block {block} of the event has {bytes} bytes of tokens, and the blocks of this table have {block_size}: an engine's \
         block must be a multiple; set block_size (AIBRIX_PREFIX_CACHE_BLOCK_SIZE) to 4 times the tokens in its blocks"
    )]
    BlockBytes {
        /// Index of the block in the event.
        block: usize,
        /// Number of bytes of the tokens of the engine's block.
        bytes: usize,
        /// Number of bytes of tokens in a block of the prefix table.
        block_size: usize,
    },
    /// The background thread that evicts expired prefixes could not be started.
    #[error("the thread that evicts could not be started: {why}")]
    Thread {
        /// Error message of the operating system.
        why: String,
    },
}

impl Error {
    /// Stable code of the error, a word that is the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Setting { .. } => "invalid_config",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::BlockBytes { .. } => "token_bytes",
            Self::Thread { .. } => "no_thread",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_or_refused_by_name() {
        assert_eq!(Config::from_variables(|_| None).unwrap(), Config::default());
        let all = Config::from_variables(|name| Some(name.len().to_string())).unwrap();
        assert_eq!((all.max_contexts, all.max_prefixes_per_context, all.block_size), (24, 36, 30));
        assert_eq!((all.eviction_interval.as_secs(), all.eviction_duration.as_secs()), (37, 37 * 60));
        for name in [MAX_CONTEXTS, MAX_PREFIXES, INTERVAL, DURATION, BLOCK_SIZE] {
            for wrong in ["", "abc", "0", "-1", "1.5", "99999999999999999999"] {
                let error = Config::from_variables(|asked| (asked == name).then(|| wrong.to_owned())).unwrap_err();
                assert!(error.to_string().starts_with(name), "{error}");
                assert!(error.to_string().ends_with(&format!("got {wrong:?}")), "{error}");
            }
        }
    }
}
