//! The secret of a fleet, from which names are derived that clients cannot compute.
//!
//! Routers in front of the same engines must make the same names, and after a restart again: so it is derived from a key
//! that they share and that clients do not have.

use std::hash::{BuildHasher as _, RandomState};

use kvatlas_http::Gate;

use crate::config::Config;

/// The secret of a fleet.
pub(crate) struct FleetSecret([u8; 32]);

impl FleetSecret {
    /// Derives it from the admin key, else from the key of all engines, else from the one key of the router. A router that
    /// has none of them draws a secret.
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

    /// A key for one kind of names.
    pub(crate) fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}
