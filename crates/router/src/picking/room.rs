//! [`GatewayRoom`]: memory for the bodies that gateways show, out of the budget of all bodies.

use std::sync::Arc;

use kvatlas_epp::{BodyRoom, PickRefusal};
use kvatlas_http::{BodyFault, BodyLease};

use super::show;
use crate::answers::observe::Dialect;
use crate::answers::refusal::Refusal;
use crate::app::App;

/// Memory for one body.
pub(crate) struct GatewayRoom {
    app: Arc<App>,
    dialect: Dialect,
    lease: BodyLease,
}

impl GatewayRoom {
    pub(super) fn new(app: Arc<App>, dialect: Dialect) -> Self {
        let lease = app.front.memory.lease();
        Self { app, dialect, lease }
    }

    fn refused(&self, fault: &BodyFault) -> PickRefusal {
        let refusal = Refusal::of_body(fault, self.app.config.http.max_body);
        self.app.counts.refuse(refusal.status, refusal.code, None);
        show(&refusal, self.dialect)
    }
}

impl BodyRoom for GatewayRoom {
    async fn grow(&mut self, bytes: usize) -> Result<(), PickRefusal> {
        let grown = self.lease.grow(bytes).await;
        grown.map_err(|fault| self.refused(&fault))
    }

    async fn must_leave(&self) -> PickRefusal {
        self.lease.must_leave().await;
        self.refused(&BodyFault::NoRoom)
    }

    fn too_large(&self) -> PickRefusal {
        self.refused(&BodyFault::TooLarge)
    }

    fn complete(&mut self) {
        self.lease.complete();
    }
}
