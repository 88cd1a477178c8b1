//! The policies that go by a name.

use kvatlas_routing::PolicyTable;

/// The policies that go by a name: those of other routers only in the laboratory.
pub(crate) fn policies() -> PolicyTable {
    let own = PolicyTable::own();
    #[cfg(feature = "lab")]
    let own = own.with(kvatlas_peer_policies::POLICIES);
    own
}
