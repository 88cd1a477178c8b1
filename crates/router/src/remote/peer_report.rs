//! The reading of a report that another router has sent.

use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use kvatlas_http::RequestBody;
use serde::de::DeserializeOwned;

use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::proxy::read;
use crate::remote::peers::{MOST_BYTES, MOST_SECONDS};
use crate::requests::long_work::aside_if_long;

/// Reads a report. `seconds` returns the time for which it counts.
///
/// # Errors
/// [`Refusal`] if the body is none, or counts for too long.
pub(crate) async fn read_report<T: DeserializeOwned + Send + 'static>(
    app: &Arc<App>,
    request: Request<RequestBody>,
    until: Instant,
    seconds: impl Fn(&T) -> f64,
) -> Result<T, Refusal> {
    let body = read(app, request.into_body(), MOST_BYTES, until).await?;
    let report: T = aside_if_long(app, &body, |_, body| serde_json::from_slice(body))
        .await?
        .map_err(|error| Refusal::bad("invalid_work", format!("the body is not a report of a router: {error}")))?;
    let seconds = seconds(&report);
    if !(0.0..=MOST_SECONDS).contains(&seconds) {
        let message = format!("seconds must be from 0 to {MOST_SECONDS}, got {seconds}");
        return Err(Refusal::bad("invalid_work", message));
    }
    Ok(report)
}
