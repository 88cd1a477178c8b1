//! Secret of a fleet, from which ids are derived that clients cannot compute.
//!
//! Routers in front of the same engines must derive the same ids, also after a restart. The secret is therefore derived
//! from a key that the routers share and clients do not have.

use std::hash::{BuildHasher as _, RandomState};

use kvatlas_http::Gate;

use crate::config::Config;

/// Secret of a fleet, from which ids are derived that clients cannot compute.
pub(crate) struct FleetSecret([u8; 32]);

impl FleetSecret {
    /// Derives the secret from the first of these keys that is configured: the admin key, the key of all engines, the
    /// router's only key. Without any of them, the secret is random.
    pub(crate) fn new(gate: &Gate, config: &Config) -> Self {
        match gate.fleet_secret(config.upstream.key.as_ref()) {
            Some(secret) => {
                Self(blake3::derive_key("kvatlas 2026-11-28 secret of a fleet", secret.reveal().as_bytes()))
            }
            None => {
                let mut drawn = [0; 32];
                for part in drawn.chunks_exact_mut(8) {
                    part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
                }
                Self(drawn)
            }
        }
    }

    /// Derives a key for the purpose `purpose` from the secret.
    pub(crate) fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}
